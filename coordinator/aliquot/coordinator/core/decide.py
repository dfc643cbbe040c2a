"""`decide(planning, command, now_ms)`: what follows from a command, as facts, changing nothing that is journalled.

Every decision is a function of the State and the settings: ids and times come in with the command. A command that can't
be carried out is refused with a DomainError. Deciding writes only the planner's memory, which can be
rebuilt. Its facts are applied at once: see `planner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import tick
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.commands.queries import DryRun, Explain, ExplainLease, Fits, Query
from aliquot.coordinator.core.deciding import (
    access,
    demand,
    elastic,
    enrolment,
    extending,
    health,
    leading,
    ledger,
    lending,
    maintenance,
    mig,
    nodes,
    reports,
    tenancy,
    use,
)
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import enrolment as authority
from aliquot.coordinator.core.deciding import reports as reconcile
from aliquot.coordinator.core.deciding.admission import admit as admission
from aliquot.coordinator.core.deciding.admission import allocate, placing
from aliquot.coordinator.core.deciding.answers import explain
from aliquot.coordinator.core.deciding.answers.health import GetHealth
from aliquot.coordinator.core.deciding.answers.health import health as health_now
from aliquot.coordinator.core.deciding.answers.use import GetUse
from aliquot.coordinator.core.deciding.answers.use import report as use_now
from aliquot.coordinator.core.deciding.capacity import ordering as capacity
from aliquot.coordinator.core.deciding.capacity.queries import GetCapacity
from aliquot.coordinator.core.deciding.capacity.queries import report as capacity_now
from aliquot.coordinator.core.known.planning import Planning

T = TypeVar("T")


def decide(planning: Planning, command: c.Command[T], now_ms: int) -> Decision[T]:
    """What to do about `command`. Raises DomainError when it is refused.

    `now_ms` is never below the time of the last fact: the writer's clock sees to it, and it is enforced here once more.
    """
    planning.catch_up()
    planning.memory.troubles.begin()
    return decide_one(planning, command, max(now_ms, planning.now_ms))


def decide_one(planning: Planning, command: c.Command[T], now_ms: int) -> Decision[T]:
    """The same within a decision that has begun."""
    return _DECIDE[type(command)](planning, command, now_ms)


def _on_behalf(planning: Planning, command: c.OnBehalf[Any], now_ms: int) -> Decision[Any]:
    """What follows from a command that somebody gave, and who that was, where anything does."""
    access.require_token(planning, command.by, now_ms)
    decision = decide_one(planning, command.command, now_ms)
    if not decision.facts:
        return decision
    return Decision((access.acted(command, now_ms), *decision.facts), decision.outcome, decision.taken)


def answer(planning: Planning, query: Query[T], now_ms: int) -> T:
    """The answer to `query`. Raises DomainError where it asks for what does not exist."""
    planning.catch_up()
    found: T = _ANSWER[type(query)](planning, query, max(now_ms, planning.now_ms))
    return found


def _dry_run(planning: Planning, query: DryRun[T], now_ms: int) -> T:
    return decide(planning, query.command, now_ms).outcome


_ANSWER: dict[type[Any], Callable[[Planning, Any, int], Any]] = {
    Explain: explain.explain_request,
    ExplainLease: explain.explain_lease,
    Fits: placing.fits,
    DryRun: _dry_run,
    GetHealth: health_now,
    GetUse: use_now,
    GetCapacity: capacity_now,
}
_DECIDE: dict[type[Any], Callable[[Planning, Any, int], Decision[Any]]] = {
    c.StartLeading: leading.start_leading,
    c.RaiseEpoch: leading.raise_epoch,
    c.Allocate: allocate.allocate,
    c.GrantOn: placing.grant_on,
    c.Release: lifecycle.release,
    c.ExtendLease: extending.extend,
    c.AcknowledgeShape: elastic.acknowledge,
    c.Admit: admission.admit,
    c.Tick: tick.tick,
    c.RetrySetAside: tick.retry_set_aside,
    c.DeclareNode: nodes.declare,
    c.RemoveNode: nodes.remove,
    c.Cordon: nodes.cordon,
    c.DeclareMaintenance: maintenance.declare,
    c.EndMaintenance: maintenance.end,
    c.RegisterNode: nodes.register,
    c.NodeSilent: nodes.silent,
    c.NodeHeard: nodes.heard,
    c.ReportDevice: nodes.report_device,
    c.ReportCut: mig.report,
    c.ReportCare: health.report_care,
    c.ReportHit: health.report_hit,
    c.QuarantineDevice: health.quarantine,
    c.VerifyDevice: health.verify,
    c.ReturnDevice: health.give_back,
    c.ReconcileNode: reconcile.reconcile,
    c.ReportSlices: reports.report_slices,
    c.LookAtUse: use.look,
    c.ExemptLease: use.exempt,
    c.ConfirmNotice: use.confirm_notice,
    c.OnBehalf: _on_behalf,
    c.GrantRole: access.grant_role,
    c.RevokeRole: access.revoke_role,
    c.IssueToken: access.issue_token,
    c.OpenSession: access.open_session,
    c.RevokeTokens: access.revoke_tokens,
    c.InviteNode: enrolment.invite,
    c.JoinNode: enrolment.join,
    c.DisenrolNode: enrolment.disenrol,
    c.RotateAuthority: authority.rotate,
    c.RetireAuthority: authority.retire,
    c.NoteTrust: authority.note_trust,
    c.Apply: tenancy.apply,
    c.MoveQuotas: tenancy.move_quotas,
    c.Withdraw: tenancy.remove,
    c.Forgive: tenancy.forgive,
    c.Balance: lending.balance,
    c.PostCredit: ledger.post_credit,
    c.CorrectUsage: ledger.correct_usage,
    c.ObserveUse: ledger.observe_use,
    c.CloseBooks: ledger.close_books,
    c.LearnPrices: leading.learn,
    c.NoteDemand: demand.note,
    c.DeclareCapacity: capacity.declare,
    c.TakeOrders: capacity.take,
    c.ReportOrder: capacity.report,
    c.WithdrawOrder: capacity.withdraw,
    c.ExpectDemand: capacity.expect_demand,
}
