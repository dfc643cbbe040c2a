"""Converts a setting's value, from text (the environment, a flag) or TOML, to the type of its field."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import msgspec

from aliquot.common.duration import DurationMs, parse_duration_ms
from aliquot.common.errors import AliquotError
from aliquot.common.quantity import ByteSize, parse_bytes

_BOOLEANS: Final = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


class SettingValueError(ValueError):
    """A value that does not have its field's type. `hint` says how to write it."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def from_toml(value: object, hint: Any) -> object:  # noqa: ANN401
    """A value that has a type already: the field's own, or text where the field is written as text."""
    if isinstance(value, str) and _enum_of(hint) is not None:
        return from_text(value, hint)
    return _checked(value, hint, strict=True)


def from_text(text: str, hint: Any) -> object:  # noqa: ANN401
    """A value that comes as text: booleans as words, enums by name, sequences separated by commas."""
    if hint is bool:
        return parse_bool(text)
    members = _enum_of(hint)
    if members is not None:
        try:
            return members[text.strip().upper()]
        except KeyError:
            words = ", ".join(member.name.lower() for member in members)
            raise SettingValueError(f"{text!r} is none of them", f"one of {words}") from None
    if get_origin(hint) in (tuple, list, frozenset, set):
        item = get_args(hint)[0]
        parts = [from_text(part.strip(), item) for part in text.split(",") if part.strip()]
        return _checked(parts, hint, strict=True)
    return _checked(text, hint, strict=False)


def parse_bool(text: str) -> bool:
    """Reads true, yes, on, 1 and their opposites. Raises `SettingValueError`."""
    try:
        return _BOOLEANS[text.strip().lower()]
    except KeyError:
        raise SettingValueError(f"{text!r} is neither true nor false", "write true or false") from None


def _enum_of(hint: Any) -> type[enum.Enum] | None:  # noqa: ANN401
    return hint if isinstance(hint, type) and issubclass(hint, enum.Enum) else None


def _checked(value: object, hint: Any, *, strict: bool) -> object:  # noqa: ANN401
    try:
        return msgspec.convert(value, hint, strict=strict, dec_hook=_decode)
    except msgspec.ValidationError as error:
        cause = error.__cause__
        raise SettingValueError(str(error), cause.hint if isinstance(cause, AliquotError) else "") from error


def _decode(wanted: type, value: object) -> object:
    """Makes the types that msgspec does not know. msgspec turns its errors into a `ValidationError`."""
    if wanted is Path and isinstance(value, str):
        return Path(value).expanduser()
    if isinstance(value, wanted):
        return value
    if wanted is DurationMs:
        # Numbers too, so that a bare 5 gets the hint to write 5s.
        return DurationMs(parse_duration_ms(str(value)))
    if wanted is ByteSize:
        return ByteSize(parse_bytes(str(value)))
    raise TypeError(f"{type(value).__name__} where {wanted.__name__} was expected")
