"""The simulated store of a coordinator's journal: a file of records that only a sync makes durable, and its bad days.

The records are the production codec's, byte for byte. Several coordinators may open one store, as with PostgreSQL: each
commit is conditional on the leader epoch. What was written but not synced when its writer dies is lost, or a part of it
stays behind as a torn tail, which `open` must recognise and cut off.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec

from aliquot.coordinator.core.evolve.snapshot import Snapshot
from aliquot.coordinator.errors import JournalUnavailable, NotLeader
from aliquot.coordinator.writing.journal import codec
from aliquot.coordinator.writing.journal.base import NO_DIGEST, Group, StoredGroup, StoredSnapshot
from aliquot.coordinator.writing.journal.thread import JournalWorker
from tests.simulation.sim.loop import Process, SimLoop, current

SNAPSHOTS_KEPT = 2
_SNAPSHOT = msgspec.msgpack.Decoder(Snapshot)


class CrashPoint(enum.Enum):
    """Where within a commit its process dies."""

    BEFORE_WRITE = "before the write"
    AFTER_WRITE = "written, not synced"
    TORN = "half written"
    AFTER_SYNC = "synced, not told"


class Store:
    """What survives every process."""

    def __init__(self, pool_secret: bytes) -> None:
        self.pool_secret = pool_secret
        self.records: list[codec.Record] = []
        self.torn: codec.Record | None = None
        """A record of which only a part reached the disk."""
        self.leader_epoch = 0
        self.snapshots: list[tuple[bytes, bytes]] = []
        """(encoded snapshot, digest of its last group), oldest first."""
        self.pruned_to = 0
        self.full = False
        self.failing = 0
        """So many commits fail without a trace."""
        self.lying = 0
        """So many commits arrive on disk although their writer is told that they failed."""
        self.sync_us = 2_000
        self.stall_us = 0
        self.crash: CrashPoint | None = None
        self.on_crash: Callable[[Process], None] = lambda process: None
        """Ends the process whose commit has come to that point."""
        self.on_durable: Callable[[codec.Record, int], None] = lambda record, epoch: None
        self.on_prune: Callable[[int], None] = lambda seq: None
        self.commits = 0
        self.torn_tails_cut = 0

    @property
    def last_seq(self) -> int:
        """Of the last durable fact."""
        return self.records[-1].last_seq if self.records else 0

    @property
    def last_digest(self) -> bytes:
        """Of the last durable record."""
        return self.records[-1].digest if self.records else NO_DIGEST

    def append(self, record: codec.Record, epoch: int) -> None:
        """A record is durable."""
        self.records.append(record)
        self.commits += 1
        self.on_durable(record, epoch)


class SimJournal:
    """One process's way to the store. It implements `Journal`."""

    def __init__(self, store: Store, random: Random, process: Process) -> None:
        self._store = store
        self._random = random
        self._process = process
        self._epoch = 0
        self.pool_secret = store.pool_secret

    @property
    def last_seq(self) -> int:
        """Of the last durable fact."""
        return self._store.last_seq

    def open(self) -> None:
        """Cut a torn tail off."""
        torn = self._store.torn
        if torn is not None:
            assert not codec.is_intact(torn), "a torn record looks whole"
            self._store.torn = None
            self._store.torn_tails_cut += 1

    def raise_leader_epoch(self) -> int:
        """Take the next epoch."""
        if self._store.full:
            raise JournalUnavailable("no space left on device")
        self._store.leader_epoch += 1
        self._epoch = self._store.leader_epoch
        return self._epoch

    def advance_leader_epoch(self, epoch: int) -> None:
        """Go on in a higher epoch."""
        if self._epoch != self._store.leader_epoch:
            raise NotLeader("another coordinator has taken this journal over")
        self._store.leader_epoch = self._epoch = epoch

    def resume_after(self, seq: int, digest: bytes) -> None:
        """Where replay ended must be where the store ends."""
        assert (seq, digest) == (self._store.last_seq, self._store.last_digest), "replay did not end at the end"

    def commit(self, group: Group) -> None:
        """Make a group durable, or fail, or die trying."""
        store = self._store
        if self._epoch != store.leader_epoch:
            raise NotLeader("another coordinator has taken this journal over")
        record = codec.encode(group, store.last_digest)
        point, store.crash = store.crash, None
        if point in (CrashPoint.BEFORE_WRITE, CrashPoint.AFTER_WRITE):
            store.on_crash(self._process)
            return
        if point is CrashPoint.TORN:
            cut = self._random.randrange(len(record.payload))
            store.torn = codec.Record(
                record.version, record.first_seq, record.last_seq, record.previous, record.payload[:cut], record.digest
            )
            store.on_crash(self._process)
            return
        if store.full:
            raise JournalUnavailable("no space left on device")
        if store.failing:
            store.failing -= 1
            raise JournalUnavailable("input/output error")
        assert group.first_seq == store.last_seq + 1, f"a group starts at {group.first_seq} after {store.last_seq}"
        store.append(record, self._epoch)
        if point is CrashPoint.AFTER_SYNC:
            store.on_crash(self._process)
            return
        if store.lying:
            store.lying -= 1
            raise JournalUnavailable("timed out waiting for the disk")

    def recover(self) -> None:
        """A real write must work before anything goes on."""
        store = self._store
        if self._epoch != store.leader_epoch:
            raise NotLeader("another coordinator has taken this journal over")
        if store.full or store.failing:
            store.failing = max(0, store.failing - 1)
            raise JournalUnavailable("the journal still can't be written")
        self.open()

    def groups(self, after_seq: int) -> Iterator[StoredGroup]:
        """Decoded from what is on disk."""
        for record in self._store.records:
            if record.last_seq > after_seq and record.last_seq > self._store.pruned_to:
                assert codec.is_intact(record)
                yield StoredGroup(codec.decode(record), record.previous, record.digest)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        """Newest first; a damaged one is passed over."""
        for encoded, digest in reversed(self._store.snapshots):
            if encoded:
                yield StoredSnapshot(_SNAPSHOT.decode(encoded), digest)

    def prune(self, up_to_seq: int, limit: int) -> int:
        """Let go of records that the *older* snapshot holds too, so that a damaged one can be passed over."""
        store = self._store
        before = [r for r in store.records if store.pruned_to < r.last_seq <= up_to_seq][:limit]
        if before:
            store.pruned_to = before[-1].last_seq
            store.on_prune(store.pruned_to)
        return len(before)

    def close(self) -> None:
        """Nothing to let go of."""


class SimJournalThread(JournalWorker):
    """The journal's thread: one job after the other, each some time after it was asked for, then all at once."""

    def __init__(self, loop: SimLoop, store: Store, random: Random) -> None:
        self._loop = loop
        self._store = store
        self._random = random
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]] = deque()
        self._busy = False

    def submit(self, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """See `JournalThread.submit`."""
        self._jobs.append((call, done))
        if not self._busy:
            self._next()

    async def run(self, call: Callable[[], Any]) -> Any:
        """See `JournalThread.run`."""
        future = self._loop.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(call, done)
        return await future

    def stop(self) -> None:
        """Nothing waits."""

    def _next(self) -> None:
        if not self._jobs:
            self._busy = False
            return
        self._busy = True
        store = self._store
        took_us = store.sync_us // 4 + int(self._random.random() ** 3 * store.sync_us * 3) + store.stall_us
        self._loop.call_in(current(), took_us, self._carry_out, *self._jobs.popleft())

    def _carry_out(self, call: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        process = current()
        result, failure = None, None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - it belongs to who waits
            failure = error
        if process.alive:
            self._loop.call_in(process, self._random.randrange(50, 400), self._tell, done, result, failure)

    def _tell(
        self, done: Callable[[Any, BaseException | None], None], result: Any, failure: BaseException | None
    ) -> None:
        self._next()
        done(result, failure)
