"""What administrators declare and read: pools, tenants, queues, prices, maintenance windows, invoices.

Field names are those of the contract. Zero and empty mean "unset"; the coordinator's defaults are then used. A field
that may be None is left out where it is None. Money is millionths of the currency, share thousandths of a device.
`Pool.admin` takes and gives these values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.client._values import MaintenancePhase

UNBOUNDED = "unbounded"
"""Metadata of sums that may outgrow 64 bits; JSON has them as strings, because many readers keep 53 bits."""


def _sum() -> int:
    total: int = field(default=0, metadata={UNBOUNDED: True})
    return total


@dataclass(frozen=True, slots=True)
class Amount:
    """So much share and memory. In limits, None is "no limit"; in guarantees, nothing."""

    share_milli: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ModelQuota:
    """Guarantee and limit on devices of one model."""

    model: str
    guaranteed: Amount = Amount()
    limit: Amount = Amount()


@dataclass(frozen=True, slots=True)
class Quota:
    """Guarantee, limit and weight of a tenant or queue."""

    guaranteed: Amount = Amount()
    limit: Amount = Amount()
    weight: int = 0
    """0 = 1."""
    models: tuple[ModelQuota, ...] = ()


@dataclass(frozen=True, slots=True)
class DeclaredDevices:
    """Devices that a pool is to have, so that its guarantees can be checked before its nodes come."""

    model: str
    devices: int
    memory_bytes: int = 0
    """Leasable, of one device."""


@dataclass(frozen=True, slots=True)
class Balancing:
    """When nodes change hands between the projects of a pool."""

    label: str = ""
    """Its value on a node is the tenant that the node serves; empty: no balancing."""
    threshold_permille: int = 0
    """Use that differs by more calls for a move; 0 = 200."""
    waited_s: int = 0
    """As does somebody who has waited so long; 0 = 300."""
    keep_nodes: int = 0
    """Every project keeps so many; 0 = 3."""
    rest_s: int = 0
    """Between two moves of the same node; 0 = 600."""
    every_s: int = 0
    """How often `auto` looks; 0 = 300."""
    auto: bool = False
    """Moves are made without asking."""


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """A named set of devices."""

    name: str
    declared: tuple[DeclaredDevices, ...] = ()
    limit: Amount = Amount()
    """What stays free is headroom."""
    balancing: Balancing | None = None


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


@dataclass(frozen=True, slots=True)
class ScaleRule:
    """What holds elastic leases of a queue back while all of its conditions hold; at least one must be given."""

    keep: str = ""
    """How much they keep then: start, least; empty = start."""
    cron: str = ""
    """When a window begins: minute hour day month weekday, in UTC."""
    lasting_s: int = 0
    """How long it lasts; at most 7 days."""
    waiting_at_least: int = 0
    """So many requests wait in the queue or below it."""
    busy_below_permille: int = 0
    """The lease's own parts were less busy lately, and that was measured."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """Where requests wait."""

    name: str
    parent: str = ""
    """Empty = root."""
    policy: str = ""
    """fifo, priority, fair_share, capacity; empty = priority."""
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
    """Of remembered usage; the root queue's counts; 0 = 24 hours."""
    scaling: tuple[ScaleRule, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRate:
    """What an hour of one model costs."""

    model: str
    """`*`: all that are not named."""
    gpu_hour_micro: int = 0
    gib_hour_micro: int = 0


@dataclass(frozen=True, slots=True)
class DiscountTier:
    """What is taken off beyond so many GPU-hours."""

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
    """What is declared together: all of it, or nothing. What is not named here stays as it is."""

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
class AccountUse:
    """What a tenant or queue holds and waits for."""

    share_milli: int = 0
    memory_bytes: int = 0
    waiting: int = 0
    fair_share_billionths: int = 0
    guaranteed_now: Amount = Amount()
    """What of the guarantee the pool can keep."""


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
    """What part of the guarantees the pool can keep."""
    alerts: tuple[str, ...] = ()
    holds: tuple[HoldView, ...] = ()


@dataclass(frozen=True, slots=True)
class ProjectUse:
    """One project of a pool whose nodes are lent."""

    name: str
    node_ids: tuple[str, ...]
    borrowed_node_ids: tuple[str, ...]
    use_permille: int
    """Of the share of its nodes."""
    waited_ms: int
    """The longest of who asks for its nodes and is over no limit."""


@dataclass(frozen=True, slots=True)
class NodeMove:
    """A node that changes hands."""

    node_id: str
    lender: str
    borrower: str
    home: str
    """Equal to `borrower` where the node goes home."""
    reason: str
    at_ms: int
    """0: planned."""


@dataclass(frozen=True, slots=True)
class Balance:
    """Which nodes should change hands between the projects of a pool, or did."""

    spec: Balancing
    projects: tuple[ProjectUse, ...]
    moves: tuple[NodeMove, ...]
    notes: tuple[str, ...]
    """Why there is no other move."""
    log: tuple[NodeMove, ...]
    """Of earlier moves, the latest 1,000."""


@dataclass(frozen=True, slots=True)
class LeaseMove:
    """A lease that is granted elsewhere. Both places are held until the agent of the old one confirms."""

    lease_id: str
    tenant: str
    from_node_id: str
    to_node_id: str
    device_uuids: tuple[str, ...]
    """Where it goes."""


@dataclass(frozen=True, slots=True)
class Defragmentation:
    """One step of moving leases so that more fits."""

    moves: tuple[LeaseMove, ...]
    """Planned, or made."""
    gained_share_milli: int
    """Idle share that requests of late could use then, on average over their mix."""
    cursor: int
    """For the next step; 0: every node was looked at."""
    mix_known: bool
    """False: nothing has arrived yet, so nobody knows what would be useful."""


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """When nodes are to be left alone: those with one of these ids, all of these labels and in this pool, as given.

    Times are those of a clock on the wall in `zone`: `2026-11-28T22:00`. Of a time that is skipped when clocks are put
    forward, the later one is meant; of one that comes twice, a start is the first and an end the last.
    """

    name: str
    start: str = ""
    """Of the first time, where it is weekly."""
    end: str = ""
    zone: str = ""
    """Of the IANA database; empty = UTC."""
    weekly: bool = False
    lead_s: int = 0
    """So long before the start, only what ends before it is placed there."""
    grace_s: int = 0
    """For leases that are told to go at the start; 0: each lease's own."""
    node_ids: tuple[str, ...] = ()
    """Ids or names, when it is declared."""
    labels: Mapping[str, str] = field(default_factory=dict)
    pool: str = ""
    reason: str = ""
    """For people."""


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A window, and how far it has come."""

    window: MaintenanceWindow
    phase: MaintenancePhase
    starts_ms: int
    """Of the time that is next, or now."""
    ends_ms: int
    node_ids: tuple[str, ...]
    """That it is over now; the first 1,000."""
    nodes: int
    slices: int
    """That are held on them."""


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
    """What one tier takes off."""

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
    """What agents measured on the whole days (UTC) of the period, beside what was reserved: never charged."""
    observed_memory_byte_ms: int = _sum()
    observed_interval_ms: int = _sum()
    """Time measured, added up over slices; 0: nothing was."""
