"""From a journal to a State: the newest snapshot that can be read, then every fact after it, through the same
`evolve`.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

from aliquot.coordinator.core.evolve import evolve
from aliquot.coordinator.core.snapshot import from_snapshot
from aliquot.coordinator.core.state import CoreConfig, State
from aliquot.coordinator.errors import JournalCorrupt
from aliquot.coordinator.journal.base import NO_DIGEST, Journal

log = logging.getLogger(__name__)

_PROGRESS_EVERY_FACTS = 100_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """A State that is exactly what the journal says."""

    state: State
    digest: bytes
    """Of the last group."""
    snapshot_seq: int
    """Where the replay of facts began."""
    facts: int
    took_ms: int


def replay(journal: Journal, config: CoreConfig) -> Replayed:
    """Read all of it. Raises JournalCorrupt or JournalTooNew. Takes long: keep it off the event loop."""
    started = time.monotonic_ns()
    state, digest = State.fresh(config), NO_DIGEST
    stored = next(journal.snapshots(), None)
    if stored is not None:
        state, digest = from_snapshot(stored.snapshot, config), stored.digest
        log.info("snapshot of fact %d read: %d leases, %d nodes", state.seq, len(state.leases), len(state.nodes))
    snapshot_seq = state.seq
    facts = 0
    for read in journal.groups(state.seq):
        if read.group.first_seq != state.seq + 1:
            raise JournalCorrupt(
                f"facts {state.seq + 1} to {read.group.first_seq - 1} are missing",
                hint="they were pruned, and the snapshot that held them can't be read: restore a backup of the journal "
                "together with its snapshots folder",
            )
        if read.previous != digest:
            raise JournalCorrupt(
                f"the record that starts with fact {read.group.first_seq} does not follow the one before it",
                hint="records of two journals are mixed up here: restore a backup of the journal together with its "
                "snapshots folder",
            )
        for fact in read.group.facts:
            evolve(state, fact)
        digest = read.digest
        before, facts = facts, facts + len(read.group.facts)
        if before // _PROGRESS_EVERY_FACTS != facts // _PROGRESS_EVERY_FACTS:
            log.info("replayed %d facts, up to number %d of %d", facts, state.seq, journal.last_seq)
    state.take_touched()
    return Replayed(state, digest, snapshot_seq, facts, (time.monotonic_ns() - started) // 1_000_000)
