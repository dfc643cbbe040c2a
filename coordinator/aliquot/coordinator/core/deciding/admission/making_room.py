"""For a request that does not fit: end others that must give way, keep devices for it, or backfill a reservation."""

from __future__ import annotations

from collections.abc import Collection

from aliquot.coordinator.core.books.holds import Hold, HoldCreated, HoldKind, PreemptionStarted
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.commands.outcomes import SEARCH_ATTEMPTS, Attempt
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding import moving
from aliquot.coordinator.core.deciding.admission import shrinking
from aliquot.coordinator.core.known.planning import Planning
from aliquot.coordinator.core.queueing import AdmissionPass
from aliquot.coordinator.core.queueing.slowdown import slack_ms
from aliquot.coordinator.core.rules.granting import chain_of, forbidden, is_entitled, suspended
from aliquot.coordinator.core.rules.patience import is_late
from aliquot.coordinator.core.rules.preemption.leaving import expect
from aliquot.coordinator.core.rules.preemption.plan import NoPlan, Plan, Preemption
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.rests import SEARCH_REST_MS
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Demand, EndReason, Placement, RequestSpec

RESERVATIONS_MAX = 8
"""In the whole pool."""
KEPT_PERMILLE = 20
"""Of all devices, so many are kept for the late requests of one queue that orders by slowdown; or those of the first.
"""


def preemption_of(state: Planning) -> Preemption:
    """The planner of preemptions, with what it remembers of each node."""
    return state.memory.part(Preemption, lambda: Preemption(state))


def make_room(state: Planning, lease: Lease, demand: Demand, now_ms: int) -> Attempt:
    """Open what is held for others, shrink elastic leases, or preempt: the first that lets the request start."""
    hold = state.holds.get(lease.lease_id)
    if hold is not None and hold.kind is HoldKind.PREEMPTION:
        return Attempt([])
    planner = preemption_of(state)
    entitled = is_entitled(state, lease)
    blocking = holding.in_the_way(state, lease, entitled=entitled)
    if blocking:
        placement = _with_open(state, blocking, demand, lease.arrival)
        if placement is not None:
            # Devices held for later requests are enough: they are free when this request is tried again.
            return Attempt(_clear(state, blocking, placement, now_ms), again=True)
    cost = 1
    if state.elastic:
        shrunk = shrinking.for_request(state, lease, demand, now_ms, entitled=entitled)
        if shrunk.facts:
            return shrunk
        cost = shrunk.cost
    if not planner.may(lease):
        return Attempt([], cost=cost)
    owners = frozenset(hold.owner for hold in blocking)
    key = (demand, lease.request.tenant, lease.request.queue, lease.request.priority, owners)
    version = state.freed_version + state.tenancy.guaranteed_version
    searches = state.memory.victim_searches
    rest = searches.of(key, now_ms)
    if rest is not None:
        if searches.has_changed(key, version):
            state.memory.timers.add(rest.until_ms, Due.RETRY, lease.lease_id)
        return Attempt([], cost=cost)
    found = planner.find(lease, demand, now_ms, owners)
    if isinstance(found, NoPlan):
        again_ms = found.again_ms
        if entitled:
            # Whoever borrows what is left from now on can be reclaimed after its minimum: this search did not see it.
            again_ms = min(again_ms, now_ms + max(SEARCH_REST_MS, state.config.reclaim_min_run_ms))
        searches.begin(key, version, now_ms, min(now_ms + SEARCH_REST_MS, again_ms))
        if again_ms < NEVER_MS:
            state.memory.timers.add(again_ms, Due.RETRY, lease.lease_id)
        return Attempt([], cost=SEARCH_ATTEMPTS)
    taken_over = _leaving_for_others(state, blocking, found.placement)
    cleared = _clear(state, blocking, found.placement, now_ms, taken_over)
    return Attempt([*cleared, *carry_out(state, lease, found, now_ms, taken_over)], cost=SEARCH_ATTEMPTS)


def _clear(
    state: Planning, holds: list[Hold], placement: Placement, now_ms: int, taken_over: Collection[str] = ()
) -> list[Fact]:
    """Give up those of the holds that keep a device of this placement."""
    wanted = _devices_of(placement)
    facts: list[Fact] = []
    for hold in holds:
        if not wanted.isdisjoint(hold.device_uuids):
            facts += holding.give_up(state, hold, now_ms, "somebody goes first", taken_over)
    return facts


def _leaving_for_others(state: Planning, holds: list[Hold], placement: Placement) -> tuple[str, ...]:
    """Victims of these holds on devices of this placement, which counts on their end too."""
    wanted = _devices_of(placement)
    return tuple(
        lease_id
        for hold in holds
        for lease_id in hold.victims
        if lease_id in state.leases
        and any(piece.plan.device_uuid in wanted for piece in state.leases[lease_id].holding)
    )


def _devices_of(placement: Placement) -> set[str]:
    return {plan.device_uuid for member in placement.members for plan in member}


def _with_open(state: Planning, holds: list[Hold], demand: Demand, arrival: int) -> Placement | None:
    """Where the demand would go if these holds were not."""
    with state.inventory.trial() as inventory:
        for hold in holds:
            inventory.open_devices(hold.device_uuids)
        return state.engine.place(demand, arrival=arrival) if state.engine.fits(demand) else None


def carry_out(state: Planning, lease: Lease, plan: Plan, now_ms: int, taken_over: tuple[str, ...] = ()) -> list[Fact]:
    """One group: victims chosen, devices kept, every victim told. `taken_over`: they were told for somebody else."""
    config = state.config
    facts: list[Fact] = holding.give_up_of(state, lease.lease_id, now_ms, "others make room instead")
    deadlines: dict[str, int] = {}
    for lease_id in plan.victims:
        grace_ms = state.leases[lease_id].request.grace_ms
        deadlines[lease_id] = min(grace_ms, config.reclaim_grace_ms) if plan.reclaim else grace_ms
    longest_ms = max([*deadlines.values(), config.reclaim_grace_ms] if not plan.victims else deadlines.values())
    longest_ms = max(longest_ms, _last_to_leave_ms(state, plan, now_ms) - now_ms)
    if plan.victims:
        facts.append(
            PreemptionStarted(
                at_ms=now_ms,
                preemptor=lease.lease_id,
                victims=plan.victims,
                deadline_ms=now_ms + longest_ms,
                reclaim=plan.reclaim,
            )
        )
    facts.append(
        HoldCreated(
            at_ms=now_ms,
            owner=lease.lease_id,
            kind=HoldKind.PREEMPTION,
            placement=plan.placement,
            expires_ms=now_ms + longest_ms + config.hold_slack_ms,
            victims=tuple(dict.fromkeys((*plan.victims, *taken_over))),
            start_ms=now_ms + longest_ms,
        )
    )
    facts += (lifecycle.shorten_notice(state.leases[i], now_ms, config.reclaim_grace_ms) for i in plan.shortened)
    why = "a guarantee is reclaimed" if plan.reclaim else f"priority {lease.request.priority}"
    for lease_id, grace_ms in deadlines.items():
        facts += lifecycle.send_back(
            state,
            state.leases[lease_id],
            EndReason.PREEMPTED,
            now_ms,
            detail=f"for lease {lease.lease_id} ({why})",
            grace_ms=grace_ms,
        )
    return facts


def _last_to_leave_ms(state: Planning, plan: Plan, now_ms: int) -> int:
    """When the last lease that is already ending leaves the plan's devices."""
    shortened_ms = now_ms + state.config.reclaim_grace_ms
    last_ms = now_ms
    for uuid in _devices_of(plan.placement):
        node_id = state.inventory.device_record(uuid).node_id
        for slice_id in state.slice_ids_by_node[node_id]:
            lease_id = lease_id_of(slice_id)
            piece = state.leases[lease_id].find(slice_id)
            if piece is not None and piece.ending and piece.plan.device_uuid == uuid:
                last_ms = max(
                    last_ms, shortened_ms if lease_id in plan.shortened else min(piece.deadline_ms, shortened_ms)
                )
    return last_ms


def reserve(state: Planning, admission: AdmissionPass, lease: Lease, demand: Demand, now_ms: int) -> list[Fact]:
    """Keep devices for the first request of a line that does not fit, once it has waited long enough.

    A queue that orders by rank has one line; one that orders its tenants by what they hold has a line for each. Under
    `slowdown` single devices are kept only for who is due: they come free all the time, and large requests need it
    more. Of those there, several have devices kept as long as these are a small part of the pool: a short one need not
    wait until a long one has started.
    """
    line = _line_of(state, lease)
    if line in admission.blocked:
        return []
    queue = state.tenancy.queue_spec(line[0])
    by_due = queue.policy is QueuePolicy.SLOWDOWN
    late, kept = is_late(state, lease, now_ms), lease.lease_id in state.holds
    if by_due and demand.count * demand.gang_size == 1:
        late = late and now_ms >= lease.created_ms + slack_ms(queue, lease.request)
    if (late and not kept) or not by_due:  # under `slowdown`, those who are due sooner may have come just now
        admission.blocked[line] = None  # one search that comes to nothing is enough for a pass
    if not late or kept:
        return []
    reserved = [hold for hold in state.holds.values() if hold.kind is HoldKind.RESERVATION]
    of_line = [hold for hold in reserved if _line_of(state, state.leases[hold.owner]) == line]
    if len(reserved) >= RESERVATIONS_MAX or (of_line and not (by_due and _may_keep(state, of_line, demand))):
        return []
    found = moving.place_to_clear(state, lease, demand, now_ms) or expect(state, lease, demand, now_ms)
    if found is None:
        return []
    if by_due:
        del admission.blocked[line]
    fact = HoldCreated(
        at_ms=now_ms,
        owner=lease.lease_id,
        kind=HoldKind.RESERVATION,
        placement=found.placement,
        expires_ms=now_ms + state.config.reservation_ms,
        start_ms=found.start_ms,
    )
    return [fact]


def _may_keep(state: Planning, reserved: list[Hold], demand: Demand) -> bool:
    """Whether so many devices more may be kept beside those that are."""
    kept = sum(len(hold.device_uuids) for hold in reserved) + demand.count * demand.gang_size
    return kept * 1000 <= len(state.devices) * KEPT_PERMILLE


def _line_of(state: Planning, lease: Lease) -> tuple[str, str]:
    """(queue, tenant) of the line that a lease stands in; no tenant where the queue has a single line."""
    request = lease.request
    queue = state.tenancy.queue_of(request.tenant, request.queue)
    by_rank = state.tenancy.queue_spec(queue).policy in (QueuePolicy.FIFO, QueuePolicy.PRIORITY, QueuePolicy.SLOWDOWN)
    return queue, "" if by_rank else request.tenant


def ends_before(request: RequestSpec, hold: Hold, now_ms: int) -> bool:
    """Whether it will have ended before the owner of what is reserved can start."""
    ends_ms = now_ms + request.time_limit_ms + request.grace_ms
    return hold.kind is HoldKind.RESERVATION and request.time_limit_ms > 0 and ends_ms <= hold.start_ms


def _has_room(state: Planning, hold: Hold, demand: Demand) -> bool:
    """Whether one slice of a demand would find room on a device of a hold, by size alone."""
    records = (state.inventory.device_record(uuid) for uuid in hold.device_uuids if state.inventory.has_device(uuid))
    return any(device.works and device.has_room(*device.device_class.size_of(demand)) for device in records)


def backfill(
    state: Planning,
    request: RequestSpec,
    demand: Demand,
    now_ms: int,
    *,
    lease_id: str,
    preempted_at_ms: tuple[int, ...] = (),
) -> Placement | None:
    """A place on reserved devices for a lease that will have ended before their owner can start."""
    later = [hold for hold in state.holds.values() if hold.owner != lease_id and ends_before(request, hold, now_ms)]
    if not any(_has_room(state, hold, demand) for hold in later):
        return None  # without what is kept it does not fit, and too little of that is free yet
    placement = _with_open(state, later, demand, state.next_arrival)
    if placement is None or suspended(state, request, now_ms) is not None:
        return None
    chain = chain_of(state, request)
    if forbidden(state, request, chain, placement, now_ms, preempted_at_ms) is not None:
        return None
    return placement
