"""Label selectors as Kubernetes writes them in a query: `app=x,tier in (a, b),!canary`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aliquot.common.errors import AliquotError

_CHARS_MAX: Final = 4096
_SPLIT: Final = re.compile(r",(?![^(]*\))")
_NAME: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE: Final = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?)?"
_AMONG: Final = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL: Final = re.compile(rf"({_NAME})\s*(==|=|!=)\s*({_VALUE})")
_THERE: Final = re.compile(rf"(!?)\s*({_NAME})")
_ONE_VALUE: Final = re.compile(_VALUE)


class SelectorError(AliquotError):
    """A selector that can't be read, or that names what there is not."""

    reason = "SELECTOR"


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on one label. `values` None: only whether it is there counts."""

    name: str
    values: tuple[str, ...] | None
    wanted: bool

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether labels meet it; a label that is not there is among no values."""
        value = labels.get(self.name)
        found = value is not None if self.values is None else value in self.values
        return found is self.wanted


@dataclass(frozen=True, slots=True)
class Selector:
    """All of its terms must match; none: everything does."""

    terms: tuple[Term, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether it chooses what has these labels."""
        return all(term.matches(labels) for term in self.terms)

    @property
    def equalities(self) -> dict[str, str]:
        """The labels that it sets to one value."""
        return {
            term.name: term.values[0] for term in self.terms if term.wanted and term.values and len(term.values) == 1
        }

    def only(self, names: tuple[str, ...]) -> Selector:
        """Itself. Raises SelectorError where it names another label."""
        for term in self.terms:
            if term.name not in names:
                raise SelectorError(f"there is no label {term.name}", hint=f"labels are {', '.join(names)}")
        return self


def parse_selector(text: str) -> Selector:
    """Read one. Raises SelectorError."""
    if len(text) > _CHARS_MAX:
        raise SelectorError(f"a selector of {len(text)} characters; at most {_CHARS_MAX}")
    terms = [term.strip() for term in _SPLIT.split(text)]
    return Selector(tuple(_term(term) for term in terms if term))


def _term(text: str) -> Term:
    if found := _AMONG.fullmatch(text):
        values = tuple(value.strip() for value in found[3].split(","))
        if all(_ONE_VALUE.fullmatch(value) for value in values):
            return Term(found[1], values, wanted=found[2] == "in")
    elif found := _EQUAL.fullmatch(text):
        return Term(found[1], (found[3],), wanted=found[2] != "!=")
    elif found := _THERE.fullmatch(text):
        return Term(found[2], None, wanted=not found[1])
    raise SelectorError(f"{text[:80]!r} is no selector", hint="such as app=web,tier in (a,b),!canary")
