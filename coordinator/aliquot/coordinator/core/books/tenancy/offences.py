"""Leases that ended as `OVER_LIMIT`, held against their tenant for a while: which count, until when, what follows.

An end is an offence where a policy held for it. The State keeps when the latest ones of each tenant were; whether they
count follows from the clock and from what is declared now. An administrator may forgive them.
"""

from __future__ import annotations

from typing import NamedTuple

from aliquot.common.tiers import Tier
from aliquot.coordinator.core.books.tenancy.specs import NO_ANSWER, OnOverLimit, OverLimitAction
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy

KEPT = 16
"""Of each tenant, the latest so many: as many as `OnOverLimit.after` can ask for."""


class Held(NamedTuple):
    """What a tenant is held to at the moment, and until when."""

    tenant: str
    policy: OnOverLimit
    offences: int
    """That count."""
    until_ms: int

    def story(self, now_ms: int) -> str:
        """One sentence for people: what, why, and when it ends."""
        what = (
            "granted nothing"
            if self.policy.action is OverLimitAction.REFUSE
            else f"held to the tier {Tier(self.policy.min_tier).word} or a stronger one"
        )
        leases = "1 lease" if self.offences == 1 else f"{self.offences} leases"
        left_s = -(-(self.until_ms - now_ms) // 1000)
        return f"tenant {self.tenant} is {what} for {left_s} s more: {leases} of it ended as OVER_LIMIT"


def policy_of(tenancy: Tenancy, tenant: str, queue: str) -> OnOverLimit:
    """What holds for a request: what its tenant says, else its queue, else the first queue above that says anything."""
    said = tenancy.tenant_spec(tenant).on_over_limit
    return said or tenancy.said(tenant, queue, lambda spec: spec.on_over_limit) or NO_ANSWER


def held(tenancy: Tenancy, tenant: str, queue: str, now_ms: int) -> Held | None:
    """What the tenant is held to for a request in this queue; None: nothing."""
    offences = tenancy.offences.get(tenant)
    if offences is None:
        return None
    policy = policy_of(tenancy, tenant, queue)
    if policy.action is OverLimitAction.NONE or len(offences) < policy.after:
        return None
    until_ms = offences[-policy.after] + policy.for_ms
    if until_ms <= now_ms:
        return None
    return Held(tenant, policy, sum(at_ms + policy.for_ms > now_ms for at_ms in offences), until_ms)


def counted_for_ms(tenancy: Tenancy, tenant: str) -> list[int]:
    """For how long an offence of this tenant may count, by each of the policies that may hold for its requests."""
    said = tenancy.tenant_spec(tenant).on_over_limit
    policies = [said] if said is not None else [queue.spec.on_over_limit for queue in tenancy.queues.values()]
    return sorted({p.for_ms for p in policies if p is not None and p.action is not OverLimitAction.NONE})
