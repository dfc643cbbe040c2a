"""What an administrator declares of pools, tenants and queues. Integers only; every number has its unit in its name.

A *quota* says how much of the pool its owner may count on (`guaranteed`), may ever hold (`limit`), and how strongly it
counts when idle capacity is shared out (`weight`). Tenants and queues both carry one: a tenant is who pays, a queue is
where requests wait. A lease counts against its tenant, its queue, and every queue above that.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec

from aliquot.common.tiers import Tier
from aliquot.coordinator.core.books.tenancy.scaling import ScaleRule
from aliquot.coordinator.core.books.use import IdlePolicy

UNLIMITED = -1
ROOT = "root"
"""The queue above all queues. It always exists; applying it sets the order among top-level queues."""
DEFAULT_QUEUE = "default"
"""Where requests wait that name no queue, of tenants without a queue of their own. It need not be declared."""
DEFAULT_TENANT = "default"
SHARE_MILLI_MAX = 10**12
MEMORY_BYTES_MAX = 1 << 62
WEIGHT_MAX = 10_000
QUEUE_DEPTH_MAX = 8


class Amount(msgspec.Struct, frozen=True, array_like=True):
    """So much share and so much memory."""

    share_milli: int = 0
    memory_bytes: int = 0

    def __bool__(self) -> bool:
        return bool(self.share_milli or self.memory_bytes)

    def plus(self, other: Amount) -> Amount:
        """The sum."""
        return Amount(self.share_milli + other.share_milli, self.memory_bytes + other.memory_bytes)


NO_LIMIT = Amount(UNLIMITED, UNLIMITED)


class ModelQuota(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of a quota that speaks of one kind of devices."""

    model: str
    """A model, a family of models, or a vendor (`amd`): see `catalog.covers`."""
    guaranteed: Amount = Amount()
    limit: Amount = NO_LIMIT


class QuotaWindow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a quota says instead while this window is open. What is None stays as it is outside of windows."""

    when: str
    """As `timetable` reads it, in its shortest words."""
    guaranteed: Amount | None = None
    limit: Amount | None = None
    models: tuple[ModelQuota, ...] | None = None
    """All that is said of kinds of devices then."""


class Quota(msgspec.Struct, frozen=True, omit_defaults=True):
    """See the module's docstring. A guarantee of memory alone, or of share alone, leaves the other unbounded."""

    guaranteed: Amount = Amount()
    limit: Amount = NO_LIMIT
    weight: int = 1
    models: tuple[ModelQuota, ...] = ()
    """Sorted by model, each at most once. Where kinds overlap, what is held counts in each, and the guarantee of one is
    enough.
    """
    windows: tuple[QuotaWindow, ...] = ()
    """The first of them that is open is in force. None in a quota that is in force."""

    @property
    def guarantees(self) -> bool:
        """Whether anything is guaranteed, at some time."""
        return any(
            bool(quota.guaranteed) or any(model.guaranteed for model in quota.models) for quota in self.variants()
        )

    def under(self, window: int) -> Quota:
        """The quota that is in force while a window is open, by its place; -1: outside of all."""
        if not 0 <= window < len(self.windows):
            return msgspec.structs.replace(self, windows=()) if self.windows else self
        opened = self.windows[window]
        return Quota(
            guaranteed=self.guaranteed if opened.guaranteed is None else opened.guaranteed,
            limit=self.limit if opened.limit is None else opened.limit,
            weight=self.weight,
            models=self.models if opened.models is None else opened.models,
        )

    def variants(self) -> Iterator[Quota]:
        """All that may be in force, outside of windows first."""
        for window in range(-1, len(self.windows)):
            yield self.under(window)


class QueuePolicy(enum.StrEnum):
    """How a queue orders what waits in it: its tenants, or the queues below it."""

    FIFO = "fifo"
    """By arrival alone."""
    PRIORITY = "priority"
    """By priority, raised with the time waited, then by arrival."""
    FAIR_SHARE = "fair_share"
    """By priority, then by decayed and present dominant share over weight, then by arrival."""
    CAPACITY = "capacity"
    """By what is held over what is guaranteed, then by arrival."""
    SLOWDOWN = "slowdown"
    """By priority, then so that no wait is long against the run that follows it: see `queueing.slowdown`."""


class OverLimitAction(enum.StrEnum):
    """What follows for a tenant whose leases end as `OVER_LIMIT`."""

    NONE = "none"
    STRONGER_TIER = "stronger_tier"
    """Parts of devices are granted to it only where a tier denies what is beyond a limit to any program."""
    REFUSE = "refuse"
    """It is granted nothing, and new requests are refused."""


class OnOverLimit(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a tenant answers for leases that ended as `OVER_LIMIT`, and how."""

    action: OverLimitAction = OverLimitAction.NONE
    for_ms: int = 3_600_000
    """Each such end counts for so long..."""
    after: int = 1
    """...and so many must count at the same time."""
    min_tier: int = Tier.DRIVER
    """What `stronger_tier` asks for. All weaker tiers can be got around by a program that does not cooperate."""


NO_ANSWER = OnOverLimit()


class QueueSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where requests wait, and what is guaranteed to those that do."""

    name: str
    parent: str = ROOT
    policy: QueuePolicy = QueuePolicy.PRIORITY
    quota: Quota = Quota()
    pool: str = ""
    """When set, requests of this queue are placed in this pool only."""
    tenants: tuple[str, ...] = ()
    """Who may use it; empty: everybody. Sorted."""
    ageing_ms: int = 60_000
    """Waiting this long counts like one point of priority; 0: priority never grows."""
    preempts: bool = True
    """Whether its requests may end leases of lower priority. Reclaiming a guarantee is always allowed."""
    reserve_after_ms: int = 300_000
    """The first request that has waited so long and does not fit has devices kept for it; 0: never."""
    half_life_ms: int = 86_400_000
    """Of the usage that `fair_share` remembers. Only the root queue's counts, for all."""
    scaling: tuple[ScaleRule, ...] = ()
    """What holds elastic leases of this queue, and of those below it, back."""
    on_over_limit: OnOverLimit | None = None
    """Of tenants that say nothing themselves; None: as the queue above has it."""
    idle: IdlePolicy | None = None
    """What follows when leases of this queue are idle; None: as the queue above has it, in the end notices only."""
    extend_to_ms: int | None = None
    """How long time limits of its leases may become by being extended; 0: they are not extended; None: as the queue
    above has it, in the end as long as may be asked for."""
    large_first_permille: int = 500
    """Under `slowdown`: how much sooner large requests are due, and room is made for them. 0: like small ones; 1000: a
    request for a whole node at once."""
    placement: str = ""
    """By which policy its requests are placed, or `workload`: by what they say they are; empty: as the queue above has
    it, then their pool, then the coordinator."""


class Period(enum.StrEnum):
    """What a budget is for. Periods are whole multiples of their length since the Unix epoch, in UTC."""

    HOUR = "hour"
    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    """30 days."""

    @property
    def length_ms(self) -> int:
        """Milliseconds."""
        return _PERIOD_MS[self]


_PERIOD_MS = {
    Period.HOUR: 3_600_000,
    Period.DAY: 86_400_000,
    Period.WEEK: 7 * 86_400_000,
    Period.MONTH: 30 * 86_400_000,
}


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """How much a tenant may use up in a period: then nothing new is granted until the next one; what runs goes on."""

    period: Period = Period.MONTH
    share_milli_ms: int = 0
    """GPU time: thousandths of a device times milliseconds (a GPU-hour is 3,600,000,000); 0: no such limit."""
    money_micro: int = 0
    """At list price, in millionths of the currency; 0: no such limit."""

    def __bool__(self) -> bool:
        return bool(self.share_milli_ms or self.money_micro)


class TenantSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who pays, and what was promised to them."""

    name: str
    quota: Quota = Quota()
    default_queue: str = ""
    budget: Budget = Budget()
    disruptions_max: int = 0
    """At most so many of its leases are preempted by priority within `disruption_period_ms`; 0: no such bound."""
    disruption_period_ms: int = 3_600_000
    description: str = ""
    on_over_limit: OnOverLimit | None = None
    """None: as the queue of its requests has it."""
    priority_max: int | None = None
    """Nothing of higher priority is asked for in its name, or below it; None: as it is above."""
    waiting_max: int | None = None
    """At most so many requests wait, of it and all below it together; None: no such bound of its own."""


class DeclaredDevices(msgspec.Struct, frozen=True, array_like=True):
    """Devices that a pool has, or will have once its nodes register."""

    model: str
    devices: int
    memory_bytes: int
    """Leasable, of one device."""


class PoolSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named set of devices: those of the nodes that name it. Guarantees are checked against what is declared here."""

    name: str
    declared: tuple[DeclaredDevices, ...] = ()
    limit: Amount = NO_LIMIT
    """At most so much of it is leased: what stays free is headroom."""
    placement: str = ""
    """By which policy requests are placed that are for this pool alone; see `QueueSpec.placement`."""


class Pool(msgspec.Struct, frozen=True):
    """A declared pool. `version` rises with every change."""

    spec: PoolSpec
    version: int


class Tenant(msgspec.Struct, frozen=True):
    """A declared tenant. `version` rises with every change."""

    spec: TenantSpec
    version: int


class Queue(msgspec.Struct, frozen=True):
    """A declared queue. `version` rises with every change."""

    spec: QueueSpec
    version: int


# --------------------
# The tree of tenants, which is in their names: `research` is above `research/vision`.


def upwards(tenant: str) -> Iterator[str]:
    """A tenant, then those above it."""
    yield tenant
    while "/" in tenant:
        tenant = tenant.rpartition("/")[0]
        yield tenant
