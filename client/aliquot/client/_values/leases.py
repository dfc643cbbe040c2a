"""Leases, their slices, and why they are where they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aliquot.client._values.base import Word
from aliquot.client._values.requests import Request, Tier


class SliceState(Word):
    """Where one part of a lease is in its life."""

    UNSPECIFIED = "UNSPECIFIED"
    GRANTED = "GRANTED"
    ACTIVE = "ACTIVE"
    PREEMPTING = "PREEMPTING"
    RELEASING = "RELEASING"
    UNREACHABLE = "UNREACHABLE"
    GONE = "GONE"
    FAILED = "FAILED"


class LeaseState(Word):
    """Where a lease is in its life; derived from its slices."""

    UNSPECIFIED = "UNSPECIFIED"
    QUEUED = "QUEUED"
    GRANTED = "GRANTED"
    ACTIVE = "ACTIVE"
    PREEMPTING = "PREEMPTING"
    RELEASING = "RELEASING"
    UNREACHABLE = "UNREACHABLE"
    ENDED = "ENDED"


class WaitUntil(Word):
    """What `allocate` waits for before it answers."""

    QUEUED = "QUEUED"
    """The request is durable, granted or not."""
    GRANTED = "GRANTED"
    """Capacity is durably held."""
    ACTIVE = "ACTIVE"
    """Every agent has set its limits and read them back."""

    def reached_in(self, state: LeaseState) -> bool:
        """Whether a lease in this state has come so far."""
        return state in _REACHED[self]


_REACHED = {
    WaitUntil.QUEUED: frozenset(LeaseState) - {LeaseState.ENDED},
    WaitUntil.GRANTED: frozenset(LeaseState) - {LeaseState.QUEUED, LeaseState.ENDED},
    WaitUntil.ACTIVE: frozenset({LeaseState.ACTIVE, LeaseState.PREEMPTING}),
}


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


class ActivitySource(Word):
    """What says how active something is."""

    UNSPECIFIED = "UNSPECIFIED"
    KERNELS = "KERNELS"
    """Time in which any kernel ran: one of 132 multiprocessors reads 100 %."""
    PROCESSES = "PROCESSES"
    """The driver's samples of single processes."""
    COUNTERS = "COUNTERS"
    """The card's performance counters."""


class UseState(Word):
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
    score_permille: int | None
    """The weighted score of use that dashboards know, of what it holds, as last measured; None: not known."""
    utilisation: str
    """What that is called: idle, low, normal, high, unknown. Only `get` and `use` tell."""


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
    start_unknown: str = ""
    """Why no start is told: it waits for leases that no time limit ends."""
    placement: tuple[Slice, ...] = ()
    placement_note: str = ""
    notes: tuple[str, ...] = ()
    earliest_start_ms: int | None = None
    latest_start_ms: int | None = None
    """Of an interval around a forecast start that holds 90 % of such starts."""
    instead: Request | None = None
    """The request with the smallest change: asked for now, it would start at once. None: no such change is known."""


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
    """The principal that asked for it."""
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
    exit_code: int | None = None
    """Of the program that ran in it, 128 + N where signal N ended it; None: nobody has said."""
    energy_mj: int | None = None
    """Millijoules that cards have drawn for it; of slices that it still holds only `get` and `list` tell. None: not
    measured."""
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
