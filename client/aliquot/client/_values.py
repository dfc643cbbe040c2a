"""The pool's answers as immutable values: no protobuf in a user's program, names with units, typed states.

They show one moment: ask again, or `watch`, to see changes. `None` means "unknown", never zero. `_milli` is thousandths
(of a device, of a CPU), `_bytes` bytes, `_ms` milliseconds since the Unix epoch on the coordinator's clock; a time of 0
has not come. `seq` is the number of a durable fact: it only rises.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Item = TypeVar("Item")


class _Word(enum.StrEnum):
    """A state by its name in the contract; names that only a newer coordinator knows become `UNSPECIFIED`."""


class Tier(_Word):
    """How a slice's memory limit is enforced, weakest first; read back from the device."""

    UNSPECIFIED = "UNSPECIFIED"
    NONE = "NONE"
    WATCHDOG = "WATCHDOG"
    PRELOAD = "PRELOAD"
    MPS = "MPS"
    DRIVER = "DRIVER"
    MIG = "MIG"


class SliceState(_Word):
    """Where one part of a lease is in its life."""

    UNSPECIFIED = "UNSPECIFIED"
    GRANTED = "GRANTED"
    ACTIVE = "ACTIVE"
    PREEMPTING = "PREEMPTING"
    RELEASING = "RELEASING"
    UNREACHABLE = "UNREACHABLE"
    GONE = "GONE"
    FAILED = "FAILED"


class LeaseState(_Word):
    """Where a lease is in its life; derived from its slices."""

    UNSPECIFIED = "UNSPECIFIED"
    QUEUED = "QUEUED"
    GRANTED = "GRANTED"
    ACTIVE = "ACTIVE"
    PREEMPTING = "PREEMPTING"
    RELEASING = "RELEASING"
    UNREACHABLE = "UNREACHABLE"
    ENDED = "ENDED"


class NodeState(_Word):
    """What the coordinator knows of a node."""

    UNSPECIFIED = "UNSPECIFIED"
    DECLARED = "DECLARED"
    RECONCILING = "RECONCILING"
    READY = "READY"
    SUSPECT = "SUSPECT"
    LOST = "LOST"


class WaitUntil(_Word):
    """What `allocate` waits for before it answers."""

    QUEUED = "QUEUED"
    """The request is durable, granted or not."""
    GRANTED = "GRANTED"
    """Capacity is durably held."""
    ACTIVE = "ACTIVE"
    """Every agent has set its limits and read them back."""


class Serve(_Word):
    """Where the programs that use a lease run."""

    UNSPECIFIED = "UNSPECIFIED"
    """As LOCAL."""
    LOCAL = "LOCAL"
    """On its nodes, where they attach."""
    REMOTE = "REMOTE"
    """Anywhere: an agent starts a process for each member, whose endpoint its slices name."""
    CUDA = "CUDA"
    """As REMOTE, by CUDA's driver alone (`aliquot.remote.cuda`): nodes need no PyTorch for it."""


class Topology(_Word):
    """What the links between a member's devices should be."""

    UNSPECIFIED = "UNSPECIFIED"
    ANY = "ANY"
    PREFER_ISLAND = "PREFER_ISLAND"
    REQUIRE_ISLAND = "REQUIRE_ISLAND"


@dataclass(frozen=True, slots=True)
class Slice:
    """A lease's part on one device."""

    slice_id: str
    node_id: str
    node_name: str
    device_uuid: str
    device_model: str
    share_milli: int
    memory_bytes: int
    state: SliceState
    tier: Tier
    member: int
    """The number of its gang member, from 0."""
    since_ms: int
    """When it entered its state."""
    deadline_ms: int
    """When it will be stopped; 0 unless PREEMPTING or RELEASING."""
    reason: str
    shed: bool = False
    """Its lease is elastic and goes on without it."""
    observed_bytes: int | None = None
    """What its processes really hold, as its agent last said; None: not known."""
    observed_utilisation_percent: int | None = None
    """What part of its device's time they use; None: not known."""
    observed_ms: int = 0
    """When its agent said so; 0: never, or this is not an answer of `get` or `leases`."""
    mig_profile: str = ""
    """The profile of its MIG instance; empty: its device is a whole GPU."""
    tier_notes: tuple[str, ...] = ()
    """Why no stronger tier enforces it, a line for each; only in answers of `get` and `leases`."""
    endpoint: str = ""
    """Where it is served, once it is ACTIVE; empty: programs attach on its node."""
    lender: str = ""
    """The slice of an idle lease whose share it uses; empty: its share is its own."""
    served: ServedUse | None = None
    """What is done for programs that use its member from elsewhere; of its first slice only, and where it is known."""


@dataclass(frozen=True, slots=True)
class ServedUse:
    """What the process that serves a member counts. Sums begin anew with the process."""

    sessions: int
    ops: int
    waits: int
    """Operations for whose result a program waited."""
    up_bytes: int
    """From the programs."""
    down_bytes: int
    run_ahead_frames: int
    memory_bytes: int
    """By the process's own account."""
    ops_per_s: int
    """Lately, as the next two."""
    up_bytes_per_s: int
    down_bytes_per_s: int
    observed_ms: int


class ActivitySource(_Word):
    """What says how active something is."""

    UNSPECIFIED = "UNSPECIFIED"
    KERNELS = "KERNELS"
    """Time in which any kernel ran: one of 132 multiprocessors reads 100 %."""
    PROCESSES = "PROCESSES"
    """The driver's samples of single processes."""
    COUNTERS = "COUNTERS"
    """The card's performance counters."""


class UseState(_Word):
    """What a lease does with what it holds."""

    UNSPECIFIED = "UNSPECIFIED"
    """Unknown: not measured long enough, or not at all."""
    ACTIVE = "ACTIVE"
    HELD = "HELD"
    """No process of it is there."""
    IDLE = "IDLE"
    HUNG = "HUNG"
    """All of it busy without a pause, at the power of a device that does nothing."""
    GHOST = "GHOST"
    """No process of it is there, and its device says that it is busy."""


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """What is known of the use of a lease, and what has followed from it."""

    state: UseState
    since_ms: int
    warned: int
    """Warnings of this spell of idleness."""
    told: int
    """How many of them have reached somebody."""
    act_ms: int
    """When `action` comes if nothing changes; 0: none was announced."""
    action: str
    """notify, lend, suspend, release."""
    lent: bool
    """Opportunistic leases may use its share..."""
    lent_memory: bool
    """...and its memory."""
    exempt_until_ms: int
    """Until then idleness has no consequences; 0: it has."""
    exempt_reason: str
    exempt_by: str
    efficiency_permille: int | None
    """What it makes of its share, lately: the median. Only `get` and `use` tell; None: not known."""
    efficiency_p95_permille: int | None
    known_permille: int | None
    """How much of the time that this is about is known."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Why one class of devices can't serve a request, and the smallest change with which it could."""

    device_class: str
    reason: str
    """A stable word: MODEL, SHARE, MEMORY, TIER, HOST, NOT_READY, QUOTA, ..."""
    detail: str
    smallest_change: str
    devices: int
    """How many devices the class has."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where one member of a request is to go: a node (id or name), and its devices, or whichever the pool picks."""

    node_id: str
    device_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFit:
    """Whether one node could take a member of a request now."""

    node_id: str
    """As it was asked about."""
    reason: str
    """FITS, or the stable word of the first obstacle."""
    detail: str
    score: int
    """How good the node is, from 1 on, to be compared within one answer; 0: it does not fit."""
    members: int = 0
    """How many such members it could take now; 0 also where an older coordinator does not say."""

    @property
    def fits(self) -> bool:
        """Whether it fits."""
        return self.score > 0


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a request waits, is refused, or where it would go."""

    fits_now: bool
    impossible: bool
    summary: str
    missing: tuple[Missing, ...] = ()
    queue_position: int = 0
    """1 = next; 0 = not queued."""
    queue_length: int = 0
    ahead: tuple[str, ...] = ()
    would_preempt: tuple[str, ...] = ()
    expected_start_ms: int | None = None
    expected_uncertainty_ms: int | None = None
    """A duration: it may start so much earlier or later."""
    placement: tuple[Slice, ...] = ()
    placement_note: str = ""
    notes: tuple[str, ...] = ()
    earliest_start_ms: int | None = None
    latest_start_ms: int | None = None
    """Of an interval around a forecast start that holds 90 % of such starts."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """One fact about a lease."""

    at_ms: int
    what: str
    """A stable word: QUEUED, GRANTED, ACTIVE, ENDED, ..."""
    detail: str
    seq: int
    """The number of the fact; 0: it was compacted away, and the lease's record tells of it."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """What has happened to a lease, in order."""

    lease_id: str
    steps: tuple[TimelineStep, ...]
    complete: bool
    """Whether nothing is left out."""
    trace_id: str
    """Of the trace that the coordinator sends to a collector, where it does."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A grant, or the request for one while it waits."""

    lease_id: str
    state: LeaseState
    gpu: str
    """What was asked for, in the request grammar."""
    tenant: str
    queue: str
    pool: str
    name: str
    priority: int
    gang_size: int
    ttl_s: int
    detached: bool
    labels: Mapping[str, str]
    slices: tuple[Slice, ...]
    lease_epoch: int
    created_ms: int
    granted_ms: int
    active_ms: int
    ended_ms: int
    end_reason: str
    """RELEASED, EXPIRED, TIME_LIMIT, PREEMPTED, CANCELLED, NODE_LOST, FAILED; empty while it lives."""
    end_detail: str
    note: str
    requeues: int
    """How often it went back to its queue."""
    seq: int
    """Of the fact that last changed it."""
    waiting: Explanation | None = None
    min_count: int = 0
    max_count: int = 0
    """The fewest and most slices that an elastic lease may have; both 0: it is rigid."""
    shape: int = 0
    """Rises with every grant, and whenever an elastic lease gains slices or gives some back."""
    acknowledged_shape: int = 0
    """The last one that its launcher has adapted to."""
    set_aside: tuple[str, ...] = ()
    """What the coordinator leaves alone about it, because deciding failed too often. Only `get` tells."""
    asked_by: str = ""
    """The principal; empty: from before there were any."""
    ended_by: str = ""
    """Empty: the pool ended it, or it has not ended."""
    warnings: tuple[str, ...] = ()
    """What has happened to cards that it used, and warnings of idleness, the latest last."""
    use: LeaseUse | None = None
    """What it does with what it holds; None: nothing is known."""
    time_limit_s: int = 0
    """It ends so long after its grant; 0: it has no time limit."""
    ends_ms: int = 0
    """When its time limit ends it, as things are; 0: it does not, or it is not granted."""
    redacted: bool = False
    """It is another tenant's, and the caller may not see more than its state, slices and numbers."""
    secret: str = field(default="", repr=False)
    """Proves to a node's agent that its holder may attach processes. Only whoever allocated the lease is told."""

    @property
    def running(self) -> bool:
        """Whether processes may use its devices now."""
        return self.state in {LeaseState.ACTIVE, LeaseState.PREEMPTING}

    @property
    def leaving(self) -> tuple[Slice, ...]:
        """The slices that an elastic lease gives back: stop using them before their `deadline_ms`."""
        return tuple(part for part in self.slices if part.shed)

    @property
    def staying(self) -> tuple[Slice, ...]:
        """The slices that make it up from now on."""
        return tuple(part for part in self.slices if not part.shed)

    @property
    def granted(self) -> bool:
        """Whether it holds capacity."""
        return self.state not in {LeaseState.QUEUED, LeaseState.ENDED, LeaseState.UNSPECIFIED}


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A device's last report. None: unknown."""

    gpu_utilisation_percent: int | None = None
    memory_utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    unattributed_bytes: int | None = None
    sampled_ms: int | None = None
    activity_percent: int | None = None
    """The busiest engine since the last sample, by the best source that there is."""
    activity_source: ActivitySource | None = None
    power_limit_mw: int | None = None


class Standing(_Word):
    """The state of a card."""

    UNSPECIFIED = "UNSPECIFIED"
    """Healthy: no incident covers it."""
    QUARANTINED = "QUARANTINED"
    """It takes no new leases. Those that it has are told, and end where the fault is fatal."""
    DRAINED = "DRAINED"
    """Nothing holds any of it."""
    REPAIRING = "REPAIRING"
    VERIFYING = "VERIFYING"
    PROBATION = "PROBATION"
    """In service; the next bad sign counts as a relapse."""
    SERVICE = "SERVICE"
    """A person has to look at it."""


class SignSeverity(_Word):
    """Whom a sign concerns."""

    UNSPECIFIED = "UNSPECIFIED"
    LEASE = "LEASE"
    """The programs of one lease."""
    DEGRADED = "DEGRADED"
    """The card computes, but gets nothing new."""
    FATAL = "FATAL"
    """What runs there can't be relied on."""


class SignScope(_Word):
    """How far a sign reaches."""

    UNSPECIFIED = "UNSPECIFIED"
    """The device alone."""
    CARD = "CARD"
    """With its MIG instances."""
    ISLAND = "ISLAND"
    """All cards that fast links join with it."""
    NODE = "NODE"


class Remedy(_Word):
    """What is to be done next."""

    UNSPECIFIED = "UNSPECIFIED"
    """Nothing: it waits until its signs are good."""
    RESET = "RESET"
    REBOOT = "REBOOT"
    SERVICE = "SERVICE"
    """By a person."""
    VERIFY = "VERIFY"


@dataclass(frozen=True, slots=True)
class Sign:
    """Why a device is not well, as its agent judges; the reason for people is the device's `health_reason`."""

    cause: str
    severity: SignSeverity
    scope: SignScope
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class Device:
    """One physical GPU, or one MIG instance of it."""

    uuid: str
    index: int
    model: str
    vendor: str
    product_name: str
    node_id: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    """What the driver keeps for itself."""
    foreign_bytes: int
    """Covered by no slice: held by processes outside any lease, or by a slice beyond its limit."""
    leased_share_milli: int
    leased_memory_bytes: int
    healthy: bool
    health_reason: str
    mig_profile: str
    parent_uuid: str
    nvlink_island: int | None
    """The older name of `fabric_island`."""
    numa_node: int | None
    pci_bus_id: str
    tiers: tuple[Tier, ...]
    telemetry: Telemetry
    compute_milli: int = 1000
    """Its part of its card's compute, in thousandths: less than 1000 for a MIG instance."""
    mig_start: int | None = None
    """A MIG instance's first slice of its card's memory; None if its agent does not tell."""
    lease_ids: tuple[str, ...] = ()
    """Leases that hold some of it, at most 64."""
    incident: int = 0
    """The open incident that covers it (`Pool.admin.health`); 0: none."""
    standing: Standing = Standing.UNSPECIFIED
    sign: Sign | None = None
    """None: it is well, or its agent does not say why not."""
    fabric_island: int | None = None
    """Devices of a node with the same number reach one another over links of their own (NVLink, XGMI, HCCS)."""

    @property
    def leasable_bytes(self) -> int:
        """Memory that leases may hold, including what they already hold."""
        return max(0, self.memory_total_bytes - self.memory_reserved_bytes - self.foreign_bytes)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of MIG instance that a card can have, as its driver reports it. Memory slices are counted from 0."""

    name: str
    """`1g.10gb`."""
    compute_slices: int
    memory_bytes: int
    length: int
    """In slices of memory."""
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigPart:
    """One instance of a card."""

    profile: str
    start: int
    uuid: str
    """The UUID of its device; empty: it has no compute instance, so nobody can hold it."""


@dataclass(frozen=True, slots=True)
class MigCard:
    """A card in MIG mode whose instances the pool may change."""

    uuid: str
    model: str
    profiles: tuple[MigProfile, ...]
    parts: tuple[MigPart, ...]
    cut_for: str
    """The lease for which its instances are being changed now; empty: they are not."""
    problem: str
    """Why the last change of its instances failed; empty: it did not fail."""


class MaintenancePhase(_Word):
    """The phase of a maintenance window."""

    UNSPECIFIED = "UNSPECIFIED"
    PLANNED = "PLANNED"
    CLOSING = "CLOSING"
    """Only leases that end before its start are placed on its nodes."""
    OPEN = "OPEN"
    """Nothing is placed there, and what ran was told to stop."""


@dataclass(frozen=True, slots=True)
class Closure:
    """The maintenance window that closes a node: [starts_ms, ends_ms)."""

    window: str
    phase: MaintenancePhase
    starts_ms: int
    ends_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with devices."""

    node_id: str
    name: str
    state: NodeState
    cordoned: bool
    draining: bool
    reason: str
    pool: str
    labels: Mapping[str, str]
    devices: tuple[Device, ...]
    cpu_milli: int | None
    host_memory_bytes: int | None
    agentless: bool
    agent_version: str
    driver_version: str
    last_heard_ms: int
    slices: int
    """How many slices it holds."""
    failure_domain: str
    cards: tuple[MigCard, ...] = ()
    """Cards in MIG mode whose instances may change. Of other cards only the instances are shown, as devices."""
    closure: Closure | None = None
    """None: no maintenance window closes it."""
    serves: tuple[Serve, ...] = ()
    """How its agent can serve leases, beside LOCAL."""
    remedies: tuple[str, ...] = ()
    """What its agent can do about sick cards: reset, reboot, verify."""
    lends: bool = False
    """Its agent knows slices that use the share of idle leases."""


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """Capacity of one model in one pool, and what of it is leased."""

    pool: str
    model: str
    devices: int
    capacity_share_milli: int
    leased_share_milli: int
    capacity_memory_bytes: int
    leased_memory_bytes: int
    vendor: str = ""
    """Of the model, as agents say it; empty: the coordinator is older."""


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """What one tenant holds and waits for in one queue."""

    tenant: str
    queue: str
    leased_share_milli: int
    leased_memory_bytes: int
    leases: int
    queued: int


@dataclass(frozen=True, slots=True)
class Status:
    """The pool at one durable sequence number."""

    seq: int
    leader_epoch: int
    version: str
    granting: bool
    """False while the journal can't be written."""
    not_granting_reason: str
    pools: tuple[PoolTotals, ...]
    tenants: tuple[TenantTotals, ...]
    queued: int
    leases: int
    nodes_by_state: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """A part of a list."""

    items: tuple[Item, ...]
    next_token: str
    """Names the next page; empty: this is the last one."""
    seq: int
    """A `watch` from here misses nothing; 0: this list does not say."""


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A lease, after a durable change."""

    seq: int
    at_ms: int
    lease: Lease


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node, after a durable change."""

    seq: int
    at_ms: int
    node: Node


@dataclass(frozen=True, slots=True)
class Resynced:
    """Changes were missed, so everything was listed again: these are all live leases at `seq`.

    None of them, where the watch was told not to list.
    """

    seq: int
    leases: tuple[Lease, ...]


Event = LeaseChanged | NodeChanged | Resynced
