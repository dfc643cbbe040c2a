"""Allocate: grant now, or put in line, or refuse."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.leases.facts import LeaseQueued
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy import ceilings
from aliquot.coordinator.core.commands import Allocate, GrantOn
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome, Decision
from aliquot.coordinator.core.deciding.admission.means.backfilling import backfill
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import LineKey
from aliquot.coordinator.core.rules.closing import why_not
from aliquot.coordinator.core.rules.granting import (
    check_access,
    granted,
    held_to,
    is_entitled,
    offer,
    offer_before,
    refuse_held_back,
    sterner,
)
from aliquot.coordinator.core.rules.offers import servable
from aliquot.coordinator.core.values.errors import (
    IdempotencyMismatch,
    NeverFits,
    NoCapacity,
    QueueFull,
    QuotaExceeded,
)
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.types import Placement, RequestSpec


def _is_first_entitled(known: Known, request: RequestSpec, now_ms: int) -> bool:
    """Whether a guarantee covers a request as it comes, and nobody of its owner waits who would use that up first."""
    if not known.tenancy.guarantees:
        return False
    top = request.tenant.partition("/")[0]
    if known.lines.waiting_below(top) or known.lines.length_of(known.tenancy.queue_of(request.tenant, request.queue)):
        return False
    return is_entitled(known, Lease("", known.next_arrival, request, created_ms=now_ms))


def allocate(known: Known, command: Allocate, now_ms: int) -> Decision[AllocateOutcome]:
    """One atomic group: the request is accepted, and granted where that jumps nobody's turn."""
    request = command.request
    replay = replayed(known, command)
    if replay is not None:
        return replay
    request = check_access(known, request)
    if not servable(known, request.demand):
        raise NeverFits(known.engine.explain(request.demand))
    refuse_held_back(known, request, now_ms)
    demand = sterner(known, request, request.demand, now_ms)
    entitled = _is_first_entitled(known, request, now_ms)
    if command.no_queue or not others_first(known, request):
        found = offer(known, request, demand, now_ms)
        placement = found.placement
        if placement is None and found.over is None:
            placement = backfill(known, request, demand, now_ms, lease_id=command.lease_id)
        if placement is not None:
            return started(known, command, request, placement, now_ms, entitled=entitled)
        if command.no_queue and found.over is not None:
            raise QuotaExceeded(found.over.subject, found.over.detail, "drop `no_queue` to wait until it may be had")
    elif known.closed and not known.wants_admission():
        # All that wait were tried there too, so this takes nothing from them.
        placement = offer_before(known, request, demand, now_ms)
        if placement is not None:
            return started(known, command, request, placement, now_ms, entitled=entitled)
    if command.no_queue:
        shortfall = why_not(known, request, demand, now_ms)[0]
        held = held_to(known, request, now_ms) if demand is not request.demand else None
        if held is not None:
            shortfall = replace(shortfall, impossible=False, summary=f"{shortfall.summary}; {held.story(now_ms)}")
        raise NoCapacity(shortfall)
    if len(known.lines) >= known.config.queued_max:
        raise QueueFull(
            f"{len(known.lines)} requests are waiting, which is the bound (`queued_max`)",
            hint="try again later, or raise `queued_max`",
        )
    if known.tenancy.ceilings:
        full = ceilings.full(known.tenancy.tenants, known.lines, request.tenant)
        if full is not None:
            raise full
    queued = _accepted(known, command, request, now_ms, entitled=entitled, at_once=False)
    return Decision((queued,), AllocateOutcome(command.lease_id))


def started(
    known: Known,
    command: Allocate | GrantOn,
    request: RequestSpec,
    placement: Placement,
    now_ms: int,
    *,
    entitled: bool = False,
) -> Decision[AllocateOutcome]:
    """A request that was accepted and granted there at once. `entitled`: see `LeaseQueued`."""
    queued = _accepted(known, command, request, now_ms, entitled=entitled, at_once=True)
    facts = queued, granted(command.lease_id, 1, placement, now_ms)
    return Decision(facts, AllocateOutcome(command.lease_id))


def _accepted(
    known: Known, command: Allocate | GrantOn, request: RequestSpec, now_ms: int, *, entitled: bool, at_once: bool
) -> LeaseQueued:
    """The request as it was accepted: the first fact of a lease."""
    return LeaseQueued(
        at_ms=now_ms,
        lease_id=command.lease_id,
        arrival=known.next_arrival,
        request=request,
        key=command.key,
        body_sha256=command.body_sha256,
        by=command.by,
        entitled=entitled,
        at_once=at_once,
    )


def replayed(known: Known, command: Allocate | GrantOn) -> Decision[AllocateOutcome] | None:
    """The lease that its key was used for before; None: it was not. Raises where that was for something else."""
    lease_id = known.keys.get((command.request.tenant, command.key)) if command.key else None
    if lease_id is None:
        return None
    if known.leases[lease_id].body_sha256 != command.body_sha256:
        raise IdempotencyMismatch(
            f"the idempotency key {command.key!r} was used for another request (lease {lease_id})",
            hint="use a fresh key for a new request, or send the very same request to get that lease",
        )
    return Decision((), AllocateOutcome(lease_id, replayed=True))


def others_first(known: Known, request: RequestSpec) -> bool:
    """Whether waiting requests have the first claim on what is free.

    While freed capacity has not been offered along the lines, newcomers stand in line too. Afterwards all that wait are
    known not to fit, so a newcomer takes nothing from them, except from its equals: those of its own line. Equals in
    other lines that wait although something fits are over some limit of their own.
    """
    if known.wants_admission():
        return True
    key = LineKey(request.demand, (), request.priority, 0)
    return known.lines.has_line(known.tenancy.queue_of(request.tenant, request.queue), request.tenant, key)


DECIDES = Decides(commands=by_kind(allocate))
