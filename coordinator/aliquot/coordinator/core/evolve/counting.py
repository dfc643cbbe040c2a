"""What every change of a slice means for the accounts and for the ledger: one place, so that the two never differ.

`granted`, `moved` and `freed` are called by `evolve` for each slice; `recount` derives the same from the leases.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from aliquot.coordinator.core.books.elastic import core_of
from aliquot.coordinator.core.books.holds import Hold, HoldKind
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, owner_of, parts_of, queue_of
from aliquot.coordinator.core.books.ledger.ledger import CHARGED, open_entries
from aliquot.coordinator.core.books.ledger.meters import ALERT_PERMILLE, meter_of, money_slope
from aliquot.coordinator.core.books.tenancy.limits import parts_of_placement
from aliquot.coordinator.core.books.tenancy.specs import Period
from aliquot.coordinator.core.books.tenancy.tenancy import recount
from aliquot.coordinator.core.queueing.slowdown import patience_ms
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.timers import Due


def granted(state: State, lease: Lease, slices: tuple[Slice, ...], at_ms: int) -> None:
    """New slices: counted, and metered where they are charged at once."""
    state.tenancy.hold(owner_of(lease), parts_of(slices), 1, at_ms)
    state.count_lease(lease, len(slices))
    for piece in slices:
        if piece.billed_from_ms:
            _meter(state, lease, piece, 1, at_ms)


def moved(state: State, lease: Lease, old: Slice, new: Slice, at_ms: int) -> Slice:
    """A slice changed its state: begin, go on with or end what is charged for it."""
    billing = new.billing or new.state is SliceState.ACTIVE
    charged = billing and (new.state in CHARGED or (new.state is SliceState.GRANTED and old.billing))
    if charged == bool(old.billed_from_ms):
        return new if billing == new.billing else replace(new, billing=billing)
    if charged:
        new = replace(new, billing=True, billed_from_ms=at_ms)
        _meter(state, lease, new, 1, at_ms)
        return new
    if at_ms > old.billed_from_ms:
        state.ledger.post_usage(lease, old, queue_of(state.tenancy, lease), at_ms)
    _meter(state, lease, old, -1, at_ms)
    return replace(new, billed_from_ms=0)


def freed(state: State, lease: Lease, piece: Slice, at_ms: int) -> None:
    """A slice's capacity is free."""
    state.tenancy.hold(owner_of(lease), parts_of((piece,)), -1, at_ms)
    state.count_lease(lease, -1)


def put_lease(state: State, lease: Lease) -> None:
    """Replace a lease's record, and what it counts against guarantees."""
    state.leases[lease.lease_id] = lease
    state.touched.leases[lease.lease_id] = None
    rank(state, lease)


def rank(state: State, lease: Lease) -> None:
    """Count what a lease uses of guarantees now."""
    if state.tenancy.guarantees:
        parts = parts_of(core_of(lease)) if lease.holding else None
        state.tenancy.rank(owner_of(lease), lease.seniority, parts)


def expect(state: State, owner: str, hold: Hold | None) -> None:
    """Count what a hold's owner will use of guarantees once its victims have gone; without a hold, nothing."""
    if state.tenancy.guarantees:
        lease, inventory = state.leases[owner], state.inventory
        is_coming = hold is not None and hold.kind is HoldKind.PREEMPTION
        if hold is not None and is_coming and all(inventory.has_device(uuid) for uuid in hold.device_uuids):
            parts = parts_of_placement(inventory, hold.placement)
            state.tenancy.expect(owner_of(lease), lease.seniority, parts)
        else:
            state.tenancy.expect(owner_of(lease), lease.seniority, None)


def _meter(state: State, lease: Lease, piece: Slice, sign: int, at_ms: int) -> None:
    meter = state.meters.get(lease.request.tenant)
    if meter is None:
        return
    state.touched.meters[lease.request.tenant] = None
    meter.accrue(at_ms)
    meter.share_slope += sign * piece.plan.share_milli
    card = state.ledger.prices.at(at_ms)
    meter.money_slope += sign * money_slope(card, piece.model, piece.plan.share_milli, piece.plan.memory_bytes)
    watch_budget(state, lease.request.tenant, at_ms)


def watch_budget(state: State, tenant: str, at_ms: int) -> None:
    """Remember to look when this tenant's budget will reach its next level, or else when its period ends."""
    meter = state.meters[tenant]
    due_ms = meter.period_end_ms(at_ms)
    reported = state.ledger.levels.get(tenant, (0, 0))
    for permille in ALERT_PERMILLE:
        if reported < (meter.period_start_ms, permille):
            due_ms = min(due_ms, meter.reaches_ms(permille, at_ms) or due_ms)
    if not meter.armed_ms or due_ms < meter.armed_ms:
        state.timers.drop(meter.armed_ms, Due.BUDGET, tenant)
        meter.armed_ms = due_ms
        state.timers.add(due_ms, Due.BUDGET, tenant)


def grant_ends(state: State, lease: Lease) -> None:
    """Drop the timers of a grant: its confirmation and its time limit."""
    if lease.granted_ms:
        state.since[Due.CONFIRM].drop(lease.granted_ms, Due.CONFIRM, lease.lease_id)
        if lease.request.time_limit_ms:
            state.timers.drop(lease.granted_ms + lease.request.time_limit_ms, Due.TIME_LIMIT, lease.lease_id)


def be_patient(state: State, lease: Lease) -> None:
    """Remember to look when a waiting lease may have devices kept for it."""
    after_ms = _patience_ms(state, lease)
    if lease.created_ms + after_ms > state.now_ms:
        state.timers.add(lease.created_ms + after_ms, Due.PATIENCE, lease.lease_id)


def patience_ends(state: State, lease: Lease) -> None:
    """Drop that timer: the lease waits no longer."""
    after_ms = _patience_ms(state, lease)
    state.timers.drop(lease.created_ms + after_ms, Due.PATIENCE, lease.lease_id)


def _patience_ms(state: State, lease: Lease) -> int:
    return patience_ms(state.tenancy.queue_spec(queue_of(state.tenancy, lease)), lease.request)


def recount_all(state: State) -> None:
    """Derive from the leases what every account holds, and from the entries what every budget has used."""
    live = [lease for lease in state.leases.values() if not lease.ended]
    held = ((owner_of(lease), parts_of(lease.holding)) for lease in live if lease.holding)
    recount(state.tenancy, held)
    for lease in live:
        rank(state, lease)
    for owner, hold in state.holds.items():
        expect(state, owner, hold)
    recount_meters(state, live)


def recount_meters(state: State, live: Iterable[Lease] | None = None) -> None:
    """Derive the budgets' meters from the entries and from what is being charged."""
    for name, meter in state.meters.items():
        state.timers.drop(meter.armed_ms, Due.BUDGET, name)
    state.meters.clear()
    if not state.tenancy.budgets:
        return
    if live is None:
        live = [lease for lease in state.leases.values() if not lease.ended]
    now_ms, ledger = state.now_ms, state.ledger
    open_now = list(open_entries(live, lambda lease: queue_of(state.tenancy, lease), now_ms))
    card = ledger.prices.at(now_ms)
    folded = ledger.folded(now_ms - max(period.length_ms for period in Period))
    for name, tenant in state.tenancy.tenants.items():
        budget = tenant.spec.budget
        if not budget:
            continue
        entries = [*ledger.by_tenant.get(name, ()), *(entry for entry in open_now if entry.tenant == name)]
        priced = (part for entry in entries for part in ledger.prices.cut(entry))
        meter = meter_of(budget, priced, folded.get(name, ()), ledger.prices, now_ms)
        for lease in live:
            if lease.request.tenant == name:
                for piece in lease.slices:
                    if piece.billed_from_ms:
                        plan = piece.plan
                        meter.share_slope += plan.share_milli
                        meter.money_slope += money_slope(card, piece.model, plan.share_milli, plan.memory_bytes)
        state.meters[name] = meter
        watch_budget(state, name, now_ms)
