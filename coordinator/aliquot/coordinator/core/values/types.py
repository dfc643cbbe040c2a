"""Values that the whole core speaks in: what a node has, what a request demands, what a placement gives.

They are `msgspec.Struct`s because they are journalled inside facts and made on the hot path: construction costs a tenth
of a frozen dataclass, and they encode to MessagePack without a second description. All are immutable; all numbers are
integers with their unit in the name. No circle can be made of them, so those that are many are not the garbage
collector's (`gc=False`): each is 16 bytes smaller. Zero and the empty string mean "not asked for" or "unknown", as
stated per field, so that a value never needs a float, and `None` never reaches the journal.
"""

from __future__ import annotations

import enum

import msgspec

WHOLE_SHARE_MILLI = 1000
UNKNOWN = -1


class DeviceSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """One physical GPU, or one MIG instance of it, as its node describes it."""

    uuid: str
    model: str
    """Canonical model name of the catalogue (`A100-80`), or the declared string for models it does not know."""
    memory_total_bytes: int
    memory_reserved_bytes: int = 0
    """What the driver keeps for itself: never leasable."""
    vendor: str = "nvidia"
    index: int = 0
    mig_profile: str = ""
    """`1g.10gb` for a MIG instance, which is leased whole."""
    parent_uuid: str = ""
    nvlink_island: int = UNKNOWN
    """Devices of one node with the same number reach one another over NVLink; -1: none or unknown."""
    numa_node: int = UNKNOWN
    compute_milli: int = WHOLE_SHARE_MILLI
    """What it has of its card's compute: all a lease can hold of it. 142 where it is one slice of seven."""
    mig_start: int = UNKNOWN
    """Of a MIG instance: its first slice of its card's memory."""
    best_tier: int = UNKNOWN
    """Strongest tier that its agent gives on it; unknown: what its node says of all its devices."""
    whole_only: bool = False
    """One process at a time may use it, as its driver is set, so that parts of it would be of no use."""

    @property
    def card(self) -> str:
        """The UUID of the physical GPU: of a MIG instance, its parent's."""
        return self.parent_uuid or self.uuid

    @property
    def leasable_bytes(self) -> int:
        """Memory that leases may hold while no foreign process is on the device."""
        return self.memory_total_bytes - self.memory_reserved_bytes


class MigProfile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One way of cutting a card, as its driver tells it."""

    name: str
    """`1g.10gb`."""
    length: int
    """In the card's slices of memory, which are counted from 0."""
    starts: tuple[int, ...]
    """Where it may begin."""
    memory_bytes: int
    compute_slices: int = 0


class MigPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a card: there, or to be made."""

    profile: str
    start: int
    uuid: str = ""
    """Of its device; empty: not made yet."""


class MigCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """A card in MIG mode that its node lets the coordinator cut."""

    uuid: str
    model: str
    profiles: tuple[MigProfile, ...]
    parts: tuple[MigPart, ...] = ()


class CutState(enum.IntEnum):
    """How far an order to cut a card has come."""

    ORDERED = 1
    DONE = 2
    FAILED = 3


class Cut(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last order to cut a card."""

    number: int
    card_uuid: str
    parts: tuple[MigPart, ...]
    """All that the card is to have."""
    lost_uuids: tuple[str, ...]
    """Idle devices that go for it: nothing is placed on them meanwhile."""
    lease_id: str
    """Who waits for it."""
    ordered_ms: int
    state: CutState = CutState.ORDERED
    settled_ms: int = 0
    problem: str = ""
    failures: int = 0
    """In a row."""


class NodeSpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine with devices, as declared by an administrator or registered by its agent."""

    node_id: str
    name: str
    devices: tuple[DeviceSpec, ...]
    labels: tuple[tuple[str, str], ...] = ()
    """Sorted by key."""
    pool: str = "default"
    failure_domain: str = ""
    """Rack, row or zone; the value of the label `topology.aliquot.dev/domain` when that is set."""
    cpu_milli: int = UNKNOWN
    host_memory_bytes: int = UNKNOWN
    best_tier: int = UNKNOWN
    """Strongest enforcement tier that its agent can give; unknown counts as any, and is checked when it confirms."""
    agentless: bool = False
    """Declared as capacity without an agent: grants there are accounting only and never become ACTIVE."""
    cards: tuple[MigCard, ...] = ()
    """Those that may be cut anew."""
    remedies: tuple[str, ...] = ()
    """What its agent can do about sick cards: `reset`, `reboot`, `verify`."""
    lends: bool = False
    """Its agent knows slices that use the share of others."""


SERVE_LABELS = "serve.aliquot.dev/"
"""Labels below this say what a node's agent can serve leases as; no other labels may be below it."""


class Topology(enum.IntEnum):
    """What several slices of one member want of the links between their devices."""

    ANY = 0
    PREFER_ISLAND = 1
    REQUIRE_ISLAND = 2


class Admits(enum.IntEnum):
    """What may be placed on a device that works; also the most restricted devices that a demand is placed on."""

    ALL = 0
    SINGLE = 1
    """Leases of one device only: a link of its island is bad."""
    PREEMPTIBLE = 2
    """Leases of one device that give way to others only: it is on probation."""


class Demand(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What one request needs of the inventory. Equal demands are interchangeable, so it is also the cache key.

    `gang_size` members are placed all or nothing; each member's `count` slices sit on distinct devices of one node.
    """

    count: int = 1
    share_milli: int = 0
    """1..1000 per slice; 0: the share proportional to `memory_bytes` on the device chosen, rounded up."""
    memory_bytes: int = 0
    """Per slice; 0: proportional to the share on the device chosen, rounded down to a MiB."""
    models: tuple[tuple[str, ...], ...] = ()
    """Alternatives in order of preference, each a set of model names; empty: any."""
    vendor: str = ""
    mig_profile: str = ""
    pool: str = ""
    gang_size: int = 1
    cpu_milli: int = 0
    """Per member; only nodes that report their CPU are held to it."""
    host_memory_bytes: int = 0
    node_selector: tuple[tuple[str, str], ...] = ()
    node_ids: tuple[str, ...] = ()
    """When not empty, only these nodes."""
    avoid_node_ids: tuple[str, ...] = ()
    avoid_device_uuids: tuple[str, ...] = ()
    """Devices in back-off after a failed slice."""
    affinity_group: str = ""
    """Leases with the same group (within a tenant) count against `max_per_node` and `spread`."""
    max_per_node: int = 0
    """At most so many members of the affinity group on one node; 0: no limit."""
    spread_domains: bool = False
    """Prefer the failure domain that holds the fewest members of the affinity group."""
    topology: Topology = Topology.PREFER_ISLAND
    min_tier: int = 0
    """Enforcement tier that the node's agent must be able to give; see `NodeSpec.best_tier`."""
    opportunistic: bool = False
    """It may also be placed on what idle leases do not use, and goes when they do."""
    single_on: Admits = Admits.SINGLE
    """The most restricted devices on which it may be, if it is about one device."""
    vendors: tuple[str, ...] = ()
    """Two or more in order of preference, which comes before that of models; `vendor` is empty then."""
    or_mig: bool = False
    """A part of a device that a MIG instance may serve as well, for all of which it is then charged."""
    instances: tuple[tuple[str, str], ...] = ()
    """Of a shape: (model, MIG profile) of the instances that it accepts beside undivided devices."""
    apart: bool = False
    """Members are on cards of their own: NCCL, for one, refuses two ranks on one card."""
    placement: str = ""
    """By which policy, as its queue or pool says; empty: the coordinator's own. It changes where it goes, never whether
    it fits, and so is no part of a shape."""

    def takes_vendor(self, vendor: str) -> bool:
        """Whether a device of this vendor will do."""
        return vendor in self.vendors if self.vendors else self.vendor in ("", vendor)

    @property
    def share_in_all(self) -> int:
        """What all its members ask for, in thousandths of devices; what asks by memory counts as for whole ones."""
        return self.gang_size * self.count * (self.share_milli or WHOLE_SHARE_MILLI)

    @property
    def admitted_on(self) -> Admits:
        """The most restricted devices on which it may be placed."""
        return self.single_on if self.count == 1 and self.gang_size == 1 else Admits.ALL

    def avoiding(self, device_uuids: tuple[str, ...]) -> Demand:
        """The same demand, away from these devices as well."""
        if not device_uuids:
            return self
        return msgspec.structs.replace(self, avoid_device_uuids=self.avoid_device_uuids + device_uuids)


class SlicePlan(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One slice of a placement: an exact part of one device."""

    node_id: str
    device_uuid: str
    share_milli: int
    memory_bytes: int
    lender: str = ""
    """The slice whose share it uses: it takes no share of the device by itself. Empty: its share is its own."""
    lender_memory: bool = False
    """It uses that slice's memory, too."""

    @property
    def own_share_milli(self) -> int:
        """What it takes of the device by itself."""
        return 0 if self.lender else self.share_milli

    @property
    def own_memory_bytes(self) -> int:
        """What it takes of the device by itself."""
        return 0 if self.lender_memory else self.memory_bytes


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a demand goes. `members[i]` are the slices of gang member i, all on one node."""

    members: tuple[tuple[SlicePlan, ...], ...]
    node_ids: tuple[str, ...] = ()
    """The node of each member: says where a member without slices (`count` 0, CPU only) goes."""
    note: str = ""
    """What was got beyond the numbers, for people: topology, model alternative, domain."""

    def by_device(self) -> dict[str, list[int]]:
        """[share, memory] that it takes of each device."""
        taken: dict[str, list[int]] = {}
        for member in self.members:
            for plan in member:
                sums = taken.setdefault(plan.device_uuid, [0, 0])
                sums[0] += plan.share_milli
                sums[1] += plan.memory_bytes
        return taken


class Missing(msgspec.Struct, frozen=True):
    """Why one class of devices can't serve a demand now, and the smallest change with which it could."""

    device_class: str
    """Model and memory, such as `A100-80 (79.3Gi)`."""
    reason: str
    """Stable word: see `placement.explain.Reason`."""
    detail: str
    """One sentence with the numbers."""
    smallest_change: str = ""
    devices: int = 0
    """Devices of this class in the pool."""
    instead: Demand | None = None
    """The demand with that change, where it is one of the demand alone..."""
    time_limit_ms: int = 0
    """...and the longest time limit with which it would do; 0: any."""


class Shortfall(msgspec.Struct, frozen=True):
    """Why a demand was not placed."""

    impossible: bool
    """True where it would not fit the whole pool even if it were empty and every node were ready."""
    missing: tuple[Missing, ...]
    summary: str


class NodeState(enum.IntEnum):
    """Liveness of a node. Grants go to READY nodes only (and to agentless DECLARED ones)."""

    DECLARED = 1
    RECONCILING = 2
    READY = 3
    SUSPECT = 4
    LOST = 5


class EndReason(enum.StrEnum):
    """Why a lease ended, or is ending."""

    RELEASED = "RELEASED"
    EXPIRED = "EXPIRED"
    TIME_LIMIT = "TIME_LIMIT"
    PREEMPTED = "PREEMPTED"
    CANCELLED = "CANCELLED"
    DRAINED = "DRAINED"
    FAILED = "FAILED"
    OVER_LIMIT = "OVER_LIMIT"
    """Its processes held more than it had, again and again. Agents give this word as the reason of a failed slice."""
    IDLE = "IDLE"
    """Nothing was done with it for as long as its queue allows."""


class RequestSpec(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The body of a request as the journal keeps it: what is demanded, by whom, on what terms."""

    demand: Demand
    tenant: str
    queue: str = ""
    priority: int = 0
    time_limit_ms: int = 0
    min_run_ms: int = 0
    grace_ms: int = 30_000
    preemptible: bool = False
    movable: bool = False
    ttl_ms: int = 60_000
    """0: detached, ends only by release, time limit or preemption."""
    min_count: int = 0
    """Slices that an elastic lease keeps in any case; 0: what it asks for. A multiple of `demand.count`."""
    max_count: int = 0
    """Slices that it can use at most; 0: what it asks for. A multiple of `demand.count`."""
    name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    gpu_text: str = ""
    stop_signal: str = ""
    """By which its programs are told to end, without SIG; empty: TERM."""
    cuda_ordinals: bool = False
    """Its processes find devices by number in CUDA_VISIBLE_DEVICES."""
    placed: bool = False
    """It was asked for on a place of its caller's choice: when it can't stay there, it ends."""
