"""Who waits for a node: requests that stand in line, that no limit keeps out, and that nothing else will serve.

They are taken in the order in which they will be tried. What may serve a request without another node (`Means`) is what
admission itself does; here it is only asked whether it will. A means that has promised and not
served for long is not believed in any more.
"""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.books.holds import Hold, HoldKind
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.supply import Means, SupplyPolicy
from aliquot.coordinator.core.books.tenancy.limits import over_limit
from aliquot.coordinator.core.books.tenancy.ranking import Part
from aliquot.coordinator.core.deciding.admission import admit as admission
from aliquot.coordinator.core.deciding.admission.means.order import GIVE_BACK, MOVE, foresee
from aliquot.coordinator.core.deciding.admission.outlook import look_ahead
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import Head
from aliquot.coordinator.core.rules.granting import (
    chain_of,
    is_entitled,
    least_held,
    limited_pools,
    sterner,
    suspended,
)
from aliquot.coordinator.core.values.types import Demand

LINES_MAX = 64
"""Kinds of waiting requests that one look considers."""
LOOKED_INTO_MAX = 8
"""Of which it is asked whether something else will serve them: a millisecond each."""
EQUALS_MAX = 4_096


class Need(NamedTuple):
    """Equal requests that wait, and that only another node would serve in time."""

    lease_ids: tuple[str, ...]
    """In the order in which they will be tried."""
    demand: Demand
    tenant: str
    waited_ms: int
    """Of the first."""


class Served(NamedTuple):
    """A request for which no node is needed, and why."""

    lease_id: str
    means: Means
    story: str


class Waiting(NamedTuple):
    """What one look has found."""

    needs: tuple[Need, ...]
    served: tuple[Served, ...]


def waiting(known: Known, policy: SupplyPolicy, lead_ms: int, now_ms: int) -> Waiting:
    """Who waits for a node that is ordered now and takes `lead_ms`. Changes nothing."""
    if not len(known.lines):
        return Waiting((), ())
    after_ms = max(0, policy.target_wait_ms - lead_ms)
    needs: list[Need] = []
    served: list[Served] = []
    promised: dict[tuple[str, str], list[Part]] = {}
    looked_into = 0
    heads = admission.start_pass(known, now_ms)
    for _ in range(LINES_MAX):
        head = heads.head()
        if head is None:
            break
        heads.passed()
        lease = known.leases[head.lease_id]
        hold = known.holds.get(head.lease_id)
        if hold is not None and hold.kind is HoldKind.PREEMPTION:
            served.append(Served(head.lease_id, _means_of(hold), "devices are kept for it"))
            continue
        waited_ms = now_ms - lease.created_ms
        if waited_ms < after_ms or lease.not_before_ms > now_ms:
            continue
        demand = sterner(known, lease.request, head.line.demand, now_ms)
        allowed = within_limits(known, lease, demand, _line(known, head), promised, now_ms)
        if not allowed:
            continue
        if looked_into < LOOKED_INTO_MAX and waited_ms < policy.target_wait_ms + lead_ms + policy.means_ms:
            looked_into += 1
            other = other_means(known, policy, lease, demand, now_ms + lead_ms, now_ms)
            if other is not None:
                served.append(other)
                allowed = allowed[1:]
        if allowed:
            needs.append(Need(allowed, demand, lease.request.tenant, waited_ms))
    return Waiting(tuple(needs), tuple(served))


def _means_of(hold: Hold) -> Means:
    if hold.shed:
        return Means.SHRINK
    return Means.RECLAIM if hold.victims else Means.MOVE


def _line(known: Known, head: Head) -> list[str]:
    """Those of a line that nothing is kept for."""
    place = known.lines.place_of(head.lease_id)
    if place is None:
        return []
    line = known.lines.queues[place.queue][place.tenant].lines[head.line]
    return [lease_id for _, lease_id in line[:EQUALS_MAX] if not _is_kept(known.holds.get(lease_id))]


def _is_kept(hold: Hold | None) -> bool:
    return hold is not None and hold.kind is HoldKind.PREEMPTION


def within_limits(
    known: Known,
    lease: Lease,
    demand: Demand,
    line: list[str],
    promised: dict[tuple[str, str], list[Part]],
    now_ms: int,
) -> tuple[str, ...]:
    """As many of a line as limits and budgets will let start, beside what nodes are planned for already."""
    request = lease.request
    if not line or suspended(known, request, now_ms) is not None:
        return ()
    pools = limited_pools(known)
    if pools and (demand.pool in pools or not demand.pool):
        line = line[: _left_in_pools(known, demand, pools)]
    parts, chain = least_held(known, demand), chain_of(known, request)
    before = promised.setdefault((request.tenant, request.queue), [])
    if not chain.limited:
        return tuple(line)
    low, high = 0, len(line)
    while low < high:
        middle = (low + high + 1) // 2
        if over_limit(chain, [*before, *(parts * middle)]) is None:
            low = middle
        else:
            high = middle - 1
    before += parts * low
    return tuple(line[:low])


def _left_in_pools(known: Known, demand: Demand, pools: list[str]) -> int:
    """How many more such requests pools with a part kept free will take."""
    need = max(1, sum(part[1] for part in least_held(known, demand)))
    left = 0
    for pool in pools if not demand.pool else [demand.pool]:
        limit = known.tenancy.pools[pool].spec.limit.share_milli
        if limit < 0:
            return EQUALS_MAX
        used = sum(totals.share_used_milli for (name, _), totals in known.inventory.totals().items() if name == pool)
        left += max(0, limit - used) // need
    return left


def other_means(
    known: Known, policy: SupplyPolicy, lease: Lease, demand: Demand, by_ms: int, now_ms: int
) -> Served | None:
    """What will serve a request before `by_ms` without another node: the first of the means that says so."""
    for means in policy.means:
        story = _ASK[means](known, lease, demand, by_ms, now_ms)
        if story:
            return Served(lease.lease_id, means, story)
    return None


def _reclaim(known: Known, lease: Lease, demand: Demand, by_ms: int, now_ms: int) -> str:
    victims, start_ms, _, _ = look_ahead(known, lease, demand, now_ms)
    if victims:
        return f"{len(victims)} leases end for it by then"
    if start_ms and start_ms <= by_ms and is_entitled(known, lease):
        return "its guarantee is reclaimed by then"
    return ""


def _wait(known: Known, lease: Lease, demand: Demand, by_ms: int, now_ms: int) -> str:
    victims, start_ms, _, _ = look_ahead(known, lease, demand, now_ms)
    if start_ms and not victims and start_ms <= by_ms:
        return "what runs has ended by then"
    return ""


def _shrink(known: Known, lease: Lease, demand: Demand, by_ms: int, now_ms: int) -> str:
    found = foresee(known, lease, demand, now_ms, GIVE_BACK)
    return f"elastic leases give back {len(found.giving)} slices for it" if found is not None else ""


def _move(known: Known, lease: Lease, demand: Demand, by_ms: int, now_ms: int) -> str:
    return "others are moved for it" if foresee(known, lease, demand, now_ms, MOVE) is not None else ""


_ASK = {
    Means.RECLAIM: _reclaim,
    Means.SHRINK: _shrink,
    Means.MOVE: _move,
    Means.WAIT: _wait,
}
