"""Which policy holds for a lease."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.books.use import ENDING, USUAL_POLICY, IdleAction, IdlePolicy


def policy_of(tenancy: Tenancy, tenant: str, queue: str) -> IdlePolicy:
    """What its queue says, else the first queue above that says anything; else nothing follows but notices."""
    return tenancy.said(tenant, queue, lambda spec: spec.idle) or USUAL_POLICY


def acts_on(policy: IdlePolicy, lease: Lease) -> bool:
    """Whether the policy ends this lease when it stays idle."""
    return policy.action in ENDING and not lease.ending


def told_of_all(policy: IdlePolicy, lease: Lease, now_ms: int) -> bool:
    """Whether every warning was given, has reached somebody, and that long enough ago: the last one announces the act
    a while before it.
    """
    use = lease.use
    if use.warned < len(policy.warn_ms) or use.told < len(policy.warn_ms):
        return False
    return now_ms - use.told_ms >= policy.after_ms - policy.warn_ms[-1]


def may_lend(policy: IdlePolicy, lease: Lease, idle_ms: int) -> bool:
    """Whether what it holds may be lent: before anything is ended, once its holder has been told. What is itself
    borrowed is not.
    """
    if any(piece.plan.lender for piece in lease.current):
        return False
    if policy.action is IdleAction.LEND:
        return idle_ms >= policy.after_ms
    return policy.action in ENDING and lease.use.warned > 0
