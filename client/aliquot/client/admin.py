"""What administrators declare and read: pools, tenants, queues, prices, maintenance windows, invoices.

Field names are those of the contract. Zero and empty mean "unset"; the coordinator's defaults are then used. A field
that may be None is left out where it is None. Money is millionths of the currency, share thousandths of a device.
`Pool.admin` takes and gives these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.client._values.base import UNBOUNDED
from aliquot.client._values.nodes import MaintenancePhase


def _sum() -> int:
    total: int = field(default=0, metadata={UNBOUNDED: True})
    return total


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of share and memory. In limits, None is "no limit"; in guarantees, nothing."""

    share_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ModelQuota:
    """Guarantee and limit on devices of one model."""

    model: str
    guaranteed: Amount = Amount()
    limit: Amount = Amount()


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    """What a quota says instead while a window is open. What is None stays as it is outside of windows."""

    when: str
    """Days, hours on the wall and a time zone: `weekdays 08:00-18:00 Europe/Zurich`, `fri-sun`, `22:00-06:00`."""
    guaranteed: Amount | None = None
    limit: Amount | None = None
    models: tuple[ModelQuota, ...] = ()
    """All that is said of models then; none: as it is outside of windows."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Guarantee, limit and weight of a tenant or queue."""

    guaranteed: Amount = Amount()
    limit: Amount = Amount()
    weight: int = 0
    """0 = 1."""
    models: tuple[ModelQuota, ...] = ()
    windows: tuple[QuotaWindow, ...] = ()
    """The first that is open is in force."""


@dataclass(frozen=True, slots=True)
class DeclaredDevices:
    """Devices that a pool will have, so that its guarantees can be checked before its nodes arrive."""

    model: str
    devices: int
    memory_bytes: int = 0
    """Leasable, of one device."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A named set of devices."""

    name: str
    declared: tuple[DeclaredDevices, ...] = ()
    limit: Amount = Amount()
    """What is above the limit stays free, as headroom."""
    placement: str = ""
    """As of a queue: of requests that are for this pool alone, and whose queues say nothing."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tenant may use in a period."""

    period: str
    """hour, day, week, month (30 days)."""
    share_milli_ms: int = 0
    """A GPU-hour is 3,600,000,000; 0: no such limit."""
    money_micro: int = 0
    """At list price; 0: no such limit."""


@dataclass(frozen=True, slots=True)
class OnOverLimit:
    """What follows for a tenant when leases of it end as `OVER_LIMIT`."""

    action: str = ""
    """none, stronger_tier (it gets parts of devices only where `min_tier` can be given), refuse; empty = none."""
    for_s: int = 0
    """Each end counts for so long; 0 = one hour."""
    after: int = 0
    """So many must count at the same time, at most 16; 0 = 1."""
    min_tier: str = ""
    """Of stronger_tier; empty = driver."""


@dataclass(frozen=True, slots=True)
class TenantSpec:
    """Who pays."""

    name: str
    quota: Quota = Quota()
    default_queue: str = ""
    budget: Budget | None = None
    disruptions_max: int = 0
    """Preemptions by priority within `disruption_period_s`; 0: no bound."""
    disruption_period_s: int = 0
    """0 = one hour."""
    description: str = ""
    on_over_limit: OnOverLimit | None = None
    """None: as the queue of its requests has it, or the first queue above that says anything."""
    priority_max: int | None = None
    """The highest priority of requests of this tenant and all below it; None: as it is above."""
    waiting_max: int | None = None
    """How many requests may wait, of this tenant and all below it together; None: no bound of its own."""


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """Limits the elastic leases of a queue while all of its conditions hold; at least one must be given."""

    keep: str = ""
    """What they shrink to then: what was asked for (start) or their minimum (least); empty = start."""
    when: str = ""
    """Days, hours and a time zone, as of a quota's window: `weekdays 08:00-18:00 Europe/Zurich`; empty = always."""
    waiting_at_least: int = 0
    """At least this many requests wait in the queue or below it."""
    busy_below_permille: int = 0
    """The lease's slices were measured and were less busy than this lately."""


@dataclass(frozen=True, slots=True)
class IdlePolicy:
    """What follows when leases of a queue are idle."""

    action: str = ""
    """notify, lend (their share goes to opportunistic leases meanwhile), suspend (back to the queue), release; empty =
    notify."""
    after_s: int = 0
    """Of observed idleness; 0 = two hours."""
    warn_s: tuple[int, ...] = ()
    """Rising, below `after_s`, at most 4; none = after a half and 7/8 of it."""
    never_warn: bool = False
    """No warnings: only where nothing is ended."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """Where requests wait."""

    name: str
    parent: str = ""
    """Empty = root."""
    policy: str = ""
    """fifo, priority, fair_share, capacity, slowdown; empty = priority."""
    quota: Quota = Quota()
    pool: str = ""
    tenants: tuple[str, ...] = ()
    """Who may use it; empty: everybody."""
    ageing_s: int | None = None
    """None = 60; 0: priority never grows."""
    never_preempts: bool = False
    reserve_after_s: int | None = None
    """None = 300; 0: never."""
    half_life_s: int = 0
    """Half-life of remembered usage; only the root queue's value counts; 0 = 24 hours."""
    scaling: tuple[ScaleRule, ...] = ()
    on_over_limit: OnOverLimit | None = None
    """Of tenants that say nothing themselves; None: as the queue above has it."""
    idle: IdlePolicy | None = None
    """None: as the queue above has it, in the end notices only."""
    extend_to_s: int | None = None
    """How long time limits may become by being extended; 0: they are not extended; None: as the queue above has it."""
    large_first_permille: int | None = None
    """Under `slowdown`: how much sooner large requests are due than small ones, 0 to 1000; None = 500."""
    placement: str = ""
    """By which policy its requests are placed (price, binpack, spread …), or `workload`: training is packed and
    inference spread, by the label `workload-type`; empty: as the queue above, their pool, the coordinator."""


@dataclass(frozen=True, slots=True)
class ModelRate:
    """What an hour of one model costs."""

    model: str
    """`*`: all models that are not named."""
    gpu_hour_micro: int = 0
    gib_hour_micro: int = 0


@dataclass(frozen=True, slots=True)
class DiscountTier:
    """A discount on usage above a number of GPU-hours."""

    above_gpu_milli_hours: int
    discount_permille: int


@dataclass(frozen=True, slots=True)
class RateCard:
    """Prices."""

    currency: str = ""
    rates: tuple[ModelRate, ...] = ()
    tiers: tuple[DiscountTier, ...] = ()
    minimum_ms: int = 0


@dataclass(frozen=True, slots=True)
class Declarations:
    """Declarations that take effect together, or not at all. What is not named here stays as it is."""

    pools: tuple[PoolSpec, ...] = ()
    tenants: tuple[TenantSpec, ...] = ()
    queues: tuple[QueueSpec, ...] = ()
    rates: RateCard | None = None


@dataclass(frozen=True, slots=True)
class Applied:
    """What declaring did, or would do."""

    changed: Mapping[str, int]
    """`tenant vision` and its new version."""
    unchanged: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowsNow:
    """What windows of a quota make of it now."""

    in_force: Quota = Quota()
    window: str = ""
    """That has put it in force; empty: it is outside of all windows."""
    until_ms: int = 0
    """When it changes; 0: never."""
    next: Quota | None = None
    """What is in force then."""
    unknown: bool = False
    """A zone is not known to the coordinator's machine: what was in force stays so."""


@dataclass(frozen=True, slots=True)
class AccountUse:
    """What a tenant or queue holds and waits for."""

    share_milli: int = 0
    memory_bytes: int = 0
    waiting: int = 0
    fair_share_billionths: int = 0
    guaranteed_now: Amount = Amount()
    """The part of the guarantee that the pool can keep."""
    windows: WindowsNow | None = None
    """None: its quota has none."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as declared."""

    spec: PoolSpec
    version: int


@dataclass(frozen=True, slots=True)
class TenantView:
    """A tenant as declared, and what it uses."""

    spec: TenantSpec
    version: int
    """0: never declared."""
    use: AccountUse
    budget_permille: int = 0
    offences: int = 0
    """Leases that ended as `OVER_LIMIT` and are held against it."""
    held_until_ms: int = 0
    """What `on_over_limit` says holds until then, in its default queue; 0: it does not."""


@dataclass(frozen=True, slots=True)
class QueueView:
    """A queue as declared, and what is used through it."""

    spec: QueueSpec
    version: int
    use: AccountUse


@dataclass(frozen=True, slots=True)
class HoldView:
    """Capacity that is kept for one waiting lease."""

    owner: str
    """The lease."""
    kind: str
    """preemption, reservation."""
    device_uuids: tuple[str, ...]
    victims: tuple[str, ...]
    expires_ms: int
    start_ms: int


@dataclass(frozen=True, slots=True)
class Tenancy:
    """Everything declared, what is held and waits, and what needs attention."""

    pools: tuple[PoolView, ...]
    tenants: tuple[TenantView, ...]
    queues: tuple[QueueView, ...]
    rates: RateCard | None = None
    rates_version: int = 0
    guarantee_scale_millionths: int = 0
    """The part of the guarantees that the pool can keep."""
    alerts: tuple[str, ...] = ()
    holds: tuple[HoldView, ...] = ()


@dataclass(frozen=True, slots=True)
class SetAside:
    """A piece of work on which deciding failed so often that it is left alone."""

    work: str
    """What it is, for people."""
    subject: str
    """The lease, pool, tenant or window; empty: it is about none."""
    error: str
    """Of the last attempt."""
    failures: int
    since_ms: int
    """When it first failed."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A maintenance window. It closes the nodes that have one of the ids, all of the labels and this pool, as far as
    given.

    Times are local times in `zone`: `2026-11-28T22:00`. A time that is skipped when clocks go forward means the later
    one; of a time that comes twice, a start is the first and an end the last.
    """

    name: str
    start: str = ""
    """Of the first occurrence, if it is weekly."""
    end: str = ""
    zone: str = ""
    """A name of the IANA database; empty = UTC."""
    weekly: bool = False
    lead_s: int = 0
    """From this long before the start, only leases that end before it are placed there."""
    grace_s: int = 0
    """For leases that are told to stop at the start; 0: each lease's own."""
    node_ids: tuple[str, ...] = ()
    """Ids or names, when it is declared."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    reason: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A window, and its phase."""

    window: MaintenanceWindow
    phase: MaintenancePhase
    starts_ms: int
    """Of the next occurrence, or the present one."""
    ends_ms: int
    node_ids: tuple[str, ...]
    """The nodes that it closes now; the first 1,000."""
    nodes: int
    slices: int
    """Slices held on them."""


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """What was used through one queue of one model."""

    queue: str
    model: str
    share_milli_ms: int = _sum()
    memory_byte_ms: int = _sum()
    billable_share_milli_ms: int = _sum()
    billable_memory_byte_ms: int = _sum()
    gpu_hour_micro: int = 0
    gib_hour_micro: int = 0
    slices: int = 0
    amount_micro: int = _sum()
    priced: bool = False


@dataclass(frozen=True, slots=True)
class InvoiceDiscount:
    """The discount of one tier."""

    above_gpu_milli_hours: int
    discount_permille: int
    discount_micro: int = _sum()


@dataclass(frozen=True, slots=True)
class Invoice:
    """What a tenant owes for [from_ms, to_ms), as known when it was made."""

    invoice_id: str
    tenant: str
    from_ms: int
    to_ms: int
    made_ms: int
    currency: str
    lines: tuple[InvoiceLine, ...]
    subtotal_micro: int = _sum()
    discounts: tuple[InvoiceDiscount, ...] = ()
    total_micro: int = _sum()
    paid_micro: int = _sum()
    notes: tuple[str, ...] = ()
    observed_busy_milli_ms: int = _sum()
    """What agents measured on the whole days (UTC) of the period, beside what was reserved. Never charged."""
    observed_memory_byte_ms: int = _sum()
    observed_interval_ms: int = _sum()
    """Time measured, added up over slices; 0: nothing was measured."""
    observed_up_bytes: int = _sum()
    """Likewise, from programs elsewhere to the processes that served their leases. Never charged."""
    observed_down_bytes: int = _sum()
    observed_energy_mj: int = _sum()
    """Likewise, millijoules that cards drew for its leases, where cards count them. Never charged."""
    observed_energy_interval_ms: int = _sum()
    """Of `observed_interval_ms`, the time in which they were counted; 0: none was."""
    balance_micro: int | None = field(default=None, metadata={UNBOUNDED: True})
    """All that the tenant has ever paid less all that it was charged, as of `made_ms`; None: it never paid."""
