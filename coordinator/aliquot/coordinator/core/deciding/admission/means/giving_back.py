"""What elastic leases give back for others, before anybody is preempted.

What a lease holds beyond its start is given back to any waiting request that could use it, and to its own tenant or
queue where their limit is in the way. Down to its least it gives back only to those who could end it: a strictly higher
priority, or the owner of a guarantee that is reclaimed; and never below what its own owner's guarantee covers. As
with a preemption the placement is tried first, what is not needed stays, and the devices are kept for the request.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from itertools import chain
from typing import NamedTuple

from aliquot.common.catalog import covers
from aliquot.coordinator.core.books.elastic import LeaseShrinking, Member, bounds_of, spare_members
from aliquot.coordinator.core.books.holds import Hold, HoldCreated, HoldKind
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, parts_of
from aliquot.coordinator.core.books.tenancy.limits import held_of_kind, over_limit, parts_of_kind
from aliquot.coordinator.core.books.tenancy.specs import Amount
from aliquot.coordinator.core.commands.outcomes import SEARCH_ATTEMPTS, Attempt
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.waiting import Foreseen, Waiting
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import (
    chain_of,
    forbidden,
    guarantee_scale,
    is_entitled,
    least_held,
    suspended,
)
from aliquot.coordinator.core.rules.preemption.leaving import leaves, take_off
from aliquot.coordinator.core.rules.preemption.victims import is_protected
from aliquot.coordinator.core.rules.trial import hold as hold_placement
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.rests import SEARCH_REST_MS
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Demand, Placement

_RUNNING = (SliceState.GRANTED, SliceState.ACTIVE)

MEMBERS_MAX = 256
"""Members of others that one search looks at, those of the lowest priority first."""
SEARCH_REST_MAX_MS = 8_000
"""Each further search that finds nothing rests twice as long, up to this."""


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """Looks at `MEMBERS_MAX` members of others; each search that finds nothing rests twice as long as the last."""
    if not known.elastic or waiting.room_is_coming(known) or waiting.kept_suffices:
        return Attempt([])
    entitled = is_entitled(known, waiting.lease)
    return for_request(known, waiting.lease, waiting.demand, waiting.now_ms, entitled=entitled)


def attempt_below_limits(known: Known, waiting: Waiting) -> Attempt:
    """Looks at the elastic leases of one account."""
    if not known.elastic:
        return Attempt([])
    return Attempt(within_limits(known, waiting.lease, waiting.demand, waiting.now_ms))


def foresee(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Foreseen | None:
    """The same search, without its rest."""
    given, start_ms = outlook(known, lease, demand, now_ms, entitled=is_entitled(known, lease))
    return Foreseen(given, start_ms) if given else None


def for_request(known: Known, lease: Lease, demand: Demand, now_ms: int, *, entitled: bool) -> Attempt:
    """Make room for a waiting request by shrinking others; no facts where that does not suffice."""
    key = (demand, lease.request.tenant, lease.request.queue, lease.request.priority)
    searches = known.memory.shrink_searches
    rest = searches.of(key, now_ms)
    if rest is not None:
        if searches.has_changed(key, known.freed_version):
            known.memory.timers.add(rest.until_ms, Due.RETRY, lease.lease_id)
        return Attempt([])
    found = _search(known, lease, demand, now_ms, entitled=entitled)
    if found is None:
        searches.begin_longer(key, known.freed_version, now_ms, SEARCH_REST_MS, SEARCH_REST_MAX_MS)
        return Attempt([], cost=SEARCH_ATTEMPTS)
    searches.end(key)
    placement, given = found
    facts, deadline_ms = _give(known, given, lease, now_ms)
    start_ms = deadline_ms + known.config.shrink_stop_ms
    hold = HoldCreated(
        at_ms=now_ms,
        owner=lease.lease_id,
        kind=HoldKind.PREEMPTION,
        placement=placement,
        expires_ms=start_ms + known.config.hold_slack_ms,
        start_ms=start_ms,
        shed=tuple(piece.slice_id for _, member in given for piece in member),
    )
    given_up = holding.give_up_of(known, lease.lease_id, now_ms, "elastic leases make room instead")
    return Attempt([*given_up, hold, *facts], cost=SEARCH_ATTEMPTS)


def outlook(known: Known, lease: Lease, demand: Demand, now_ms: int, *, entitled: bool) -> tuple[tuple[str, ...], int]:
    """(slices that others would give back for this request, when it could then start). Changes nothing.

    Empty, and 0, where that does not suffice.
    """
    hold = known.holds.get(lease.lease_id)
    if hold is not None and hold.shed:
        return hold.shed, hold.start_ms
    found = _search(known, lease, demand, now_ms, entitled=entitled) if known.elastic and hold is None else None
    if found is None:
        return (), 0
    given = found[1]
    notice_ms = max((min(other.request.grace_ms, known.config.reclaim_grace_ms) for other, _ in given), default=0)
    return (
        tuple(piece.slice_id for _, member in given for piece in member),
        now_ms + notice_ms + known.config.shrink_stop_ms,
    )


def within_limits(known: Known, lease: Lease, demand: Demand, now_ms: int) -> list[Fact]:
    """Let elastic leases of the same tenant or queue give back what keeps a request above a limit."""
    if suspended(known, lease.request, now_ms) is not None:
        return []
    parts = least_held(known, demand)
    chain = chain_of(known, lease.request)
    over = over_limit(chain, parts)
    if over is None or over.for_ever:
        return []
    account = next(account for account in chain.limited if account.label == over.subject)
    limits = {"": account.quota.limit, **{model.model: model.limit for model in account.quota.models}}
    limit = limits[over.model]
    held = held_of_kind(account, over.model)
    asked = parts_of_kind(parts, over.model)
    missing = Amount(
        held[0] + sum(part[1] for part in asked) - limit.share_milli if limit.share_milli >= 0 else 0,
        held[1] + sum(part[2] for part in asked) - limit.memory_bytes if limit.memory_bytes >= 0 else 0,
    )
    for piece in _leaving(known, (lease_id for lease_id in known.ending if lease_id in account.holders)):
        if not over.model or covers(over.model, piece.kind):
            missing = Amount(
                missing.share_milli - piece.plan.share_milli, missing.memory_bytes - piece.plan.memory_bytes
            )
    given: list[tuple[Lease, Member]] = []
    for other, member in _spare(known, lease, now_ms, entitled=False, of=account.holders):
        if missing.share_milli <= 0 and missing.memory_bytes <= 0:
            break
        of_model = parts_of_kind(parts_of(member), over.model)
        if of_model:
            given.append((other, member))
            missing = Amount(
                missing.share_milli - sum(part[1] for part in of_model),
                missing.memory_bytes - sum(part[2] for part in of_model),
            )
    if missing.share_milli > 0 or missing.memory_bytes > 0:
        return []
    return _give(known, given, lease, now_ms)[0]


def _spare(
    known: Known, lease: Lease, now_ms: int, *, entitled: bool, of: Container[str] | None = None
) -> list[tuple[Lease, Member]]:
    """Members that others could give back: the lowest priority first, within a lease the highest numbers first.

    `of`: only those of these leases.
    """
    scale = guarantee_scale(known) if known.tenancy.guarantees else 0
    found: list[tuple[Lease, Member]] = []
    for lease_id in known.elastic_in_order():
        if of is not None and lease_id not in of:
            continue
        other = known.leases[lease_id]
        bounds = bounds_of(other.request)
        if len(other.slices) <= bounds.least * other.request.demand.count:
            continue
        outranked = entitled or other.request.priority < lease.request.priority
        may_end = bounds.least < bounds.start and outranked and not is_protected(known, other, scale)
        spare = spare_members(other, bounds.least if may_end else bounds.start)
        found += ((other, member) for member in spare if all(piece.state in _RUNNING for piece in member))
        if len(found) >= MEMBERS_MAX:
            break
    return found[:MEMBERS_MAX]


def _of_use(known: Known, member: Member) -> bool:
    """Whether its node accepts grants, so that somebody else could have its place."""
    return known.nodes[member[0].plan.node_id].grantable


def _leaving(known: Known, lease_ids: Iterable[str]) -> list[Slice]:
    """What of these is on its way out in any case."""
    return [
        piece
        for lease_id in lease_ids
        for piece in known.leases[lease_id].slices
        if piece.holds_capacity and leaves(piece)
    ]


def _search(
    known: Known, lease: Lease, demand: Demand, now_ms: int, *, entitled: bool
) -> tuple[Placement, list[tuple[Lease, Member]]] | None:
    """Where the request would go, and who gives what back for it."""
    spare = [pair for pair in _spare(known, lease, now_ms, entitled=entitled) if _of_use(known, pair[1])]
    if not spare:
        return None
    wanted = _Unplaced(lease, demand, known.holds.get(lease.lease_id))
    if _fits(known, wanted, []):
        return None  # what leaves anyway is enough
    enough = _enough(known, wanted, spare)
    if not enough:
        return None
    with known.inventory.trial() as inventory:
        _make_way(known, inventory, wanted, spare[:enough])
        placement = known.engine.place(demand)
        if placement is None:
            return None
        over = forbidden(known, lease.request, chain_of(known, lease.request), placement, now_ms, lease.preempted_at_ms)
        if over is not None:
            return None
        hold_placement(inventory, demand, placement)
        given = [pair for pair in reversed(spare[:enough]) if not _stays(inventory, *pair)]
    return placement, given


def _enough(known: Known, wanted: _Unplaced, spare: list[tuple[Lease, Member]]) -> int:
    """How many of the first spare members are enough; 0: not even all of them.

    All are tried first, because most searches find too little; then few, because few are needed as a rule.
    """
    if not _fits(known, wanted, spare):
        return 0
    low, high = 0, 1
    while high < len(spare) and not _fits(known, wanted, spare[:high]):
        low, high = high, 2 * high
    between = range(low + 1, min(high, len(spare)))
    return low + 1 + bisect_left(between, True, key=lambda n: _fits(known, wanted, spare[:n]))


class _Unplaced(NamedTuple):
    """A request that does not fit, and the hold that it has already."""

    lease: Lease
    demand: Demand
    hold: Hold | None


def _fits(known: Known, wanted: _Unplaced, given: list[tuple[Lease, Member]]) -> bool:
    """Whether there would be room for it without these members, and without what leaves anyway."""
    with known.inventory.trial() as inventory:
        _make_way(known, inventory, wanted, given)
        return known.engine.fits(wanted.demand)


def _give(known: Known, given: Iterable[tuple[Lease, Member]], lease: Lease, now_ms: int) -> tuple[list[Fact], int]:
    """Facts that give notice to all of these, and when the longest notice is over."""
    by_lease: dict[str, list[str]] = {}
    for other, member in given:
        by_lease.setdefault(other.lease_id, []).extend(piece.slice_id for piece in member)
    facts: list[Fact] = []
    longest_ms = now_ms
    for lease_id, slice_ids in by_lease.items():
        deadline_ms = now_ms + min(known.leases[lease_id].request.grace_ms, known.config.reclaim_grace_ms)
        longest_ms = max(longest_ms, deadline_ms)
        facts.append(
            LeaseShrinking(
                at_ms=now_ms,
                lease_id=lease_id,
                slice_ids=tuple(slice_ids),
                deadline_ms=deadline_ms,
                reason=f"for lease {lease.lease_id}",
                notice=True,
            )
        )
    return facts, longest_ms


def _make_way(known: Known, inventory: Inventory, wanted: _Unplaced, given: list[tuple[Lease, Member]]) -> None:
    """Take off these members and what leaves anyway, and open what is kept for the request, on trial."""
    inventory.open_devices(wanted.hold.device_uuids if wanted.hold is not None else ())
    take_off(known, inventory, chain(_leaving(known, known.ending), *(member for _, member in given)))


def _stays(inventory: Inventory, lease: Lease, member: Member) -> bool:
    """Whether there is room for a member still; if so it is put back."""
    node_id, demand = member[0].plan.node_id, lease.request.demand
    room = (
        inventory.device_record(p.plan.device_uuid).has_room(p.plan.share_milli, p.plan.memory_bytes) for p in member
    )
    if not inventory.node(node_id).has_room(demand) or not all(room):
        return False
    hold_placement(inventory, demand, Placement((tuple(piece.plan for piece in member),), (node_id,)))
    return True
