"""What every journal promises, whatever stores it: memory, SQLite, PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.errors import JournalUnavailable, NotLeader
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.journal.memory import MemoryJournal
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from tests.journal.facts import Story

Make = Callable[[], Journal]


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Makes handles on one and the same journal, as several coordinators would."""
    made: list[Journal] = []
    memory = MemoryJournal()
    conninfo = request.getfixturevalue("database") if request.param == "postgres" else ""

    def one() -> Journal:
        journal: Journal
        if request.param == "memory":
            journal = memory
        elif request.param == "sqlite":
            journal = SqliteJournal(tmp_path / "j.db")
        else:
            journal = PostgresJournal(conninfo)
        made.append(journal)
        return journal

    yield one
    for journal in made:
        journal.close()


def begun(journal: Journal, leases: int = 5) -> Story:
    journal.open()
    story = Story(journal)
    story.begin(journal.raise_leader_epoch())
    for number in range(leases):
        story.lease(number)
    return story


def test_what_was_committed_is_read_back(make: Make) -> None:
    story = begun(make())
    again = replay(story.journal)
    assert state_hash(again.state) == state_hash(story.state)
    assert again.state.seq == story.journal.last_seq


def test_writing_goes_on_after_a_restart(make: Make) -> None:
    story = begun(make())
    story.journal.close()
    second = make()
    second.open()
    epoch = second.raise_leader_epoch()
    assert epoch == 2
    again = replay(second)
    second.resume_after(again.state.seq, again.digest)
    story.journal = second
    story.lease(99)
    assert state_hash(replay(second).state) == state_hash(story.state)


def test_groups_are_given_from_any_point_on(make: Make) -> None:
    story = begun(make(), leases=8)
    after = story.state.seq - 3
    groups = list(story.journal.groups(after))
    assert groups[0].group.first_seq <= after + 1
    assert groups[-1].group.last_seq == story.state.seq
    assert not list(story.journal.groups(story.state.seq))


def test_it_goes_on_after_recovering(make: Make) -> None:
    story = begun(make())
    story.journal.recover()
    again = replay(story.journal)
    story.journal.resume_after(again.state.seq, again.digest)
    story.lease(50)
    assert state_hash(replay(story.journal).state) == state_hash(story.state)


def test_the_secret_stays(make: Make) -> None:
    first = make()
    first.open()
    secret = first.pool_secret
    second = make()
    second.open()
    assert second.pool_secret == secret
    assert len(secret) == 32


def test_a_stale_leader_can_not_commit(make: Make) -> None:
    story = begun(make())
    before = state_hash(replay(story.journal).state)
    usurper = make()
    if usurper is story.journal:
        pytest.skip("memory has one handle")
    usurper.open()
    usurper.raise_leader_epoch()
    with pytest.raises((NotLeader, JournalUnavailable)):  # PostgreSQL's session of the old leader is ended
        story.lease(50)
    with pytest.raises(NotLeader):
        story.journal.recover()
    assert state_hash(replay(usurper).state) == before


def test_a_leader_goes_on_in_a_higher_epoch_and_its_successor_above_that(make: Make) -> None:
    story = begun(make())
    story.journal.advance_leader_epoch(40)
    story.journal.advance_leader_epoch(40)  # asked again after an answer that was lost
    story.lease(50)
    story.journal.recover()
    story.journal.close()
    second = make()
    second.open()
    assert second.raise_leader_epoch() == 41


def test_one_that_was_replaced_can_not_go_on_in_a_higher_epoch(make: Make) -> None:
    story = begun(make())
    usurper = make()
    if usurper is story.journal:
        pytest.skip("memory has one handle")
    usurper.open()
    epoch = usurper.raise_leader_epoch()
    with pytest.raises((NotLeader, JournalUnavailable)):  # PostgreSQL's session of the old leader is ended
        story.journal.advance_leader_epoch(epoch + 40)
    usurper.advance_leader_epoch(epoch + 1)
