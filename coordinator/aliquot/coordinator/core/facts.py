"""What has happened: the only things that are journalled, and the only things that change the State.

A fact is past tense, complete and integer-only, so that replaying the journal never decides anything again. Facts are
tagged MessagePack arrays on disk; fields are only ever appended, with a default, so that an older journal still decodes
(`journal.codec` says what happens with a newer one).
"""

from __future__ import annotations

import enum

import msgspec

from aliquot.coordinator.core.types import Demand, NodeSpec, SlicePlan


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


class RequestSpec(msgspec.Struct, frozen=True, omit_defaults=True):
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
    max_count: int = 0
    name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    gpu_text: str = ""


class SliceGrant(msgspec.Struct, frozen=True, array_like=True):
    """A slice as it was granted: which gang member it serves, and where it is."""

    slice_id: str
    member: int
    plan: SlicePlan


class Fact(msgspec.Struct, frozen=True, array_like=True, tag_field="k"):
    """Base of all facts. `at_ms` is the coordinator's clock, which never goes backwards."""

    at_ms: int


class LeaderStarted(Fact, frozen=True, tag="leader"):
    """A coordinator took over. Every TTL starts again in full."""

    leader_epoch: int


class NodePut(Fact, frozen=True, tag="node"):
    """A node was declared, or registered by its agent, or its hardware changed."""

    spec: NodeSpec
    registered: bool


class NodeStateChanged(Fact, frozen=True, tag="nstate"):
    """A node's liveness changed. LOST makes its slices UNREACHABLE; see `leases.TRANSITIONS`."""

    node_id: str
    state: NodeState
    session_epoch: int = 0
    reason: str = ""


class NodeCordoned(Fact, frozen=True, tag="cordon"):
    """An administrator opened or closed a node for new grants."""

    node_id: str
    cordoned: bool
    draining: bool = False
    reason: str = ""


class NodeRemoved(Fact, frozen=True, tag="nremove"):
    """A node that held nothing was forgotten."""

    node_id: str


class DeviceChanged(Fact, frozen=True, tag="device"):
    """What a device can give has changed: its health, or what processes outside any lease hold on it."""

    uuid: str
    foreign_bytes: int
    healthy: bool
    reason: str = ""


class LeaseQueued(Fact, frozen=True, tag="queued"):
    """A request was accepted. `arrival` orders requests for ever, also across requeues."""

    lease_id: str
    arrival: int
    request: RequestSpec
    key: str = ""
    body_sha256: bytes = b""


class LeaseGranted(Fact, frozen=True, tag="granted"):
    """Capacity is held for a queued lease. `lease_epoch` rises by one with every grant."""

    lease_id: str
    lease_epoch: int
    slices: tuple[SliceGrant, ...]
    note: str = ""


class SliceActive(Fact, frozen=True, tag="active"):
    """The agent has set the slice's limit and read it back."""

    lease_id: str
    slice_id: str
    tier: int


class SliceFailed(Fact, frozen=True, tag="failed"):
    """The slice could not be set up, or was lost on its device; nothing is held for it any more."""

    lease_id: str
    slice_id: str
    reason: str
    detail: str = ""


class SliceGone(Fact, frozen=True, tag="gone"):
    """Processes gone, limit cleared: the slice's capacity is free."""

    lease_id: str
    slice_id: str


class SlicesAdopted(Fact, frozen=True, tag="adopted"):
    """A node came back and still holds these slices: they go on as they were before it was lost."""

    node_id: str
    slice_ids: tuple[str, ...]


class LeaseReleasing(Fact, frozen=True, tag="releasing"):
    """A lease is ending: its slices keep their capacity until each is gone. A queued lease has none and ends at once.

    With `requeue`, it goes back to its queue with its arrival when the last slice is gone.
    """

    lease_id: str
    reason: EndReason
    detail: str = ""
    deadline_ms: int = 0
    requeue: bool = False


class SlicesReleasing(Fact, frozen=True, tag="sreleasing"):
    """Single slices of a lease are ending, because a sibling failed: the lease itself goes back to its queue."""

    lease_id: str
    slice_ids: tuple[str, ...]
    reason: str


class LeaseRequeued(Fact, frozen=True, tag="requeued"):
    """A lease is back in its queue, at its old place, not to be tried before `not_before_ms`."""

    lease_id: str
    reason: str
    not_before_ms: int = 0
    avoid_device_uuids: tuple[str, ...] = ()


class LeaseEnded(Fact, frozen=True, tag="ended"):
    """Nothing is held any more. The record stays for a while, for Get, List and the idempotency key."""

    lease_id: str
    reason: EndReason
    detail: str = ""


class LeasesForgotten(Fact, frozen=True, tag="forgotten"):
    """Ended leases left the books of the living: their records and idempotency keys are gone."""

    lease_ids: tuple[str, ...]


AnyFact = (
    LeaderStarted
    | NodePut
    | NodeStateChanged
    | NodeCordoned
    | NodeRemoved
    | DeviceChanged
    | LeaseQueued
    | LeaseGranted
    | SliceActive
    | SliceFailed
    | SliceGone
    | SlicesAdopted
    | LeaseReleasing
    | SlicesReleasing
    | LeaseRequeued
    | LeaseEnded
    | LeasesForgotten
)
