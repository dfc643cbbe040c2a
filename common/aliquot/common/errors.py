"""The root of aliquot's error tree, and the errors that every part can raise.

    AliquotError
     ├── QuantityError           a Kubernetes quantity that can't be read
     ├── DurationError           a duration that can't be read
     ├── RequestSyntaxError      a GPU request that can't be read, with the position and a suggestion
     ├── InvalidFieldError       a value out of its stated range, with the path of its field
     ├── ConfigError             a setting that can't be read or does not exist
     └── SecurityError           something insecure: listening without TLS, a key that can't be used

The domain errors of the coordinator, the agent and the client derive from `AliquotError` too. `reason` is a stable
UPPER_SNAKE word for programs, the message says what is wrong, and `hint` says what to do about it. A class that
states no reason has its name as one, as `NeverFits` has NEVER_FITS. Whoever renames it states the word that it had:
`tests/contract/reasons.txt` holds them.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Any, ClassVar

_REASON = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*")
_WITHIN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class AliquotError(Exception):
    """A refusal or failure that a caller can act on."""

    reason: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "reason" not in cls.__dict__:
            cls.reason = _WITHIN.sub("_", cls.__name__.removesuffix("Error")).upper()
        if not _REASON.fullmatch(cls.reason):
            raise TypeError(f"{cls.__name__}.reason must be UPPER_SNAKE, not {cls.reason!r}")

    @property
    def message(self) -> str:
        """What is wrong, without the hint."""
        return str(self.args[0])

    def explain(self) -> str:
        """The message and, on a line of its own, the hint: what a terminal should show."""
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are pickled between processes. The default would call the constructor with `args` alone, which fails in
        # every subclass whose constructor takes more.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[AliquotError], args: tuple[Any, ...], state: dict[str, Any]) -> AliquotError:
    error = cls.__new__(cls, *args)
    error.__dict__.update(state)
    return error


class QuantityError(AliquotError, ValueError):
    """A quantity such as `10Gi` that can't be read, or is not a whole number of the unit wanted."""

    reason = "INVALID_QUANTITY"


class DurationError(AliquotError, ValueError):
    """A duration such as `250ms` that can't be read."""

    reason = "INVALID_DURATION"


class RequestSyntaxError(AliquotError, ValueError):
    """A GPU request that can't be read.

    `text[position:end]` is what can't be read (0-based; empty at the end of the text), `expected` says what belongs
    there, and `suggestion`, if there is one, what was probably meant.
    """

    def __init__(self, text: str, position: int, end: int, expected: str, suggestion: str | None = None) -> None:
        got = f"{_shortened(text[position:end])!r}" if end > position else "the end of the text"
        meant = f"; did you mean {suggestion}?" if suggestion else ""
        super().__init__(
            f"position {position}, {got}: expected {expected}{meant}",
            hint=f"write {suggestion}" if suggestion else "write a request such as 2, 0.5(A100), 0.25,10Gi or 1g.10gb",
        )
        self.text = text
        self.position = position
        self.end = end
        self.expected = expected
        self.suggestion = suggestion

    def render(self) -> str:
        """Three lines for a terminal: the text, a caret under what can't be read, and what was expected."""
        before, wrong = _printable(self.text[: self.position]), _printable(self.text[self.position : self.end])
        after = _printable(self.text[self.end :])
        meant = f"; did you mean {self.suggestion}?" if self.suggestion else ""
        caret = " " * _columns(before) + "^" * max(1, _columns(wrong))
        return f"{before}{wrong}{after}\n{caret}\nexpected {self.expected}{meant}"

    def explain(self) -> str:
        """What a terminal should show."""
        return self.render()


def _shortened(text: str, chars: int = 40) -> str:
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _columns(text: str) -> int:
    # Full-width characters take two columns and combining ones none; the caret must point at the right one.
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


class InvalidFieldError(AliquotError, ValueError):
    """A value out of its stated range. `field` is the path of its field, such as `spec.models[0]`."""

    def __init__(self, field: str, message: str, *, hint: str = "") -> None:
        super().__init__(f"{field}: {message}", hint=hint)
        self.field = field


class ConfigError(AliquotError):
    """A setting that can't be read or does not exist."""

    reason = "INVALID_CONFIG"


class SecurityError(AliquotError):
    """Something insecure was asked for, or a certificate or key can't be used."""

    reason = "INSECURE"
