"""Suggestions for requests that can't be read. Nothing here decides what is accepted."""

from __future__ import annotations

import re
from collections.abc import Collection
from fractions import Fraction
from typing import Final

from aliquot.common import catalog, limits
from aliquot.common.errors import QuantityError
from aliquot.common.quantity import format_bytes, format_milli, parse_bytes, suggest_suffix
from aliquot.common.text import nearest

# Profiles of devices on the market, for suggestions only: a profile that is missing here is accepted too.
_MIG_MEMORY_GB: Final = {
    1: (5, 6, 10, 12, 18, 20, 23, 35, 45),
    2: (10, 12, 20, 35, 45),
    3: (20, 40, 71, 90),
    4: (20, 24, 40, 71, 90),
    7: (40, 80, 141, 180),
}
_MIG_PROFILES: Final = tuple(f"{g}g.{gb}gb" for g, sizes in _MIG_MEMORY_GB.items() for gb in sizes)
_GPU_WORDS: Final = frozenset({"gpu", "gpus", "card", "cards", "device", "devices"})
_AMOUNT: Final = "an amount, such as 1, 0.25 or 10Gi"
_MAX_PARTS: Final = 8

Advice = tuple[str, str | None]
"""What was expected, and what was probably meant."""


def no_number(token: str) -> Advice:
    """For a token that stands where an amount should begin."""
    if re.fullmatch(r"[+-]?(?:nan|inf|infinity)", token, re.IGNORECASE):
        return "a finite amount", None
    if token[:1] in ("-", "+"):
        return "an amount above zero, without a sign", token.lstrip("+-") or None
    known = _known_word(token)
    return ("an amount before the name", f"1({known})") if known else (_AMOUNT, None)


def suffix(number: str, written: str) -> Advice:
    """For a number followed by something other than a memory suffix."""
    if written == "%":
        return "a share as a decimal", _percent(number)
    if written == "m":
        is_part = number.isdigit() and 0 < int(number) < limits.WHOLE_SHARE_MILLI
        part = f"{format_milli(int(number))}, " if is_part else ""
        return "a share as a decimal, or memory in M or Mi", f"{part}{number}M or {number}Mi"
    if re.fullmatch(r"[eE][+-]?[0-9]+", written):
        return "memory with a suffix instead of an exponent", _without_exponent(number + written)
    if re.fullmatch(r"[gG][0-9].*", written):
        return "a MIG profile, such as 1g.10gb", mig_profile(number + written)
    meant = suggest_suffix(written)
    if meant:
        alternatives = " or ".join(number + each for each in meant)
        return "memory in Kubernetes quantities (G is 10^9 bytes, Gi is 2^30)", alternatives
    if written.lower() in _GPU_WORDS:
        return "a number of GPUs without a word", number
    known = _known_word(written) or _known_word(written.lstrip("xX"))
    if known:
        return "models and vendors in brackets", f"{number}({known})"
    if written in ("x", "X"):
        return "a share, memory or a MIG profile after x", None
    return "a share such as 0.5, or memory with a suffix such as 10Gi or 8G", None


def mig_profile(written: str) -> str | None:
    """The most similar profile; None when nothing is similar enough."""
    if len(written) < len("1g.5gb") - 1:
        return None
    return next(iter(nearest(written.lower(), _MIG_PROFILES)), None)


def equal_parts(share: Fraction) -> str | None:
    """For more than one GPU and not a whole number: equal parts of the same sum, or the next whole number."""
    least = -(-share // limits.WHOLE_SHARE_MILLI)
    for parts in range(least, _MAX_PARTS + 1):
        each = share / parts
        if each.denominator == 1:
            return f"{parts}x{format_milli(int(each))}"
    return str(least) if least <= limits.MAX_SLICES_PER_REQUEST else None


def fraction(written: str) -> str | None:
    """`1/4` as a decimal, cut to thousandths; None where it is no part of one."""
    part, _, whole = written.partition("/")
    share = Fraction(int(part) * limits.WHOLE_SHARE_MILLI, int(whole)) if int(whole) else Fraction(0)
    return format_milli(int(share)) if 1 <= share <= limits.WHOLE_SHARE_MILLI else None


def fewer_per_slice(count: int, share: Fraction) -> str | None:
    """`2x3` probably means six whole GPUs."""
    whole, rest = divmod(share, limits.WHOLE_SHARE_MILLI)
    return str(whole * count) if not rest and whole * count <= limits.MAX_SLICES_PER_REQUEST else None


def thousandths(share: Fraction) -> str:
    """The share cut to thousandths."""
    return format_milli(int(share))


def strangers(vendors: Collection[str], models: tuple[tuple[str, ...], ...]) -> str:
    """Says which of the models are another vendor's; empty when none is."""
    if not vendors:
        return ""
    wrong = [(name, catalog.vendor_of(name)) for names in models for name in names]
    return ", ".join(f"{name} is {other}" for name, other in wrong if other not in (None, *vendors))


def _known_word(word: str) -> str | None:
    vendor = catalog.parse_vendor(word)
    if vendor is not None:
        return vendor
    name = catalog.canonical_name(word)
    return name if catalog.vendor_of(name) is not None else None


def _percent(number: str) -> str | None:
    percent = Fraction(number) if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", number) else Fraction(0)
    return format_milli(int(percent * 10)) if (percent * 10).denominator == 1 and 0 < percent <= 100 else None


def _without_exponent(written: str) -> str | None:
    try:
        memory_bytes = parse_bytes(written)
    except QuantityError:
        return None
    return format_bytes(memory_bytes, bare=False) if 0 < memory_bytes <= limits.MAX_SLICE_MEMORY_BYTES else None
