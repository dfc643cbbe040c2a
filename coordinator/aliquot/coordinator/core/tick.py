"""Tick: carry out what is due. One subject a call, so that a turn stays short."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.facts import LeasesForgotten
from aliquot.coordinator.core.books.leases.records import SliceState
from aliquot.coordinator.core.books.ledger.facts import BudgetCrossed, UsageFolded
from aliquot.coordinator.core.books.ledger.meters import ALERT_PERMILLE
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.commands import RetrySetAside, Tick
from aliquot.coordinator.core.commands.outcomes import Decision, SetAside, TickOutcome
from aliquot.coordinator.core.deciding import elastic as resizing
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.access import expired as token_expired
from aliquot.coordinator.core.deciding.borrowing import look as look_at_loan
from aliquot.coordinator.core.deciding.capacity.ordering import look as look_at_capacity
from aliquot.coordinator.core.deciding.enrolment import look_at_invite
from aliquot.coordinator.core.deciding.health import look as look_at_incident
from aliquot.coordinator.core.deciding.lending import look as look_at_projects
from aliquot.coordinator.core.deciding.maintenance import look as look_at_window
from aliquot.coordinator.core.deciding.mig import look as look_at_cards
from aliquot.coordinator.core.deciding.tenancy import offences_over, quotas_moved
from aliquot.coordinator.core.known.planning import FOLDED_AT_ONCE, Planning, Work
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import EndReason


def tick(state: Planning, command: Tick, now_ms: int) -> Decision[TickOutcome]:
    """Look at due entries until one of them asks for something, or `limit` asked for nothing."""
    due = state.due(now_ms, command.limit)
    troubles = state.memory.troubles
    for number, work in enumerate(due, 1):
        with troubles.blaming(work.key, work.place):
            facts = _LOOK[work.kind](state, work.subject, now_ms)
        if facts:
            taken = due[:number]
            # A window that has moved on is looked at again once it has: its nodes are to be emptied. So is an incident.
            more = work.kind in (Due.MAINTENANCE, Due.HEALTH) or _more(state, taken, now_ms)
            return Decision(tuple(facts), TickOutcome(more), tuple(taken))
        if work.kind is Due.RETRY and state.lines.is_resting(work.subject):
            # It stands in line again once this has been carried out, and what is due next should know.
            taken = due[:number]
            return Decision((), TickOutcome(_more(state, taken, now_ms)), tuple(taken))
    return Decision((), TickOutcome(_more(state, due, now_ms)), tuple(due))


def retry_set_aside(state: Planning, command: RetrySetAside, now_ms: int) -> Decision[SetAside]:
    """Forget that it failed. Nothing of it is durable, so nothing is journalled."""
    found = [trouble for trouble in state.troubles_about(command.subject) if trouble.set_aside]
    for trouble in found if command.carry_out else ():
        state.memory.troubles.drop(trouble.work)
        state.memory.look_again = True
    return Decision((), SetAside(tuple(found)))


def _more(state: Planning, taken: list[Work], now_ms: int) -> bool:
    """Whether something will still be due when these have been taken."""
    return len(state.due(now_ms, len(taken) + 1)) > len(taken)


def _time_limit(state: Planning, lease_id: str, now_ms: int) -> list[Fact]:
    lease = state.leases.get(lease_id)
    if lease is None or lease.ended or lease.ending or lease.waiting:
        return []
    due_ms = lease.granted_ms + lease.request.time_limit_ms
    if not lease.request.time_limit_ms:
        return []
    if due_ms > now_ms:  # granted again since
        return []
    return lifecycle.end(state, lease, EndReason.TIME_LIMIT, now_ms, detail=f"{lease.request.time_limit_ms} ms")


def _confirm(state: Planning, lease_id: str, now_ms: int) -> list[Fact]:
    """A grant that its agents have not confirmed: try elsewhere. Agentless nodes never confirm, and need not."""
    lease = state.leases.get(lease_id)
    if lease is None or lease.ended or lease.ending or lease.waiting:
        return []
    if lease.active_ms:
        return resizing.unconfirmed(state, lease, now_ms)
    if lease.granted_ms + state.config.confirm_timeout_ms > now_ms:  # granted again since
        return []
    silent = [
        piece
        for piece in lease.holding
        if (piece.resume or piece.state) is SliceState.GRANTED and not lifecycle.is_agentless(state, piece)
    ]
    if not silent:
        return []
    story = f"not confirmed by the agent of {silent[0].plan.node_id} in {state.config.confirm_timeout_ms} ms"
    if lease.failures >= state.config.requeues_max:
        return lifecycle.end(state, lease, EndReason.FAILED, now_ms, detail=story)
    avoid = [piece.plan.device_uuid for piece in silent]
    return lifecycle.retry_elsewhere(state, lease, list(lease.holding), avoid, story, now_ms)


def _retry(state: Planning, lease_id: str, now_ms: int) -> list[Fact]:
    # Its equals waited for the same moment, also where the lease itself has gone.
    state.memory.look_again = True
    if state.memory.troubles:
        state.memory.troubles.wake(lease_id, now_ms)
    return []


def _preempted(state: Planning, lease_id: str, now_ms: int) -> list[Fact]:
    """The oldest of its preemptions no longer counts: it may start again where it could be preempted."""
    lease = state.leases.get(lease_id)
    if lease is None or len(lease.preempted_at_ms) >= state.config.preemptions_max:
        state.memory.look_again = True
    return []


def _patience(state: Planning, lease_id: str, now_ms: int) -> list[Fact]:
    """Let the first in line of a tenant be looked at again; of those behind it, nothing follows yet. Under `slowdown`
    anybody: others that are due sooner may have come lately.
    """
    place = state.lines.place_of(lease_id)
    if place is None:
        return []
    by_due = state.tenancy.queue_spec(place.queue).policy is QueuePolicy.SLOWDOWN
    if by_due or state.lines.is_first(lease_id):
        state.memory.look_again = True
    return []


def _forget(state: Planning, _: str, now_ms: int) -> list[Fact]:
    """Drop ended leases that are old enough, or too many. At most 1,000 a step."""
    config = state.config
    state.memory.forget_due_ms = 0
    surplus = len(state.ended) - config.retain_ended_max
    old: list[str] = []
    for lease_id in state.ended:
        overdue = state.leases[lease_id].ended_ms + config.retain_ended_ms <= now_ms
        if len(old) == 1000 or not (overdue or len(old) < surplus):
            break
        old.append(lease_id)
    if not old:
        return []  # when the oldest is due is looked up anew
    state.memory.forgot_ms = now_ms
    return [LeasesForgotten(at_ms=now_ms, lease_ids=tuple(old))]


def _fold(state: Planning, _: str, now_ms: int) -> list[Fact]:
    """Sum up the oldest usage: a step of those beyond what is kept entry by entry."""
    state.memory.fold_due = False
    surplus = state.ledger.usage_entries - state.config.ledger_entries_max
    if surplus <= 0:
        return []
    return [UsageFolded(at_ms=now_ms, up_to_number=state.ledger.nth_usage(min(surplus, FOLDED_AT_ONCE)))]


def _budget(state: Planning, tenant: str, now_ms: int) -> list[Fact]:
    """Record that a budget reached a level; try requests again that waited for the next period."""
    meter = state.meters.get(tenant)
    if meter is None:
        return []
    period_start_ms = now_ms - now_ms % meter.budget.period.length_ms
    if period_start_ms > meter.period_start_ms or now_ms == period_start_ms:
        state.memory.look_again = True
    reached = max((level for level in ALERT_PERMILLE if meter.permille(now_ms) >= level), default=0)
    if reached and state.ledger.levels.get(tenant, (0, 0)) < (period_start_ms, reached):
        return [BudgetCrossed(at_ms=now_ms, tenant=tenant, permille=reached, period_start_ms=period_start_ms)]
    return []


def _offence(state: Planning, tenant: str, now_ms: int) -> list[Fact]:
    """An offence of a tenant does not count any more: what it was held to may be over."""
    state.memory.look_again = True
    return offences_over(state, tenant, now_ms)


def _quota(state: Planning, _: str, now_ms: int) -> list[Fact]:
    """A window of a quota opens or closes; where nothing does, this moment was put in force already."""
    return quotas_moved(state, now_ms)


_LOOK = {
    Due.TIME_LIMIT: _time_limit,
    Due.CONFIRM: _confirm,
    Due.RETRY: _retry,
    Due.PREEMPTED: _preempted,
    Due.FORGET: _forget,
    Due.BUDGET: _budget,
    Due.FOLD: _fold,
    Due.HOLD: holding.expired,
    Due.PATIENCE: _patience,
    Due.CUT: look_at_cards,
    Due.GROWTH: resizing.grow,
    Due.SHRINK: resizing.notice_over,
    Due.BALANCE: look_at_projects,
    Due.MAINTENANCE: look_at_window,
    Due.TOKEN: token_expired,
    Due.INVITE: look_at_invite,
    Due.OFFENCE: _offence,
    Due.HEALTH: look_at_incident,
    Due.LOAN: look_at_loan,
    Due.QUOTA: _quota,
    Due.CAPACITY: look_at_capacity,
}
