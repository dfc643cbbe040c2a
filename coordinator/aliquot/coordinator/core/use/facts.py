"""What has happened to the use of leases. Samples are no facts. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.use.records import IdleAction, UseState


class UseChanged(Fact, frozen=True, tag="use"):
    """A lease does something else with what it holds than before."""

    lease_id: str
    state: UseState
    since_ms: int


class IdleWarned(Fact, frozen=True, tag="idle!"):
    """The holder of a lease is warned that it is idle: the `number`-th time in this spell."""

    lease_id: str
    number: int
    idle_ms: int
    """Observed."""
    action: IdleAction
    act_ms: int
    """When the action comes if nothing changes; 0: nothing but notices follows."""
    text: str


class WarningTold(Fact, frozen=True, tag="idletold"):
    """A warning has reached somebody: the launcher's keep-alive was answered with it, or a notifier delivered it."""

    lease_id: str
    number: int
    by: str = ""
    """The principal of the notifier; empty: the launcher."""


class IdleActed(Fact, frozen=True, tag="idleact"):
    """What was announced is done. How the lease ends are facts of the same group."""

    lease_id: str
    action: IdleAction
    idle_ms: int


class ShareLent(Fact, frozen=True, tag="lent+"):
    """Opportunistic leases may use what an idle lease holds."""

    lease_id: str
    memory: bool
    """Its memory as well."""


class ShareRecalled(Fact, frozen=True, tag="lent-"):
    """They may not any more. What they use goes; the facts of that are of the same group."""

    lease_id: str
    reason: str


class LeaseExempted(Fact, frozen=True, tag="exempt"):
    """Idleness of a lease has no consequences for a while; or (`until_ms` 0) it has again."""

    lease_id: str
    until_ms: int
    reason: str = ""
    by: str = ""
