"""Preempt: others end for it, by priority or because a guarantee is reclaimed, and their devices are kept for it."""

from __future__ import annotations

from aliquot.coordinator.core.books.holds import Hold, HoldCreated, HoldKind, PreemptionStarted
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.commands.outcomes import SEARCH_ATTEMPTS, Attempt
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.opening import clear, devices_of
from aliquot.coordinator.core.deciding.admission.means.waiting import Foreseen, Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import is_entitled
from aliquot.coordinator.core.rules.preemption.displacement import Displacement, NoDisplacement, Preemption
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.rests import SEARCH_REST_MS
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Demand, EndReason, Placement


def preemption_of(known: Known) -> Preemption:
    """Finds preemptions, with what it remembers of each node."""
    return known.memory.part(Preemption, lambda: Preemption(known))


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """One search for the fewest and cheapest to end, which counts as `SEARCH_ATTEMPTS`. It rests for a second after it
    has found nothing, for all equal requests.
    """
    lease, demand, now_ms = waiting.lease, waiting.demand, waiting.now_ms
    preemption = preemption_of(known)
    if waiting.room_is_coming(known) or waiting.kept_suffices or not preemption.may(lease):
        return Attempt([])
    entitled, blocking = is_entitled(known, lease), waiting.blocking(known)
    owners = frozenset(hold.owner for hold in blocking)
    key = (demand, lease.request.tenant, lease.request.queue, lease.request.priority, owners)
    version = known.freed_version + known.tenancy.guaranteed_version
    searches = known.memory.victim_searches
    rest = searches.of(key, now_ms)
    if rest is not None:
        if searches.has_changed(key, version):
            known.memory.timers.add(rest.until_ms, Due.RETRY, lease.lease_id)
        return Attempt([])
    found = preemption.find(lease, demand, now_ms, owners)
    if isinstance(found, NoDisplacement):
        again_ms = found.again_ms
        if entitled:
            # Whoever borrows what is left from now on can be reclaimed after its minimum: this search did not see it.
            again_ms = min(again_ms, now_ms + max(SEARCH_REST_MS, known.config.reclaim_min_run_ms))
        searches.begin(key, version, now_ms, min(now_ms + SEARCH_REST_MS, again_ms))
        if again_ms < NEVER_MS:
            known.memory.timers.add(again_ms, Due.RETRY, lease.lease_id)
        return Attempt([], cost=SEARCH_ATTEMPTS)
    taken_over = _leaving_for_others(known, blocking, found.placement)
    cleared = clear(known, blocking, found.placement, now_ms, taken_over)
    return Attempt([*cleared, *carry_out(known, lease, found, now_ms, taken_over)], cost=SEARCH_ATTEMPTS)


def foresee(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Foreseen | None:
    """The same search, without its rest; or when an owner's guarantee can be reclaimed."""
    preemption = preemption_of(known)
    if not preemption.may(lease):
        return None
    entitled = is_entitled(known, lease)
    giving_way = frozenset(hold.owner for hold in holding.in_the_way(known, lease, entitled=entitled))
    found = preemption.find(lease, demand, now_ms, giving_way)
    if isinstance(found, Displacement):
        ending = (*found.victims, *found.shortened)
        if not ending:
            return None
        most_ms = known.config.reclaim_grace_ms if found.reclaim else NEVER_MS
        return Foreseen(ending, now_ms + max(min(known.leases[i].request.grace_ms, most_ms) for i in ending))
    if entitled and found.again_ms < NEVER_MS:
        return Foreseen((), found.again_ms + known.config.reclaim_grace_ms)
    return None


def _leaving_for_others(known: Known, holds: list[Hold], placement: Placement) -> tuple[str, ...]:
    """Victims of these holds on devices of this placement, which counts on their end too."""
    wanted = devices_of(placement)
    return tuple(
        lease_id
        for hold in holds
        for lease_id in hold.victims
        if lease_id in known.leases
        and any(piece.plan.device_uuid in wanted for piece in known.leases[lease_id].holding)
    )


def carry_out(
    known: Known, lease: Lease, found: Displacement, now_ms: int, taken_over: tuple[str, ...] = ()
) -> list[Fact]:
    """One group: victims chosen, devices kept, every victim told. `taken_over`: they were told for somebody else."""
    config = known.config
    facts: list[Fact] = holding.give_up_of(known, lease.lease_id, now_ms, "others make room instead")
    deadlines: dict[str, int] = {}
    for lease_id in found.victims:
        grace_ms = known.leases[lease_id].request.grace_ms
        deadlines[lease_id] = min(grace_ms, config.reclaim_grace_ms) if found.reclaim else grace_ms
    longest_ms = max([*deadlines.values(), config.reclaim_grace_ms] if not found.victims else deadlines.values())
    longest_ms = max(longest_ms, _last_to_leave_ms(known, found, now_ms) - now_ms)
    if found.victims:
        facts.append(
            PreemptionStarted(
                at_ms=now_ms,
                preemptor=lease.lease_id,
                victims=found.victims,
                deadline_ms=now_ms + longest_ms,
                reclaim=found.reclaim,
            )
        )
    facts.append(
        HoldCreated(
            at_ms=now_ms,
            owner=lease.lease_id,
            kind=HoldKind.PREEMPTION,
            placement=found.placement,
            expires_ms=now_ms + longest_ms + config.hold_slack_ms,
            victims=tuple(dict.fromkeys((*found.victims, *taken_over))),
            start_ms=now_ms + longest_ms,
        )
    )
    facts += (lifecycle.shorten_notice(known.leases[i], now_ms, config.reclaim_grace_ms) for i in found.shortened)
    why = "a guarantee is reclaimed" if found.reclaim else f"priority {lease.request.priority}"
    for lease_id, grace_ms in deadlines.items():
        facts += lifecycle.send_back(
            known,
            known.leases[lease_id],
            EndReason.PREEMPTED,
            now_ms,
            detail=f"for lease {lease.lease_id} ({why})",
            grace_ms=grace_ms,
        )
    return facts


def _last_to_leave_ms(known: Known, found: Displacement, now_ms: int) -> int:
    """When the last lease that is already ending leaves these devices."""
    shortened_ms = now_ms + known.config.reclaim_grace_ms
    last_ms = now_ms
    for uuid in devices_of(found.placement):
        node_id = known.inventory.device_record(uuid).node_id
        for slice_id in known.slice_ids_by_node[node_id]:
            lease_id = lease_id_of(slice_id)
            piece = known.leases[lease_id].find(slice_id)
            if piece is not None and piece.ending and piece.plan.device_uuid == uuid:
                last_ms = max(
                    last_ms, shortened_ms if lease_id in found.shortened else min(piece.deadline_ms, shortened_ms)
                )
    return last_ms
