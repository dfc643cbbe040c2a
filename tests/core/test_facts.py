"""Every kind of fact is applied by exactly one subject, and every command and query is decided by one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.coordinator.core import decide
from aliquot.coordinator.core.commands import Command
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.deciding import subjects
from aliquot.coordinator.core.evolve import SUBJECTS
from aliquot.coordinator.core.values.fact import Fact, by_kind


def kinds(of: type[Any]) -> Iterator[type[Any]]:
    for kind in of.__subclasses__():
        # A dataclass with slots leaves behind the class that it was made of.
        if kind.__module__.startswith("aliquot.") and getattr(sys.modules[kind.__module__], kind.__name__) is kind:
            yield kind
        yield from kinds(kind)


def test_each_fact_is_applied_by_one_subject() -> None:
    applied = [kind for subject in SUBJECTS for kind in subject.apply]
    assert len(applied) == len(set(applied))
    assert set(kinds(Fact)) == set(applied)


def test_each_command_and_query_is_decided_by_one_subject() -> None:
    later = {part: list(part.load()) for part in subjects.LATER}
    tables = [*subjects.SUBJECTS, *(table for loaded in later.values() for table in loaded)]
    decided = [kind for table in tables for kind in table.commands]
    answered = [kind for table in tables for kind in table.queries]
    due = [kind for table in tables for kind in table.due]
    assert all(len(each) == len(set(each)) for each in (decided, answered, due))
    assert set(kinds(Command)) == set(decide._DECIDE) > set(decided)
    assert set(kinds(Query)) == {*decide._ANSWER, *answered}
    assert set(due) == set(subjects.LOOK)
    for part, loaded in later.items():
        assert set(part.commands) == {kind for table in loaded for kind in table.commands}
        assert set(part.queries) in ({kind for table in loaded for kind in table.queries}, set())
        assert set(part.due) == {kind for table in loaded for kind in table.due}


def test_two_functions_about_the_same_are_a_defect() -> None:
    def one(known: object, fact: Fact) -> None: ...

    def another(known: object, fact: Fact) -> None: ...

    with pytest.raises(AssertionError, match="about the same"):
        by_kind(one, another)
