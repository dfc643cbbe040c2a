"""What the books hold about the use of a lease. Samples are not among it: they are in memory, and begin anew."""

from __future__ import annotations

import enum

import msgspec

from aliquot.coordinator.core.values.fact import Fact


class UseState(enum.IntEnum):
    """What a lease does with what it holds; numbers equal those of the contract."""

    UNKNOWN = 0
    """Not measured long enough, or not at all. Never taken for idleness."""
    ACTIVE = 1
    HELD = 2
    """No process of it is there."""
    IDLE = 3
    """Processes are there, and none of them has done anything."""
    HUNG = 4
    """All of it busy without a pause, at a power at which nothing is computed: programs that wait for one another."""
    GHOST = 5
    """No process of it is there, and its device says that it is busy: the driver has not noticed that one died."""


QUIET = frozenset({UseState.HELD, UseState.IDLE, UseState.GHOST})
"""States in which nothing is done with what is held."""


class IdleAction(enum.StrEnum):
    """What follows when a lease has been idle for as long as its queue allows."""

    NOTIFY = "notify"
    LEND = "lend"
    """Its share goes to opportunistic leases until it does something."""
    SUSPEND = "suspend"
    """It goes back to its queue, at its old place."""
    RELEASE = "release"


ENDING = frozenset({IdleAction.SUSPEND, IdleAction.RELEASE})
HOUR_MS = 3_600_000
WARNINGS_MAX = 4
EXEMPT_MS_MAX = 24 * HOUR_MS


class IdlePolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """When idleness has consequences, and which."""

    action: IdleAction = IdleAction.NOTIFY
    after_ms: int = 2 * HOUR_MS
    """Of observed idleness."""
    warn_ms: tuple[int, ...] = (HOUR_MS, 105 * 60_000)
    """When its holder is told, rising, all of them before `after_ms`."""


USUAL_POLICY = IdlePolicy()


class LeaseUse(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is known of the use of a lease's present grant, and what has followed from it."""

    state: UseState = UseState.UNKNOWN
    since_ms: int = 0
    warned: int = 0
    """Warnings of this spell of idleness."""
    warned_ms: int = 0
    """When the last of them was."""
    told: int = 0
    """How many of them have reached somebody."""
    told_ms: int = 0
    act_ms: int = 0
    """When the act comes if nothing changes, as the last warning said; 0: none was announced."""
    action: IdleAction = IdleAction.NOTIFY
    lent: bool = False
    """Opportunistic leases may use its share..."""
    lent_memory: bool = False
    """...and its memory, because no process of it is there."""
    exempt_until_ms: int = 0
    exempt_reason: str = ""
    exempt_by: str = ""


NO_USE = LeaseUse()


# --------------------
# What has happened to the use of leases. Samples are no facts.


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
