"""Reads the request grammar by recursive descent, one function per rule of `request`'s docstring.

Written by hand, because most of it is answers to wrong input: each names the position, what was expected there, and
if possible what was probably meant (`_request_advice`). One pass over at most 256 characters, without backtracking.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, NoReturn

from aliquot.common import _request_advice as advice
from aliquot.common import catalog, limits
from aliquot.common._gpu_request import GpuRequest, canonical_models, vendor_of_profile
from aliquot.common.errors import RequestSyntaxError
from aliquot.common.quantity import BYTE_SUFFIXES, exact_decimal

# Full-width forms, the ideographic blank and comma, and the multiplication sign. One for one, so positions stay the
# same.
_ASCII_TWINS: Final = {0xFF01 + i: 0x21 + i for i in range(94)} | {0x3000: " ", 0x3001: ",", 0xD7: "x"}

_BLANKS = re.compile(r"\s*")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_TIMES = re.compile(r"\s*[xX]\s*(?=[0-9.]|[vV][iI][rR][0-9])")
_MIG = re.compile(r"[0-9]+[gG]\.[A-Za-z0-9]*(?:[+-][A-Za-z.]+)?|[vV][iI][rR][0-9][0-9A-Za-z_]*")
_SUFFIX = re.compile(r"[A-Za-z%][A-Za-z0-9.+%-]*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\s+[A-Za-z0-9][A-Za-z0-9._-]*)*")
_A_PROFILE: Final = "a MIG profile, such as 1g.10gb"
_FRACTION = re.compile(r"[0-9]{1,4}\s*/\s*[0-9]{1,4}")
_DECIMAL_COMMA = re.compile(r"0,([0-9]{1,3})(?=\s*(?:[,()]|$))")
_TOKEN = re.compile(r"[^\s(),|>]+|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Amount:
    """One amount and its position: thousandths, bytes or a MIG profile, times a count if one is written."""

    kind: Literal["compute", "memory", "mig"]
    count: int | None
    value: int
    profile: str | None
    start: int
    end: int


@dataclass(slots=True)
class _Where:
    """The content of a pair of brackets."""

    vendors: tuple[str, ...] = ()
    models: tuple[tuple[str, ...], ...] = ()


def parse(text: str) -> GpuRequest:
    """Reads a text of at most 256 characters. Raises `RequestSyntaxError`."""
    return _Parser(text).request()


class _Parser:
    def __init__(self, text: str) -> None:
        self._original = text
        self._text = text.translate(_ASCII_TWINS)
        self._at = 0

    # ---------------------------------------------------------------------------------------------------------- amounts

    def request(self) -> GpuRequest:
        amounts: list[_Amount] = []
        where: _Where | None = None
        while True:
            amounts.append(self._amount())
            self._skip(_BLANKS)
            if self._peek() == "(":
                if where is not None:
                    self._fail_here("models and vendor only once, after one of the amounts")
                where = self._where()
                self._skip(_BLANKS)
            if self._at == len(self._text):
                return self._combined(amounts, where or _Where())
            if self._peek() == "/":
                self._fraction()
            if self._peek() != ",":
                self._fail_here("a comma, an opening bracket or the end")
            self._at += 1

    def _fraction(self) -> NoReturn:
        """`1/4` is what people say, and is no decimal."""
        found = _FRACTION.search(self._text, 0)
        start, end = found.span() if found else (self._at, self._at + 1)
        self._fail(start, end, "a share as a decimal", advice.fraction(found[0]) if found else None)

    def _amount(self) -> _Amount:
        self._skip(_BLANKS)
        start = self._at
        count = None
        if not _MIG.match(self._text, start):
            number = self._number()
            if not self._skip(_TIMES):
                return self._share_or_memory(number, None, start)
            count = self._count(number, start)
        if _MIG.match(self._text, self._at):
            return self._mig(count, start)
        return self._share_or_memory(self._number(), count, start)

    def _number(self) -> str:
        number = self._skip(_NUMBER)
        if not number:
            expected, suggestion = advice.no_number(self._token())
            self._fail_here(expected, suggestion)
        return number

    def _count(self, number: str, start: int) -> int:
        end = start + len(number)
        if "." in number:
            self._fail(start, end, "a whole number of slices before x")
        return self._bounded_count(int(number), start, end)

    def _mig(self, count: int | None, start: int) -> _Amount:
        at = self._at
        profile = self._skip(_MIG).lower()
        if vendor_of_profile(profile) is None:
            example = "a vNPU template, such as vir05_1c_16g" if profile.startswith("vir") else _A_PROFILE
            self._fail(at, self._at, example, advice.mig_profile(profile))
        return _Amount("mig", count, limits.WHOLE_SHARE_MILLI, profile, start, self._at)

    def _share_or_memory(self, number: str, count: int | None, start: int) -> _Amount:
        """The amount that the number just read begins: a suffix makes it memory."""
        number_end = self._at
        number_at = number_end - len(number)
        self._skip(_BLANKS)
        suffix = self._skip(_SUFFIX)
        if not suffix:
            self._at = number_end
            share, whole = self._share(number, number_at, count)
            return _Amount("compute", whole if count is None else count, share, None, start, number_end)
        if suffix not in BYTE_SUFFIXES:
            expected, suggestion = advice.suffix(number, suffix)
            self._fail(number_at, self._at, expected, suggestion)
        return _Amount("memory", count, self._memory(number, suffix, number_at), None, start, self._at)

    def _share(self, number: str, start: int, count: int | None) -> tuple[int, int | None]:
        """Thousandths per slice, and the count if the number is of whole GPUs."""
        end = start + len(number)
        share = exact_decimal(number) * limits.WHOLE_SHARE_MILLI
        if share == 0:
            comma = _DECIMAL_COMMA.match(self._text, start)
            if comma:  # 0,5: a comma parts a share from its memory here
                self._fail(start, comma.end(), "a point before decimals", f"0.{comma[1]}")
            self._fail(start, end, "more than zero", "0.001" if "." in number else "1")
        if count is not None and share > limits.WHOLE_SHARE_MILLI:
            self._fail(start, end, "at most 1 GPU per slice after x", advice.fewer_per_slice(count, share))
        if share >= limits.WHOLE_SHARE_MILLI:
            if share % limits.WHOLE_SHARE_MILLI:
                self._fail(start, end, "whole GPUs, or one part below 1", advice.equal_parts(share))
            whole = self._bounded_count(int(share) // limits.WHOLE_SHARE_MILLI, start, end)
            return limits.WHOLE_SHARE_MILLI, whole
        if share < 1:
            self._fail(start, end, "at least one thousandth of a GPU", "0.001")
        if share.denominator != 1:
            self._fail(start, end, "at most three decimals: shares are thousandths", advice.thousandths(share))
        return int(share), None

    def _memory(self, number: str, suffix: str, start: int) -> int:
        memory = exact_decimal(number) * BYTE_SUFFIXES[suffix]
        if memory == 0:
            self._fail(start, self._at, "more than zero memory")
        if memory > limits.MAX_SLICE_MEMORY_BYTES:
            self._fail(start, self._at, "at most 16Ti per slice")
        if memory.denominator != 1:
            self._fail(start, self._at, "a whole number of bytes")
        return int(memory)

    def _bounded_count(self, count: int, start: int, end: int) -> int:
        if count == 0:
            self._fail(start, end, "more than zero", "1")
        if count > limits.MAX_SLICES_PER_REQUEST:
            self._fail(start, end, f"at most {limits.MAX_SLICES_PER_REQUEST} slices")
        return count

    # --------------------------------------------------------------------------------------------------------- brackets

    def _where(self) -> _Where:
        self._at += 1
        where = _Where()
        while True:
            self._skip(_BLANKS)
            self._item(where)
            self._skip(_BLANKS)
            if self._peek() == ")":
                self._at += 1
                return where
            if self._peek() != ",":
                self._fail_here("a comma, |, > or the closing bracket")
            self._at += 1

    def _item(self, where: _Where) -> None:
        start = self._at
        name = self._name("a model or a vendor, such as A100 or amd")
        if name.lower() in catalog.NEUTRAL_WORDS:
            return
        vendor = catalog.parse_vendor(name)
        if vendor is None:
            models = self._models(name, start)
            if where.models:
                self._fail(start, self._at, "models only once: separate alternatives with | or >")
            where.models = models
        elif not where.vendors:
            where.vendors = self._vendors(vendor)
            if self._peek() == ":" and len(where.vendors) == 1:
                self._of_vendor(where)
        else:
            self._fail(start, self._at, "vendors only once; > between them, in order of preference")
        strangers = advice.strangers(where.vendors, where.models)
        if strangers:
            self._fail(start, self._at, f"models of {' or '.join(where.vendors)}; {strangers}")

    def _vendors(self, first: str) -> tuple[str, ...]:
        """The vendors from the first one on, in order of preference."""
        vendors = [first]
        self._skip(_BLANKS)
        while self._peek() in (">", "|"):
            if self._peek() == "|":
                self._fail_here("> between vendors: in order of preference")
            self._at += 1
            self._skip(_BLANKS)
            at = self._at
            vendor = catalog.parse_vendor(self._name("a vendor, such as amd"))
            if vendor is None:
                self._fail(at, self._at, "a vendor, such as amd; models stand apart, after a comma")
            vendors.append(vendor)
            self._skip(_BLANKS)
        return tuple(dict.fromkeys(vendors))

    def _of_vendor(self, where: _Where) -> None:
        """The models after `vendor:`."""
        self._at += 1
        self._skip(_BLANKS)
        start = self._at
        models = self._models(self._name("a model of that vendor, such as MI300X after amd:"), start)
        if where.models:
            self._fail(start, self._at, "models only once: separate alternatives with | or >")
        where.models = models

    def _models(self, first: str, first_at: int) -> tuple[tuple[str, ...], ...]:
        preferences = [[self._model(first, first_at)]]
        while True:
            self._skip(_BLANKS)
            separator = self._peek()
            if separator not in ("|", ">"):
                return canonical_models(preferences)
            self._at += 1
            self._skip(_BLANKS)
            at = self._at
            model = self._model(self._name("a model, such as A100"), at)
            if separator == "|":
                preferences[-1].append(model)
            else:
                preferences.append([model])
            if max(len(preferences), len(preferences[-1])) > limits.MAX_MODELS_PER_SET:
                self._fail(at, self._at, f"at most {limits.MAX_MODELS_PER_SET} alternatives")

    def _model(self, name: str, start: int) -> str:
        end = start + len(name)
        if len(name) > limits.MAX_MODEL_CHARS:
            self._fail(start, end, f"a model's name of at most {limits.MAX_MODEL_CHARS} characters")
        mistake = catalog.mistaken_model(name)
        if mistake is not None:
            self._fail(start, end, mistake.expected, mistake.suggestion)
        return catalog.canonical_name(name)

    def _name(self, expected: str) -> str:
        name = self._skip(_NAME)
        if not name:
            self._fail_here(expected)
        return name

    # --------------------------------------------------------------------------------------------------- the whole text

    def _combined(self, amounts: list[_Amount], where: _Where) -> GpuRequest:
        by_kind: dict[str, _Amount] = {}
        for amount in amounts:
            self._check_beside(amount, by_kind)
            by_kind[amount.kind] = amount
        compute, memory = by_kind.get("compute") or by_kind.get("mig"), by_kind.get("memory")
        profile = compute.profile if compute else None
        owner = vendor_of_profile(profile) if profile is not None else None
        if owner is not None and where.vendors not in ((), (owner,)):
            whose = "no MIG profile here: MIG is" if owner == "nvidia" else "no vNPU template here: they are"
            self._fail(amounts[0].start, amounts[0].end, f"{whose} {catalog.vendor_title(owner)}'s")
        return GpuRequest(
            count=next((amount.count for amount in amounts if amount.count is not None), 1),
            share_milli=compute.value if compute else None,
            memory_bytes=memory.value if memory else None,
            models=where.models,
            vendor=where.vendors[0] if len(where.vendors) == 1 else None,
            mig_profile=profile,
            vendors=where.vendors if len(where.vendors) > 1 else (),
        )

    def _check_beside(self, amount: _Amount, others: dict[str, _Amount]) -> None:
        """Whether this amount may stand beside those before it."""
        if others and "mig" in (amount.kind, *others):
            self._fail(amount.start, amount.end, "a MIG profile alone: it states its compute and its memory")
        other = others.get(amount.kind)
        if other is not None and amount.kind == "memory":
            self._fail(amount.start, amount.end, "memory only once, per slice")
        if other is not None:
            # In `8,0.5` the whole number is the one that lacks its suffix.
            wrong = other if other.count and not amount.count else amount
            suggestion = f"{wrong.count}G or {wrong.count}Gi" if wrong.count else None
            self._fail(wrong.start, wrong.end, "memory with a suffix beside the share", suggestion)
        if amount.count is not None and any(each.count is not None for each in others.values()):
            self._fail(amount.start, amount.end, "the count only once")

    # ------------------------------------------------------------------------------------------------------- characters

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _token(self) -> str:
        match = _TOKEN.match(self._text, self._at)
        return match[0] if match else ""

    def _skip(self, pattern: re.Pattern[str]) -> str:
        """Skips what the pattern matches here, which may be nothing, and returns it."""
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _fail_here(self, expected: str, suggestion: str | None = None) -> NoReturn:
        self._fail(self._at, self._at + len(self._token()), expected, suggestion)

    def _fail(self, start: int, end: int, expected: str, suggestion: str | None = None) -> NoReturn:
        raise RequestSyntaxError(self._original, start, end, expected, suggestion)
