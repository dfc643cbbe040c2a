"""How the use of leases changes the State, and what follows for those who borrow when a lender goes."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.leases.records import Lease, Slice, lease_id_of
from aliquot.coordinator.core.books.use import (
    QUIET,
    IdleActed,
    IdleWarned,
    LeaseExempted,
    LeaseUse,
    ShareLent,
    ShareRecalled,
    UseChanged,
    WarningTold,
)
from aliquot.coordinator.core.evolve.counting import put_lease
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due

WARNINGS_KEPT = 8


def _changed(state: State, fact: UseChanged) -> None:
    use = state.leases[fact.lease_id].use
    use = replace(use, state=fact.state, since_ms=fact.since_ms)
    if fact.state not in QUIET:
        use = replace(use, warned=0, warned_ms=0, told=0, told_ms=0, act_ms=0)
    _put(state, fact.lease_id, use)


def _warned(state: State, fact: IdleWarned) -> None:
    lease = state.leases[fact.lease_id]
    use = replace(lease.use, warned=fact.number, warned_ms=fact.at_ms, act_ms=fact.act_ms, action=fact.action)
    warnings = (*lease.warnings, fact.text)[-WARNINGS_KEPT:]
    put_lease(state, replace(lease, use=use, warnings=warnings, seq=state.seq))


def _told(state: State, fact: WarningTold) -> None:
    use = state.leases[fact.lease_id].use
    _put(state, fact.lease_id, replace(use, told=max(use.told, fact.number), told_ms=fact.at_ms))


def _acted(state: State, fact: IdleActed) -> None:
    use = state.leases[fact.lease_id].use
    _put(state, fact.lease_id, replace(use, act_ms=0, action=fact.action))


def _lent(state: State, fact: ShareLent) -> None:
    use = state.leases[fact.lease_id].use
    state.lenders[fact.lease_id] = None
    _put(state, fact.lease_id, replace(use, lent=True, lent_memory=fact.memory))
    state.free_capacity()


def _recalled(state: State, fact: ShareRecalled) -> None:
    use = state.leases[fact.lease_id].use
    state.lenders.pop(fact.lease_id, None)
    _put(state, fact.lease_id, replace(use, lent=False, lent_memory=False))


def _exempted(state: State, fact: LeaseExempted) -> None:
    use = state.leases[fact.lease_id].use
    use = replace(use, exempt_until_ms=fact.until_ms, exempt_reason=fact.reason, exempt_by=fact.by)
    _put(state, fact.lease_id, replace(use, warned=0, warned_ms=0, told=0, told_ms=0, act_ms=0))


def _put(state: State, lease_id: str, use: LeaseUse) -> None:
    lease = state.leases[lease_id]
    if use != lease.use:
        put_lease(state, replace(lease, use=use, seq=state.seq))


# -- those who borrow


def borrows(state: State, piece: Slice) -> None:
    """A slice is held on what another one does not use."""
    if piece.plan.lender:
        state.borrowers.setdefault(piece.plan.lender, {})[piece.slice_id] = None


def borrowed_no_more(state: State, piece: Slice) -> None:
    """A slice holds nothing any more."""
    if piece.plan.lender:
        others = state.borrowers[piece.plan.lender]
        del others[piece.slice_id]
        if not others:
            del state.borrowers[piece.plan.lender]


def lender_goes(state: State, lease: Lease, at_ms: int) -> None:
    """A lease ends: what others use of its share is to be given back as well."""
    if any(piece.slice_id in state.borrowers for piece in lease.slices):
        state.timers.add(at_ms, Due.LOAN, lease.lease_id)


def inherit(state: State, piece: Slice) -> None:
    """A slice is gone. Those that used its share hold it by themselves now: there is room for it, it was the lender's.
    Freed capacity must not be given to two.
    """
    for slice_id in list(state.borrowers.pop(piece.slice_id, ())):
        lease = state.leases[lease_id_of(slice_id)]
        old = lease.find(slice_id)
        assert old is not None
        plan = replace(old.plan, lender="", lender_memory=False)
        state.inventory.release(old.plan)
        state.inventory.reserve(plan)
        state.node_touched(plan.node_id)
        new = replace(old, plan=plan)
        slices = tuple(new if other is old else other for other in lease.slices)
        put_lease(state, replace(lease, slices=slices, seq=state.seq))


def index(state: State) -> None:
    """Derive the indexes from the books."""
    for lease in state.leases.values():
        if lease.ended:
            continue
        if lease.use.lent and not lease.ending:
            state.lenders[lease.lease_id] = None
        for piece in lease.holding:
            borrows(state, piece)
        if lease.ending:
            lender_goes(state, lease, state.now_ms)


SUBJECT = Subject(
    name="use",
    apply=by_kind(_changed, _warned, _told, _acted, _lent, _recalled, _exempted),
    index=index,
)
