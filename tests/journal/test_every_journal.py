"""What the writer relies on, of each journal that needs no server: order, epochs, what is read back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.errors import NotLeader
from aliquot.coordinator.writing.journal.base import NO_DIGEST, Group, Journal
from aliquot.coordinator.writing.journal.memory import MemoryJournal
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from tests.journal.facts import Story


@pytest.fixture(params=["memory", "sqlite"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Journal]:
    made: dict[str, Callable[[], Journal]] = {
        "memory": MemoryJournal,
        "sqlite": lambda: SqliteJournal(tmp_path / "j.db"),
    }
    journal = made[request.param]()
    journal.open()
    yield journal
    journal.close()


def told(journal: Journal) -> Story:
    """Three groups: of two facts or more, and of one lease each."""
    assert journal.raise_leader_epoch() == 1
    story = Story(journal)
    story.begin()
    story.lease(1)
    story.lease(2)
    return story


def test_groups_are_read_back_in_order_and_chained(journal: Journal) -> None:
    assert journal.last_seq == 0
    assert list(journal.groups(0)) == []
    story = told(journal)
    groups = list(journal.groups(0))
    assert journal.last_seq == story.state.seq == groups[-1].group.last_seq
    assert [read.previous for read in groups] == [NO_DIGEST, *(read.digest for read in groups[:-1])]
    assert [read.group.first_seq for read in groups[1:]] == [read.group.last_seq + 1 for read in groups[:-1]]
    assert state_hash(replay(journal).state) == state_hash(story.state)


def test_reading_begins_with_the_group_that_ends_after_a_fact(journal: Journal) -> None:
    told(journal)
    first, second, third = journal.groups(0)
    assert list(journal.groups(first.group.last_seq - 1)) == [first, second, third]
    assert list(journal.groups(first.group.last_seq)) == [second, third]
    assert list(journal.groups(third.group.last_seq)) == []


def test_a_group_that_leaves_a_gap_is_a_defect(journal: Journal) -> None:
    told(journal)
    facts = next(journal.groups(0)).group.facts
    for first_seq in (journal.last_seq, journal.last_seq + 2):
        with pytest.raises(AssertionError, match=f"starts at {first_seq} after {journal.last_seq}"):
            journal.commit(Group(first_seq, facts))


def test_epochs_only_rise_and_the_latest_alone_writes(journal: Journal) -> None:
    story = told(journal)
    journal.advance_leader_epoch(7)
    story.lease(3)
    assert journal.raise_leader_epoch() == 8
    story.lease(4)
    journal.recover()
    story.lease(5)
    assert len(list(journal.groups(0))) == 6


def test_the_secret_is_as_long_as_is_said_and_each_journals_own(journal: Journal) -> None:
    assert len(journal.pool_secret) == 32
    assert journal.pool_secret != MemoryJournal().pool_secret
    assert MemoryJournal(b"x" * 32).pool_secret == b"x" * 32


def test_a_journal_in_memory_takes_no_snapshots_and_drops_nothing() -> None:
    journal = MemoryJournal()
    story = told(journal)
    assert list(journal.snapshots()) == []
    assert journal.prune(story.state.seq, 100) == 0
    journal.resume_after(story.state.seq, NO_DIGEST)
    assert len(list(journal.groups(0))) == 3


def test_a_file_whose_epoch_somebody_else_raised_is_given_up(tmp_path: Path) -> None:
    ours = SqliteJournal(tmp_path / "j.db")
    ours.open()
    story = told(ours)
    theirs = SqliteJournal(tmp_path / "j.db")
    theirs.open()
    assert theirs.raise_leader_epoch(at_least=5) == 5
    assert theirs.raise_leader_epoch(at_least=3) == 6
    assert theirs.identity() == (ours.pool_secret, 6)
    with pytest.raises(NotLeader):
        ours.advance_leader_epoch(9)
    with pytest.raises(NotLeader):
        story.lease(3)
    with pytest.raises(NotLeader):
        ours.recover()
    assert theirs.identity() == (ours.pool_secret, 6)
    theirs.close()
    ours.close()


def test_old_groups_are_dropped_a_few_at_a_time(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "j.db")
    journal.open()
    story = told(journal)
    story.lease(3)
    _, second, third, fourth = journal.groups(0)
    up_to = third.group.last_seq
    assert [journal.prune(up_to, 2), journal.prune(up_to, 2), journal.prune(up_to, 2)] == [2, 1, 0]
    assert list(journal.groups(0)) == [fourth]
    assert second.group.last_seq < up_to
    journal.close()
