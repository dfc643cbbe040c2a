"""Every kind of fact is applied by exactly one subject, and is what a journal can hold."""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.coordinator.core.evolve import SUBJECTS
from aliquot.coordinator.core.values.fact import Fact


def kinds(of: type[Fact]) -> Iterator[type[Fact]]:
    for kind in of.__subclasses__():
        if kind.__module__.startswith("aliquot."):
            yield kind
        yield from kinds(kind)


def test_each_fact_is_applied_by_one_subject() -> None:
    applied = [kind for subject in SUBJECTS for kind in subject.apply]
    assert len(applied) == len(set(applied))
    assert set(kinds(Fact)) == set(applied)
