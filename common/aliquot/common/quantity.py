"""Kubernetes quantities in exact arithmetic: `10Gi`, `8G` (8·10⁹), `1.5Gi`, `500m`, `1e9`; a bare number is base units.

Bytes and thousandths go into a ledger, so floats are never used. Where Kubernetes silently rounds a fraction up,
`parse_bytes` and `parse_milli` refuse it unless told to round.

Source of the syntax: the Kubernetes API reference of `resource.Quantity`. `K` is not one of its suffixes
(`k` and `Ki` are), and `1E` is an exa while `1E3` is an exponent.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from aliquot.common.errors import QuantityError

BINARY_SUFFIXES: Final = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}
DECIMAL_SUFFIXES: Final = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
BYTE_SUFFIXES: Final = {**BINARY_SUFFIXES, **DECIMAL_SUFFIXES}
_SMALL_SUFFIXES: Final = {"m": 10**3, "u": 10**6, "n": 10**9}

MAX_QUANTITY_CHARS: Final = 64
_MAX_EXPONENT: Final = 30

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
    r"(?:[eE](?P<exponent>[+-]?[0-9]{1,4})|(?P<suffix>[KMGTPE]i|[kMGTPE]|[mun]))?"
)


class ByteSize(int):
    """Bytes that settings state as a quantity: `max_message = "4Mi"`."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_bytes(self)


def parse_quantity(text: str) -> Fraction:
    """Reads a quantity as the exact number it states.

    Raises `QuantityError` for anything that Kubernetes would not read, for more than 64 characters and for
    exponents beyond ±30.
    """
    if len(text) > MAX_QUANTITY_CHARS:
        raise QuantityError(f"a quantity of {len(text)} characters; at most {MAX_QUANTITY_CHARS} are read")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{text!r} is not a quantity", hint=_hint(text))
    value = exact_decimal(match["number"])
    suffix, exponent = match["suffix"], int(match["exponent"] or 0)
    if abs(exponent) > _MAX_EXPONENT:
        raise QuantityError(f"{text!r} has an exponent beyond ±{_MAX_EXPONENT}")
    if exponent:
        value *= Fraction(10) ** exponent
    elif suffix in _SMALL_SUFFIXES:
        value /= _SMALL_SUFFIXES[suffix]
    elif suffix:
        value *= BYTE_SUFFIXES[suffix]
    return -value if match["sign"] == "-" else value


def exact_decimal(number: str) -> Fraction:
    """The exact value of ASCII digits with at most one point among them: `10`, `1.5`, `.5`, `5.`."""
    whole, _, part = number.partition(".")
    return Fraction(int(whole + part), 10 ** len(part))


def parse_bytes(text: str, *, round_up: bool = False) -> int:
    """Reads an amount of bytes, zero or more.

    A fraction of a byte is refused; with `round_up` it is rounded up, as Kubernetes does (it writes sizes such as
    `100500m`). Raises `QuantityError`.
    """
    return _whole(parse_quantity(text), text, "byte", round_up=round_up)


def parse_milli(text: str, *, round_up: bool = False) -> int:
    """Reads an amount such as CPU (`500m`, `0.5`, `2`) as thousandths, zero or more. Raises `QuantityError`."""
    return _whole(parse_quantity(text) * 1000, text, "thousandth", round_up=round_up)


def format_bytes(value_bytes: int, *, bare: bool = True) -> str:
    """Writes bytes as the shortest quantity that reads back exactly: `10Gi`, `8G`, `1.5Gi`, `1000`.

    Of equally short ones a whole number is preferred, then a binary suffix. With `bare=False` there is always a suffix
    (`500` becomes `0.5k`), for places where a bare number means something else. Raises `ValueError` below zero.
    """
    if value_bytes < 0:
        raise ValueError(f"negative bytes: {value_bytes}")
    # `int`, because a ByteSize formats itself with this function.
    written = [str(int(value_bytes))] if bare else []
    written += [_decimal(Fraction(value_bytes, unit)) + suffix for suffix, unit in BYTE_SUFFIXES.items()]
    return min(written, key=lambda text: (len(text), "." in text))


def human_bytes(value_bytes: int) -> str:
    """Writes bytes for people, in binary units and to the nearest tenth: `79.3Gi`, `512Mi`, `17B`. Not for
    reading back.
    """
    sign, size = ("-", -value_bytes) if value_bytes < 0 else ("", value_bytes)
    if size < 1 << 10:
        return f"{sign}{size}B"
    tenths_by_suffix = {suffix: (size * 10 + unit // 2) // unit for suffix, unit in BINARY_SUFFIXES.items()}
    # Chosen after rounding, so that nothing is ever shown as 1024.0Mi.
    suffix = next((suffix for suffix, tenths in tenths_by_suffix.items() if tenths < 10240), "Ei")
    whole, tenth = divmod(tenths_by_suffix[suffix], 10)
    return f"{sign}{whole}.{tenth}{suffix}" if tenth else f"{sign}{whole}{suffix}"


def format_milli(value_milli: int) -> str:
    """Writes thousandths as a plain decimal: 250 is `0.25`, 2000 is `2`. Raises `ValueError` below zero."""
    if value_milli < 0:
        raise ValueError(f"negative thousandths: {value_milli}")
    return _decimal(Fraction(value_milli, 1000))


def _whole(value: Fraction, text: str, unit: str, *, round_up: bool) -> int:
    if value < 0:
        raise QuantityError(f"{text!r} is negative", hint="write an amount of zero or more")
    if value.denominator != 1 and not round_up:
        raise QuantityError(
            f"{text!r} is not a whole number of {unit}s", hint="write an amount without such a fraction"
        )
    return -(-value.numerator // value.denominator)


def _decimal(value: Fraction) -> str:
    """An exact decimal; every denominator here is a product of twos and fives, so it always ends."""
    whole, rest = divmod(value.numerator, value.denominator)
    if not rest:
        return str(whole)
    places = max(_power_of(value.denominator, 2), _power_of(value.denominator, 5))
    return f"{whole}.{rest * 10**places // value.denominator:0{places}d}"


def _power_of(number: int, prime: int) -> int:
    power = 0
    while number % prime == 0:
        number //= prime
        power += 1
    return power


def suggest_suffix(unit: str) -> tuple[str, ...]:
    """The suffixes that a wrong unit may stand for: `GB` gives `G` and `Gi`, `gib` gives `Gi`; none when unclear."""
    folded = unit.lower()
    stem = folded.removesuffix("b")
    if len(stem) == 1 and stem in "kmgtpe":
        return ("k", "Ki") if stem == "k" else (stem.upper(), stem.upper() + "i")
    if len(stem) == 2 and stem[0] in "kmgtpe" and stem[1] == "i":
        return (stem[0].upper() + "i",)
    return ()


def _hint(text: str) -> str:
    match = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]+)\s*", text)
    suffixes = suggest_suffix(match[2]) if match else ()
    if match and suffixes:
        return "write " + " or ".join(match[1] + suffix for suffix in suffixes)
    return "write a number and perhaps a suffix, such as 10Gi, 8G, 500m or 1e9"
