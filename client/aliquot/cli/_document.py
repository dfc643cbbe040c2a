"""Tables of files that people write, as values: each key says which attribute it is and how it is read.

What is wrong is a `ConfigError` with its place in the file: `queues[0].ageing: …`. A key without a value is as if it
were not there, and its attribute is as the value has it by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.files import naming, read_document
from aliquot.common.quantity import parse_bytes, parse_milli, parse_quantity

V = TypeVar("V")
T = TypeVar("T")
Found: TypeAlias = Any
"""Whatever stands in a file."""
Parse: TypeAlias = Callable[[Found, str], T]
"""Makes a value of what a key holds; gets its place in the file."""
_SHOWN_CHARS = 40


@dataclass(frozen=True, slots=True)
class Shape(Generic[V]):
    """How a table becomes a value. It is a `Parse` itself."""

    kind: Callable[..., V]
    keys: Mapping[str, Parse[Any] | tuple[str, Parse[Any]]]
    """The attribute has the key's name, or this one; an empty name: what is read are several attributes by name."""
    needed: Collection[str] = ()
    within: Mapping[str, Shape[Any]] = field(default_factory=dict)
    """Attributes that are made of further keys of the same table."""
    default: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that are something else than the value's own default where the file does not say."""

    @property
    def known(self) -> list[str]:
        """All keys."""
        return [*self.keys, *(key for shape in self.within.values() for key in shape.known)]

    def __call__(self, value: Found, where: str) -> V:
        """The value of a table. Raises `ConfigError`."""
        given = table(value, where)
        if unknown := sorted(set(map(str, given)) - set(self.known)):
            raise ConfigError(f"{_at(where, unknown[0])}: unknown", hint=f"one of {', '.join(sorted(self.known))}")
        return self._read(given, where)

    def _read(self, given: Mapping[str, Found], where: str) -> V:
        found = dict(self.default)
        for key, how in self.keys.items():
            attribute, parse = how if isinstance(how, tuple) else (key, how)
            if given.get(key) is not None:
                read = parse(given[key], _at(where, key))
                found |= {attribute: read} if attribute else read
            elif key in self.needed:
                raise ConfigError(f"{_at(where, key)}: not set", hint=f"write {key}: …")
        found |= {attribute: shape._read(given, where) for attribute, shape in self.within.items()}  # noqa: SLF001
        return self.kind(**found)


def read_file(path: Path, parse: Parse[T]) -> T:
    """A whole file. Raises `ConfigError` that names it."""
    with naming(path):
        return parse(read_document(path, exact=True), "")


def table(value: Found, where: str) -> Mapping[str, Found]:
    """Keys and values. Raises `ConfigError`."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where or 'the file'}: a table was expected, not {_shown(value)}")
    return value


def _shown(value: Found) -> str:
    return "nothing" if value is None else repr(value)[:_SHOWN_CHARS]


def each(parse: Parse[T]) -> Parse[tuple[T, ...]]:
    """A list, each item with its place."""

    def read(value: Found, where: str) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise ConfigError(f"{where}: a list was expected, not {_shown(value)}")
        return tuple(parse(item, f"{where}[{number}]") for number, item in enumerate(value))

    return read


def text(value: Found, where: str) -> str:
    """A text; not what YAML has made a number of: what was written (01, 1e3, 3090) is lost then."""
    if isinstance(value, str) and value:
        return value
    key = where.rpartition(".")[2]
    if value == "":
        raise ConfigError(f"{where}: not set", hint=f"write {key}: …")
    kind = "yes or no" if isinstance(value, bool) else "a number" if isinstance(value, int | float) else "no text"
    raise ConfigError(f"{where}: {value!r} is {kind}, and a text is needed", hint=f'put it in quotes: {key}: "…"')


def texts(value: Found, where: str) -> dict[str, str]:
    """Texts by name."""
    return {str(key): str(each) for key, each in table(value, where).items()}


def flag(value: Found, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise ConfigError(f"{where}: {value!r} is neither true nor false", hint="write true or false")
    return value


def number(least: int, most: int, what: str = "a whole number") -> Parse[int]:
    """A whole number in these bounds."""

    def read(value: Found, where: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{where}: {value!r} is not {what} from {least} to {most}")
        return value

    return read


def parsed(parse: Callable[[str], T]) -> Parse[T]:
    """What a parser of texts makes of it."""

    def read(value: Found, where: str) -> T:
        try:
            return parse(str(value))
        except AliquotError as error:
            raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error

    return read


def scaled(scale: int) -> Parse[int]:
    """A number from 0 with decimals, times this; exact."""

    def read(value: Found, where: str) -> int:
        found: Fraction = parsed(parse_quantity)(str(value).removesuffix("%"), where) * scale
        if found < 0 or found.denominator != 1:
            raise ConfigError(f"{where}: {value} is negative or has too many decimals", hint="write fewer decimals")
        return found.numerator

    return read


def seconds(value: Found, where: str) -> int:
    """A duration: `5m`."""
    found_ms = duration_ms(value, where)
    if found_ms % 1000:
        raise ConfigError(f"{where}: {value} is not a whole number of seconds", hint="write 1s or more")
    return found_ms // 1000


duration_ms = parsed(parse_duration_ms)
whole = number(0, (1 << 31) - 1)
milli = parsed(parse_milli)
size = parsed(parse_bytes)
percent = scaled(10)
money = scaled(10**6)


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key
