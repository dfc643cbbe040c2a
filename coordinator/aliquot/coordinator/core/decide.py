"""`decide(planning, command, now_ms)`: what follows from a command, as facts, changing nothing that is journalled.

Every decision is a function of the State and the settings: ids and times come in with the command. A command that can't
be carried out is refused with a DomainError. Deciding writes only the planner's memory, which can be
rebuilt. Its facts are applied at once: see `planner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import pricing, tick
from aliquot.coordinator.core.access import decide as access
from aliquot.coordinator.core.admission import decide as admission
from aliquot.coordinator.core.admission import explain
from aliquot.coordinator.core.capacity import decide as capacity
from aliquot.coordinator.core.capacity.queries import GetCapacity
from aliquot.coordinator.core.capacity.queries import report as capacity_now
from aliquot.coordinator.core.demand import decide as demand
from aliquot.coordinator.core.elastic import decide as elastic
from aliquot.coordinator.core.enrolment import authority
from aliquot.coordinator.core.enrolment import decide as enrolment
from aliquot.coordinator.core.health import decide as health
from aliquot.coordinator.core.health.queries import GetHealth
from aliquot.coordinator.core.health.queries import health as health_now
from aliquot.coordinator.core.leases import allocate, extending, lifecycle, placing, reports
from aliquot.coordinator.core.ledger import decide as ledger
from aliquot.coordinator.core.lending import decide as lending
from aliquot.coordinator.core.maintenance import decide as maintenance
from aliquot.coordinator.core.mig import decide as mig
from aliquot.coordinator.core.nodes import decide as nodes
from aliquot.coordinator.core.nodes import reconcile
from aliquot.coordinator.core.outcomes import Decision
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.queries import DryRun, Explain, ExplainLease, Fits, Query
from aliquot.coordinator.core.tenancy import decide as tenancy
from aliquot.coordinator.core.use import decide as use
from aliquot.coordinator.core.use.queries import GetUse
from aliquot.coordinator.core.use.queries import report as use_now

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
    c.StartLeading: nodes.start_leading,
    c.RaiseEpoch: nodes.raise_epoch,
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
    c.OnBehalf: access.on_behalf,
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
    c.LearnPrices: pricing.learn,
    c.NoteDemand: demand.note,
    c.DeclareCapacity: capacity.declare,
    c.TakeOrders: capacity.take,
    c.ReportOrder: capacity.report,
    c.WithdrawOrder: capacity.withdraw,
    c.ExpectDemand: capacity.expect_demand,
}
