"""Explain: the same decisions as Allocate and the pass along the lines, stopped before anything changes."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy import ceilings
from aliquot.coordinator.core.commands.outcomes import QUOTA, Explained
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.deciding.admission.allocate import others_first
from aliquot.coordinator.core.deciding.admission.means.order import GIVE_BACK, foresee
from aliquot.coordinator.core.deciding.admission.outlook import look_ahead, notes_on_ahead, notes_on_order
from aliquot.coordinator.core.deciding.mig import notes as cuts_for
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.closing import why_not
from aliquot.coordinator.core.rules.granting import check_access, held_to, offer, sterner
from aliquot.coordinator.core.rules.mig import as_profiles, conceivable, served_by
from aliquot.coordinator.core.rules.offers import notes as notes_on_nodes
from aliquot.coordinator.core.rules.offers import on_offer, servable
from aliquot.coordinator.core.values.errors import DomainError, QuotaExceeded
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.types import Demand, Missing, RequestSpec

AHEAD_SHOWN = 16
CHANGES_TRIED_MAX = 8
"""So many of the smallest changes are tried, the nearest first: a placement each."""


def explain_request(known: Known, query: Explain, now_ms: int) -> Explained:
    """What would become of this request if it were sent now?"""
    try:
        request = check_access(known, query.request)
    except DomainError as refused:
        reason = QUOTA if isinstance(refused, QuotaExceeded) else refused.reason
        return Explained(False, True, str(refused), (Missing("any", reason, str(refused), refused.hint),))
    if not servable(known, request.demand):
        shortfall = known.engine.explain(request.demand)
        instead = _instead(known, request, shortfall.missing, now_ms)
        return Explained(False, True, shortfall.summary, missing=shortfall.missing, instead=instead)
    lease = Lease("", known.next_arrival, request, created_ms=now_ms)
    return _explain(known, lease, request.demand, now_ms)


def explain_lease(known: Known, query: ExplainLease, now_ms: int) -> Explained:
    """Why is this lease where it is?"""
    lease = known.lease(query.lease_id)
    if not lease.waiting or lease.ended:
        return Explained(False, False, _story(lease), queue_length=len(known.lines))
    return _explain(known, lease, lease.request.demand.avoiding(lease.avoid_device_uuids), now_ms)


def _explain(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Explained:
    is_waiting = bool(lease.lease_id)
    demand, asked = sterner(known, lease.request, demand, now_ms), demand
    held = held_to(known, lease.request, now_ms) if demand is not asked else None
    count, ahead = known.lines.ahead_of(lease, AHEAD_SHOWN) if is_waiting else (0, [])
    found = offer(known, lease.request, demand, now_ms, preempted_at_ms=lease.preempted_at_ms)
    if lease.avoid_device_uuids and found.placement is None and found.over is None:
        # A device that failed it is avoided only while there is another.
        wanted = sterner(known, lease.request, lease.request.demand, now_ms)
        found = offer(known, lease.request, wanted, now_ms)
    missing: tuple[Missing, ...] = ()
    would_preempt: tuple[str, ...] = ()
    endless: tuple[str, ...] = ()
    start_ms = 0
    notes = [*notes_on_ahead(known, lease, ahead, count), *notes_on_order(known, lease)]
    impossible = False
    if found.placement is not None:
        summary = "fits now, and is offered its place in turn" if is_waiting else "fits now"
    elif found.over is not None:
        summary = found.over.detail
        change = "wait, or have it forgiven" if found.over.until_ms else "wait until some of it is given back"
        if found.over.next_ms:
            change = "wait: the limit that is in force after this one allows it"
        missing = (Missing("any", QUOTA, found.over.detail, change),)
        start_ms = found.over.until_ms or found.over.next_ms
    else:
        shortfall, over_ms = why_not(known, lease.request, demand, now_ms)
        summary, missing = shortfall.summary, shortfall.missing
        on_its_way = notes_on_nodes(known, lease, demand, now_ms)
        if shortfall.impossible and held is None:
            otherwise = _otherwise(known, demand, summary)
            impossible, summary = not otherwise, otherwise or summary
        notes += on_its_way
        notes += [*served_by(known, demand), *cuts_for(known, lease, demand, now_ms)]
        shrunk = foresee(known, lease, demand, now_ms, GIVE_BACK)
        if shrunk is not None:
            given, start_ms, _ = shrunk
            notes.append(f"elastic leases give back {len(given)} slices for it: {', '.join(given[:AHEAD_SHOWN])}")
        else:
            would_preempt, start_ms, endless, why = look_ahead(known, lease, demand, now_ms)
            notes += why
            if over_ms and not start_ms > now_ms:
                start_ms, endless = over_ms, ()
    if held is not None:
        notes.append(held.story(now_ms))
        if found.placement is None:
            summary = f"{summary}; {held.story(now_ms)}"
    if not is_waiting and found.placement is None and known.tenancy.ceilings:
        full = ceilings.full(known.tenancy.tenants, known.lines, lease.request.tenant)
        if full is not None:
            summary = f"{summary}; and it may not wait: {full.message}"
            missing = (*missing, Missing("any", QUOTA, full.message, full.hint))
    if lease.not_before_ms > now_ms:
        summary = f"in back-off for {lease.not_before_ms - now_ms} ms more after: {lease.note}; {summary}"
    return Explained(
        fits_now=found.placement is not None,
        impossible=impossible,
        summary=summary,
        missing=missing,
        placement=found.placement,
        queue_position=count + 1 if is_waiting else 0,
        queue_length=known.lines.length_of(known.tenancy.queue_of(lease.request.tenant, lease.request.queue)),
        ahead=tuple(ahead),
        would_preempt=would_preempt,
        expected_start_ms=start_ms if start_ms > now_ms else 0,
        waits_for=endless,
        notes=tuple(notes),
        instead=_instead(known, lease.request, missing, now_ms),
    )


def _instead(known: Known, request: RequestSpec, missing: tuple[Missing, ...], now_ms: int) -> RequestSpec | None:
    """With the first of these changes with which Allocate would grant it at once; None: with none of them."""
    for each in missing[:CHANGES_TRIED_MAX]:
        if each.instead is None:
            continue
        asked = request.demand
        demand = replace(each.instead, min_tier=asked.min_tier, avoid_device_uuids=asked.avoid_device_uuids)
        limit_ms = each.time_limit_ms or request.time_limit_ms
        changed = replace(request, demand=demand, time_limit_ms=limit_ms, gpu_text="")
        resized = (demand.count, demand.gang_size) != (asked.count, asked.gang_size)
        if resized and (request.min_count or request.max_count):
            continue  # its bounds are about what it asked for
        with suppress(DomainError):
            changed = check_access(known, changed)
            wanted = sterner(known, changed, changed.demand, now_ms)
            if not others_first(known, changed) and offer(known, changed, wanted, now_ms).placement is not None:
                return changed
    return None


def _otherwise(known: Known, demand: Demand, summary: str) -> str:
    """How a demand may be served that no card can serve as it is; empty: never."""
    if conceivable(known, demand):
        profile = as_profiles(known, demand)[0].mig_profile
        return f"no part of a card is a {profile} now, but cards here can be cut so"
    if on_offer(known, demand):
        return f"no node that is here can serve it, but one of a shape on offer would: {summary}"
    return ""


def _story(lease: Lease) -> str:
    if lease.ended:
        return f"ended: {lease.end_reason}" + (f" ({lease.end_detail})" if lease.end_detail else "")
    if lease.ending:
        return f"ending: {lease.end_reason}; {len(lease.holding)} slices still hold their capacity"
    return f"{lease.state.name.lower()} on " + ", ".join(sorted({piece.plan.node_id for piece in lease.holding}))


DECIDES = Decides(queries=by_kind(explain_request, explain_lease))
