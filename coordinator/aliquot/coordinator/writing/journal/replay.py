"""From a journal to a State: the newest snapshot that can be read, then every fact after it, through the same
`evolve`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import force_setattr

from aliquot.coordinator.core.books.leases.facts import LeaseQueued
from aliquot.coordinator.core.evolve import evolve
from aliquot.coordinator.core.evolve.snapshot import from_snapshot
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.types import RequestSpec
from aliquot.coordinator.errors import JournalCorrupt
from aliquot.coordinator.writing.journal.base import NO_DIGEST, Journal, StoredGroup, StoredSnapshot

log = logging.getLogger(__name__)

_PROGRESS_EVERY_FACTS = 100_000
_REQUESTS_MAX = 10_000
"""Different ones that are remembered: those who follow for months see as many as there are users and days."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """A State that is exactly what the journal says."""

    state: State
    digest: bytes
    """Of the last group."""
    snapshot_seq: int
    """Where the replay of facts began."""
    facts: int


class Replay:
    """A State that follows a journal: `restart` from the newest snapshot, then `catch_up` as often as one likes."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.state = State.fresh()
        self.digest = NO_DIGEST
        self.snapshot_seq = 0
        self._requests: dict[RequestSpec, RequestSpec] = {}

    def restart(self) -> None:
        """Begin with the newest snapshot that can be read."""
        self.start_at(next(self._journal.snapshots(), None))

    def start_at(self, stored: StoredSnapshot | None) -> None:
        """Begin with a given snapshot, or with nothing."""
        state, self.digest = State.fresh(), NO_DIGEST
        if stored is not None:
            state, self.digest = from_snapshot(stored.snapshot), stored.digest
            log.info("snapshot of fact %d read: %d leases, %d nodes", state.seq, len(state.leases), len(state.nodes))
        self.state, self.snapshot_seq = state, state.seq

    def catch_up(
        self,
        up_to: Callable[[StoredGroup], bool] = lambda _: True,
        applied: Callable[[StoredGroup], None] = lambda _: None,
    ) -> int:
        """Apply the groups that have come since, as long as `up_to` agrees, and hand each to `applied`; returns how
        many facts they hold. Raises JournalCorrupt or JournalTooNew.
        """
        state, facts = self.state, 0
        for read in self._journal.groups(state.seq):
            if not up_to(read):
                break
            self._check(read)
            for fact in read.group.facts:
                if isinstance(fact, LeaseQueued):
                    self._share_request(fact)
                evolve(state, fact)
            self.digest = read.digest
            applied(read)
            before, facts = facts, facts + len(read.group.facts)
            if before // _PROGRESS_EVERY_FACTS != facts // _PROGRESS_EVERY_FACTS:
                log.info("replayed %d facts, up to number %d of %d", facts, state.seq, self._journal.last_seq)
        state.take_touched()
        return facts

    def _share_request(self, fact: LeaseQueued) -> None:
        """Have leases that ask for the same refer to one request, as those that were asked for by calls do."""
        if len(self._requests) == _REQUESTS_MAX:
            self._requests.clear()
        force_setattr(fact, "request", self._requests.setdefault(fact.request, fact.request))

    def _check(self, read: StoredGroup) -> None:
        seq = self.state.seq
        if read.group.first_seq != seq + 1:
            raise JournalCorrupt(
                f"facts {seq + 1} to {read.group.first_seq - 1} are missing",
                hint="they were pruned, and the snapshot that held them can't be read: if a newer version wrote it, "
                "start that one; else restore a backup of the journal together with its snapshots folder",
            )
        if read.previous != self.digest:
            raise JournalCorrupt(
                f"the record that starts with fact {read.group.first_seq} does not follow the one before it",
                hint="records of two journals are mixed up here: restore a backup of the journal together with its "
                "snapshots folder",
            )


def replay(journal: Journal) -> Replayed:
    """Read all of it. Raises JournalCorrupt or JournalTooNew. Takes long: keep it off the event loop."""
    reading = Replay(journal)
    reading.restart()
    facts = reading.catch_up()
    return Replayed(reading.state, reading.digest, reading.snapshot_seq, facts)
