"""Watch: who follows the changes, from where, and what happens to those who can't keep up.

The hub keeps the last `ring_events` changes. A watcher starts with those after the number it names and then gets,
in a bounded queue of its own, only what it asked for: the hub finds the interested by tenant and by lease, so that
thousands of launchers that each follow their own leases cost nothing per change. Who asks for more than is kept, or
lets its queue run over, is told WATCH_COMPACTED and lists again.

The changes of one group carry the number of the group before it, except the last one a watcher gets: resuming from
any number seen then repeats something at worst, and never skips anything.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.errors import Overloaded, WatchCompacted
from aliquot.coordinator.reading.turns import Turns
from aliquot.coordinator.writing.commits import Commit

RING_EVENTS = 65_536
QUEUE_EVENTS = 8_192
WATCHERS_MAX = 10_000
_BEHIND_EVENTS = QUEUE_EVENTS // 8
"""For each of these that wait, a watcher gets one more message in a turn."""


@dataclass(eq=False, slots=True)
class Change:
    """One change, shared by those who get it. `seq`: everything up to there has been delivered to them."""

    seq: int
    at_ms: int
    record: Lease | Node | None
    """`None`: nothing for this watcher happened up to `seq`."""
    encoded: bytes = b""
    """As it is sent to who sees all, once somebody has had to know."""
    encoded_for_tenants: bytes = b""
    """The same for who sees the leases of some tenants."""


@dataclass(frozen=True, slots=True)
class _Batch:
    """The changes of one durable group."""

    before_seq: int
    seq: int
    at_ms: int
    records: tuple[Lease | Node, ...]

    def changes(self, records: Sequence[Lease | Node]) -> list[Change]:
        """Some of them in order: only with the last has everything of the group been told."""
        changes = [Change(self.before_seq, self.at_ms, record) for record in records]
        if changes:
            changes[-1].seq = self.seq
        return changes


@dataclass(eq=False, slots=True)
class Watcher:
    """One consumer. Made by `WatchHub.watch`; `close` it."""

    hub: WatchHub
    tenant: str
    lease_ids: frozenset[str]
    nodes: bool
    seq: int
    sees: Callable[[Lease], bool] | None = None
    """Whether it may have a lease; None: every one."""
    _queue: deque[Change] = field(default_factory=deque)
    _overrun: bool = False
    _waiter: asyncio.Future[None] | None = None

    def wants(self, record: Lease | Node) -> bool:
        """Whether it asked for this."""
        if isinstance(record, Node):
            return self.nodes
        if self.sees is not None and not self.sees(record):
            return False
        if self.lease_ids:
            return record.lease_id in self.lease_ids
        return not self.tenant or record.request.tenant == self.tenant

    @property
    def waiting(self) -> int:
        """Changes that wait to be taken."""
        return len(self._queue)

    async def next(self, timeout_s: float) -> Change:
        """The next change when it is this watcher's turn, or after `timeout_s` without one a bookmark.

        Raises WatchCompacted.
        """
        if not self._pending or not self.hub.turns.take(self):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                if self._pending:
                    self.hub.turns.join(self)
                async with asyncio.timeout(timeout_s):
                    await self._waiter
            except TimeoutError:
                if not self._pending:
                    self.seq = max(self.seq, self.hub.seq)
                    return Change(self.seq, self.hub.at_ms, None)
            finally:
                self._waiter = None
                self.hub.turns.leave(self)
        if self._overrun:
            raise WatchCompacted(
                f"this watcher let more than {QUEUE_EVENTS} changes wait, or the coordinator started its books anew",
                hint="list again, and watch from the list's seq",
            )
        change = self._queue.popleft()
        self.seq = change.seq
        return change

    def take(self) -> Change | None:
        """The next change if it waits already: it goes with the one before."""
        if not self._queue:
            return None
        change = self._queue.popleft()
        self.seq = change.seq
        return change

    @property
    def per_turn(self) -> int:
        """Messages that it needs in a turn: the more, the further it is behind."""
        return 1 + len(self._queue) // _BEHIND_EVENTS

    @property
    def behind(self) -> bool:
        """Whether it needs what is no longer kept for it."""
        return self._overrun

    @property
    def _pending(self) -> bool:
        return self._overrun or bool(self._queue)

    def offer(self, batch: _Batch, records: Iterable[Lease | Node]) -> None:
        """Queue what concerns it of one group."""
        self.put(batch.changes(list(records)))

    def put(self, changes: Sequence[Change]) -> None:
        """Queue these."""
        if not changes or self._overrun:
            return
        if len(self._queue) + len(changes) > QUEUE_EVENTS:
            self.overrun()
            return
        self._queue.extend(changes)
        self._wake()

    def overrun(self) -> None:
        """What it would need is no longer kept."""
        if not self._overrun:
            self.hub.compacted += 1
        self._overrun = True
        self._queue.clear()
        self._wake()

    def close(self) -> None:
        """Stop watching."""
        self.hub.forget(self)

    def go(self) -> None:
        """It is its turn."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _wake(self) -> None:
        if self._waiter is not None:
            self.hub.turns.join(self)


_Watchers = dict[Watcher, None]
"""In the order in which they came, which is the order in which they are served: a set of them has none."""


class WatchHub:
    """Hands the changes of each durable group to those who want them."""

    def __init__(self, *, ring_events: int = RING_EVENTS, seq: int = 0, at_ms: int = 0) -> None:
        """Nothing before fact `seq`, of `at_ms`, is known to it."""
        self.seq = seq
        self.at_ms = at_ms
        self.turns = Turns()
        self._ring_events = ring_events
        self._ring: deque[_Batch] = deque()
        self._held = 0
        self._oldest_seq = seq
        """The ring can serve whoever has seen everything up to here."""
        self._all: _Watchers = {}
        self._everything: _Watchers = {}
        self._some: _Watchers = {}
        """Those who want everything and may not have all of it."""
        self._by_tenant: dict[str, _Watchers] = {}
        self._by_lease: dict[str, _Watchers] = {}
        self._for_nodes: _Watchers = {}
        self.compacted = 0
        """Watchers that were too slow, or had to begin anew with the books, since the start."""

    def __len__(self) -> int:
        return len(self._all)

    @property
    def waiting(self) -> int:
        """Changes that wait in all watchers' queues. May be read on another thread."""
        return sum(watcher.waiting for watcher in tuple(self._all))

    @property
    def kept(self) -> int:
        """Changes that are remembered for those who come late."""
        return self._held

    def restart(self, seq: int, at_ms: int) -> None:
        """The books were loaded anew: whoever watched must list again, and nothing before `seq` is kept."""
        self._ring.clear()
        self._held = 0
        self.seq = self._oldest_seq = seq
        self.at_ms = at_ms
        for watcher in self._all:
            watcher.overrun()

    def publish(self, commit: Commit) -> None:
        """Deliver one durable group. A forgotten record is no event: its lease's end was."""
        records = [lease for _, lease in commit.leases if lease is not None]
        nodes = [node for _, node in commit.nodes if node is not None]
        batch = _Batch(self.seq, commit.seq, commit.at_ms, (*records, *nodes))
        self.seq, self.at_ms = commit.seq, commit.at_ms
        if not batch.records:
            return
        self._ring.append(batch)
        self._held += len(batch.records)
        while self._held > self._ring_events and len(self._ring) > 1:
            dropped = self._ring.popleft()
            self._held -= len(dropped.records)
            self._oldest_seq = dropped.seq
        if self._all:
            self._deliver(batch, records, nodes)

    def _deliver(self, batch: _Batch, leases: list[Lease], nodes: list[Node]) -> None:
        shared: dict[bool, list[Change]] = {}
        for watcher in self._everything:
            if watcher.nodes not in shared:
                shared[watcher.nodes] = batch.changes(batch.records if watcher.nodes else leases)
            watcher.put(shared[watcher.nodes])
        for watcher in self._some:
            watcher.offer(batch, [record for record in batch.records if watcher.wants(record)])
        interested: dict[Watcher, list[Lease | Node]] = {}
        for lease in leases:
            for watchers in (self._by_tenant.get(lease.request.tenant), self._by_lease.get(lease.lease_id)):
                for watcher in watchers or ():
                    if watcher.sees is not None and not watcher.sees(lease):
                        continue
                    interested.setdefault(watcher, []).append(lease)
        if nodes:
            for watcher in self._for_nodes:
                if watcher not in self._everything and watcher not in self._some:
                    interested.setdefault(watcher, []).extend(nodes)
        for watcher, records in interested.items():
            watcher.offer(batch, records)

    def watch(
        self,
        *,
        after_seq: int,
        tenant: str = "",
        lease_ids: Iterable[str] = (),
        nodes: bool = False,
        sees: Callable[[Lease], bool] | None = None,
    ) -> Watcher:
        """Follow the changes after `after_seq` (0: from now on), of leases that it `sees`. Raises WatchCompacted or
        Overloaded.
        """
        if len(self._all) >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watchers are connected, which is the bound", retry_after_ms=5_000)
        if after_seq and after_seq < self._oldest_seq:
            raise WatchCompacted(
                f"changes after {after_seq} are no longer all kept; the oldest are those after {self._oldest_seq}",
                hint="list again, and watch from the list's seq",
            )
        if after_seq > self.seq:
            raise WatchCompacted(
                f"number {after_seq} is ahead of the pool's {self.seq}: it is of another pool",
                hint="list again, and watch from the list's seq",
            )
        start = after_seq or self.seq
        watcher = Watcher(self, tenant, frozenset(lease_ids), nodes, start, sees)
        if start < self.seq:
            self._repeat(watcher, start)
        self._all[watcher] = None
        for watchers in self._registers(watcher):
            watchers[watcher] = None
        return watcher

    def _repeat(self, watcher: Watcher, start: int) -> None:
        """Queue what is kept and was after `start`, as far as the watcher's queue goes."""
        first = bisect_right(self._ring, start, key=lambda batch: batch.seq)
        wants = watcher.wants
        for batch in islice(self._ring, first, None):
            records = [record for record in batch.records if wants(record)]
            if records:
                watcher.offer(batch, records)
                if watcher.behind:
                    break

    def forget(self, watcher: Watcher) -> None:
        """It watches no more."""
        if watcher not in self._all:
            return
        del self._all[watcher]
        for watchers in self._registers(watcher):
            watchers.pop(watcher, None)
        if watcher.tenant and not self._by_tenant.get(watcher.tenant):
            self._by_tenant.pop(watcher.tenant, None)
        for lease_id in watcher.lease_ids:
            if not self._by_lease.get(lease_id):
                self._by_lease.pop(lease_id, None)

    def _registers(self, watcher: Watcher) -> list[_Watchers]:
        registers = [self._for_nodes] if watcher.nodes else []
        if watcher.lease_ids:
            registers += [self._by_lease.setdefault(lease_id, {}) for lease_id in watcher.lease_ids]
        elif watcher.tenant:
            registers.append(self._by_tenant.setdefault(watcher.tenant, {}))
        else:
            registers.append(self._everything if watcher.sees is None else self._some)
        return registers
