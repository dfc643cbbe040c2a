"""The waiting requests: by queue, by tenant, and there in lines of interchangeable ones.

Two requests of one tenant and queue with the same demand and priority fail for the same reason, so only the first of
each line is ever tried: with 100,000 waiting requests of 40 kinds, a pass over a full pool costs 40 placements for
each tenant, fewer where tenants ask for the same. Only where others are ending already for the first is the next of
the line tried as well, so that several of a kind need not wait for one another's victims. The order among tenants and
queues changes with what they hold; it is decided by `passes` when a pass begins. The order within one tenant never
changes, which is what lets it be kept sorted:

    rank = (created - priority * ageing, arrival)

is, at any time, the order of priorities that grow by one every `ageing` milliseconds. (Under `slowdown`: of the
moments at which requests are due, see `slowdown`.)

The lines are derived from the leases and are rebuilt by replay.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy, QueueSpec, upwards
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.queueing.slowdown import SLACK_MAX_MS, slack_ms
from aliquot.coordinator.core.values.types import Demand

_K = TypeVar("_K")

Rank = tuple[int, int]
"""(virtual time of arrival in ms, arrival): smaller is tried earlier. Arrivals are unique, so ranks are."""

NO_AGEING_MS = 10**13
"""What a point of priority is worth where priorities don't age: 300 years."""


class LineKey(NamedTuple):
    """What requests of one tenant and queue must share to be interchangeable."""

    demand: Demand
    avoid: tuple[str, ...]
    """Devices in back-off after a failure make a request different from its fellows."""
    priority: int
    preemptions: int
    """As do preemptions: they are bounded for each lease."""


_LAST = "\U0010ffff"
"""After every lease id."""
_ANY_LINE = LineKey(Demand(), (), 0, 0)


class Head(NamedTuple):
    """The first request of a line."""

    rank: Rank
    lease_id: str
    line: LineKey


class Place(NamedTuple):
    """Where a waiting lease stands."""

    queue: str
    tenant: str
    rank: Rank
    line: LineKey
    resting: bool


def rank_of(lease: Lease, queue: QueueSpec) -> Rank:
    """Where a lease stands among those of its tenant."""
    if queue.policy is QueuePolicy.FIFO:
        return (lease.created_ms, lease.arrival)
    if queue.policy is QueuePolicy.SLOWDOWN:
        point_ms = queue.ageing_ms + SLACK_MAX_MS if queue.ageing_ms else NO_AGEING_MS
        due_ms = lease.created_ms + slack_ms(queue, lease.request)
        return (due_ms - lease.request.priority * point_ms, lease.arrival)
    return (lease.created_ms - lease.request.priority * (queue.ageing_ms or NO_AGEING_MS), lease.arrival)


def line_of(lease: Lease) -> LineKey:
    """Which line it stands in."""
    return LineKey(lease.request.demand, lease.avoid_device_uuids, lease.request.priority, len(lease.preempted_at_ms))


def _count(counts: dict[_K, int], key: _K, more: int) -> None:
    """Keep what is not zero. Not a `Counter`, whose own methods cost a replay of facts 4 %: each lease comes here."""
    left = counts.get(key, 0) + more
    if left:
        counts[key] = left
    else:
        del counts[key]


class TenantLines:
    """What one tenant has waiting in one queue."""

    __slots__ = ("_served", "_shown", "heads", "lines", "priorities", "size")

    def __init__(self) -> None:
        self.lines: dict[LineKey, list[tuple[Rank, str]]] = {}
        self.heads: list[tuple[Rank, str, LineKey]] = []
        """Those of every line that are tried, in order."""
        self.priorities: dict[int, int] = {}
        """How many of each priority wait."""
        self.size = 0
        self._shown: dict[LineKey, int] = {}
        """How many of each line, from its beginning, are among `heads`."""
        self._served: set[str] = set()
        """Requests for which others are ending."""

    def add(self, rank: Rank, lease_id: str, key: LineKey) -> None:
        """Put a request in its line."""
        line = self.lines.setdefault(key, [])
        entry = (rank, lease_id)
        index = bisect_left(line, entry)
        line.insert(index, entry)
        shown = self._shown.get(key, 0)
        if index < shown:
            self._shown[key] = shown + 1
            self._show(entry, key)
        self._expose(key)
        _count(self.priorities, key.priority, 1)
        self.size += 1

    def remove(self, rank: Rank, lease_id: str, key: LineKey) -> None:
        """Take a request out; it must be there."""
        line = self.lines[key]
        index = bisect_left(line, (rank, lease_id))
        del line[index]
        self._served.discard(lease_id)
        if index < self._shown[key]:
            self._shown[key] -= 1
            self._hide(rank)
        self._expose(key)
        _count(self.priorities, key.priority, -1)
        self.size -= 1

    def serve(self, lease_id: str, key: LineKey, *, served: bool) -> None:
        """Note that others are ending for this request, or that they no longer are."""
        (self._served.add if served else self._served.discard)(lease_id)
        self._expose(key)

    def after(self, rank: Rank | None) -> Head | None:
        """The first head that is tried after `rank`; None: nothing is left."""
        index = 0 if rank is None else bisect_left(self.heads, (rank, _LAST, _ANY_LINE))
        return Head(*self.heads[index]) if index < len(self.heads) else None

    def _expose(self, key: LineKey) -> None:
        """Show a line as far as it is served, and one more."""
        line, shown = self.lines[key], self._shown.get(key, 0)
        wanted = 0
        while wanted < len(line):
            wanted += 1
            if line[wanted - 1][1] not in self._served:
                break
        for entry in line[shown:wanted]:
            self._show(entry, key)
        for rank, _ in line[wanted:shown]:
            self._hide(rank)
        if line:
            self._shown[key] = wanted
        else:
            del self.lines[key]
            self._shown.pop(key, None)

    def _show(self, entry: tuple[Rank, str], key: LineKey) -> None:
        insort(self.heads, (*entry, key))  # ranks are unique, so that lines are never compared

    def _hide(self, rank: Rank) -> None:
        del self.heads[bisect_left(self.heads, (rank, "", _ANY_LINE))]


class WaitingLines:
    """All waiting requests. Adding and removing cost O(log n) comparisons."""

    __slots__ = ("_below", "_resting", "_tenancy", "_where", "queues", "served")

    def __init__(self, tenancy: Tenancy, served: Iterable[str] = ()) -> None:
        self._tenancy = tenancy
        self.served = set(served)
        """Requests for which others are ending."""
        self.queues: dict[str, dict[str, TenantLines]] = {}
        """Queue -> tenant -> what it has waiting there, none of it empty."""
        self._where: dict[str, Place] = {}
        self._resting: dict[str, None] = {}
        self._below: dict[str, int] = {}
        """How many wait, resting ones too, of each tenant and all below it. Kept with every lease, since any may get a
        ceiling.
        """

    def __len__(self) -> int:
        return len(self._where)

    @property
    def resting(self) -> int:
        """How many are in back-off after a failure: they keep their rank but are not tried yet."""
        return len(self._resting)

    def add(self, lease: Lease, *, resting: bool = False) -> None:
        """Put a lease in line, or beside it until `wake`."""
        tenant = lease.request.tenant
        queue = self._tenancy.queue_of(tenant, lease.request.queue)
        place = Place(queue, tenant, rank_of(lease, self._tenancy.queue_spec(queue)), line_of(lease), resting)
        self._where[lease.lease_id] = place
        for name in upwards(tenant):
            _count(self._below, name, 1)
        if resting:
            self._resting[lease.lease_id] = None
        else:
            self._enqueue(lease.lease_id, place)

    def wake(self, lease_id: str) -> bool:
        """Let a resting lease be tried again. False if it does not rest (any more)."""
        if lease_id not in self._resting:
            return False
        del self._resting[lease_id]
        place = self._where[lease_id] = self._where[lease_id]._replace(resting=False)
        self._enqueue(lease_id, place)
        return True

    def remove(self, lease: Lease) -> None:
        """Take a lease out; it must be there."""
        place = self._where.pop(lease.lease_id)
        for name in upwards(place.tenant):
            _count(self._below, name, -1)
        if place.resting:
            del self._resting[lease.lease_id]
            return
        tenants = self.queues[place.queue]
        lines = tenants[place.tenant]
        lines.remove(place.rank, lease.lease_id, place.line)
        if not lines.size:
            del tenants[place.tenant]
            if not tenants:
                del self.queues[place.queue]

    def serve(self, lease_id: str, *, served: bool) -> None:
        """Others are ending for this request, or no longer are: the next of its line may be tried too."""
        (self.served.add if served else self.served.discard)(lease_id)
        place = self._where.get(lease_id)
        if place is not None and not place.resting:
            self.queues[place.queue][place.tenant].serve(lease_id, place.line, served=served)

    def is_resting(self, lease_id: str) -> bool:
        """Whether it is in back-off after a failure."""
        return lease_id in self._resting

    def place_of(self, lease_id: str) -> Place | None:
        """Where a lease stands, if it waits."""
        return self._where.get(lease_id)

    def is_first(self, lease_id: str) -> bool:
        """Whether it stands first among all that its tenant has waiting in its queue."""
        place = self._where.get(lease_id)
        if place is None or place.resting:
            return False
        head = self.queues[place.queue][place.tenant].after(None)
        return head is not None and head.lease_id == lease_id

    def ahead_of(self, lease: Lease, limit: int) -> tuple[int, list[str]]:
        """How many of the same queue rank before this lease, and the first `limit` of them in order of rank.

        In a queue that is ordered by rank these are exactly those tried before it; under fair share, those of other
        tenants come before it as far as their tenants hold less.
        """
        place = self._where[lease.lease_id]
        entry = (place.rank, lease.lease_id)
        everybody = self.queues.get(place.queue, {}).values()
        cuts = [(line, bisect_left(line, entry)) for lines in everybody for line in lines.lines.values()]
        first = heapq.merge(*(line[: min(cut, limit)] for line, cut in cuts if cut))
        names = [lease_id for (_, lease_id), _ in zip(first, range(limit), strict=False)]
        return sum(cut for _, cut in cuts), names

    def waiting_below(self, tenant: str) -> int:
        """How many requests of a tenant and all below it wait, those in back-off too."""
        return self._below.get(tenant, 0)

    def length_of(self, queue: str) -> int:
        """How many requests stand in a queue, without those in back-off: O(tenants)."""
        return sum(lines.size for lines in self.queues.get(queue, {}).values())

    def has_line(self, queue: str, tenant: str, key: LineKey) -> bool:
        """Whether an equal request of this tenant waits in this queue already."""
        lines = self.queues.get(queue, {}).get(tenant)
        return lines is not None and key in lines.lines

    def ids(self) -> Iterator[str]:
        """All lease ids, resting ones too, in no particular order."""
        return iter(self._where)

    def _enqueue(self, lease_id: str, place: Place) -> None:
        tenants = self.queues.setdefault(place.queue, {})
        lines = tenants.get(place.tenant)
        if lines is None:
            lines = tenants[place.tenant] = TenantLines()
        lines.add(place.rank, lease_id, place.line)
        if lease_id in self.served:
            lines.serve(lease_id, place.line, served=True)
