"""What has happened: the only things that are journalled, and the only things that change the State.

A fact is past tense, complete and integer-only, so that replaying the journal never decides anything again. Facts are
tagged MessagePack arrays on disk; fields are only ever appended, with a default, so that an older journal still decodes
(`journal.codec` says what happens with a newer one).

Facts of tenancy, the ledger and maintenance stand where these are; `AnyFact` puts all together.
"""

from __future__ import annotations

import enum

import msgspec

from aliquot.coordinator.core.fact import Fact as Fact  # noqa: PLC0414 - said again for all who import it from here
from aliquot.coordinator.core.holds import HoldKind
from aliquot.coordinator.core.ledger.facts import (
    BooksClosed,
    BudgetCrossed,
    CreditPosted,
    RatesApplied,
    UsageCorrected,
    UsageFolded,
    UseObserved,
)
from aliquot.coordinator.core.maintenance.facts import MaintenanceDeclared, MaintenanceEnded, MaintenanceMoved
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.tenancy.facts import (
    NodeLent,
    PoolApplied,
    PoolRemoved,
    QueueApplied,
    QueueRemoved,
    TenantApplied,
    TenantRemoved,
)
from aliquot.coordinator.core.types import Cut, Demand, NodeSpec, Placement, SlicePlan


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
    """Slices that an elastic lease keeps in any case; 0: what it asks for. A multiple of `demand.count`."""
    max_count: int = 0
    """Slices that it can use at most; 0: what it asks for. A multiple of `demand.count`."""
    name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    gpu_text: str = ""


class SliceGrant(msgspec.Struct, frozen=True, array_like=True):
    """A slice as it was granted: which gang member it serves, and where it is."""

    slice_id: str
    member: int
    plan: SlicePlan


class LeaderStarted(Fact, frozen=True, tag="leader"):
    """A coordinator took over, and every TTL starts again in full; or the one that leads goes on in a higher epoch."""

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


class CutOrdered(Fact, frozen=True, tag="cut"):
    """A card of a node is to be cut anew, for somebody who waits. Its agent may refuse."""

    node_id: str
    cut: Cut


class CutSettled(Fact, frozen=True, tag="cut!"):
    """The card was cut as ordered; or, with a problem, it was not."""

    node_id: str
    card_uuid: str
    number: int
    problem: str = ""


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
    endpoint: str = ""
    """Where it is served; empty: programs attach on its node."""


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


class LeaseGrown(Fact, frozen=True, tag="grown"):
    """An elastic lease holds more members. Their numbers are fresh or those of members that are gone."""

    lease_id: str
    slices: tuple[SliceGrant, ...]


class SlicesShed(Fact, frozen=True, tag="shed"):
    """An elastic lease gives these slices back and goes on without them.

    With `notice` they run until the deadline, or until the launcher acknowledges; without, they are being stopped.
    What holds nothing any more is forgotten.
    """

    lease_id: str
    slice_ids: tuple[str, ...]
    deadline_ms: int
    reason: str
    notice: bool = False


class SlicesKept(Fact, frozen=True, tag="kept"):
    """Slices that were to be given back stay: nobody needs their capacity any more."""

    lease_id: str
    slice_ids: tuple[str, ...]
    reason: str = ""


class ShapeAcknowledged(Fact, frozen=True, tag="shapeack"):
    """The launcher of an elastic lease has adapted to this shape."""

    lease_id: str
    shape: int


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
    moved: bool = False
    """It is granted elsewhere in the same group, because its place was wanted, or is no good any more."""

    @property
    def failed(self) -> bool:
        """Whether its grant did not come up: nothing else rests before it is tried again."""
        return self.not_before_ms > 0


class LeaseEnded(Fact, frozen=True, tag="ended"):
    """Nothing is held any more. The record stays for a while, for Get, List and the idempotency key."""

    lease_id: str
    reason: EndReason
    detail: str = ""


class LeasesForgotten(Fact, frozen=True, tag="forgotten"):
    """Ended leases left the books of the living: their records and idempotency keys are gone."""

    lease_ids: tuple[str, ...]


# -- holds and preemption


class PreemptionStarted(Fact, frozen=True, tag="preempt"):
    """Victims were chosen for a lease. Their ends (`LeaseReleasing`) and the hold are facts of the same group."""

    preemptor: str
    victims: tuple[str, ...]
    deadline_ms: int
    reclaim: bool
    """True: a guarantee is being reclaimed from borrowers; False: by priority."""
    kept: int = 3
    """So many of the times at which a victim was preempted are remembered."""


class HoldCreated(Fact, frozen=True, tag="hold"):
    """These devices are kept for the owner until `expires_ms`."""

    owner: str
    kind: HoldKind
    placement: Placement
    expires_ms: int
    victims: tuple[str, ...] = ()
    start_ms: int = 0
    shed: tuple[str, ...] = ()


class HoldReleased(Fact, frozen=True, tag="hold-"):
    """The hold is over: its owner no longer needs it, or its time is up."""

    owner: str
    reason: str = ""


class HoldBroken(Fact, frozen=True, tag="holdx"):
    """The hold can't be kept: a device of it was lost."""

    owner: str
    reason: str


class LeaseReprieved(Fact, frozen=True, tag="reprieve"):
    """A victim that had not given up anything yet goes on: nobody needs its capacity any more."""

    lease_id: str
    reason: str = ""


class PricesLearnt(Fact, frozen=True, tag="prices"):
    """The price policy has new prices, learnt from what arrived. Other policies ignore them."""

    table: PriceTable


AnyFact = (
    LeaderStarted
    | NodePut
    | NodeStateChanged
    | NodeCordoned
    | NodeRemoved
    | MaintenanceDeclared
    | MaintenanceMoved
    | MaintenanceEnded
    | DeviceChanged
    | CutOrdered
    | CutSettled
    | LeaseQueued
    | LeaseGranted
    | SliceActive
    | SliceFailed
    | SliceGone
    | SlicesAdopted
    | LeaseReleasing
    | LeaseGrown
    | SlicesShed
    | SlicesKept
    | ShapeAcknowledged
    | SlicesReleasing
    | LeaseRequeued
    | LeaseEnded
    | LeasesForgotten
    | PoolApplied
    | TenantApplied
    | QueueApplied
    | PoolRemoved
    | TenantRemoved
    | QueueRemoved
    | NodeLent
    | PreemptionStarted
    | HoldCreated
    | HoldReleased
    | HoldBroken
    | LeaseReprieved
    | RatesApplied
    | CreditPosted
    | UsageCorrected
    | UseObserved
    | BudgetCrossed
    | BooksClosed
    | UsageFolded
    | PricesLearnt
)
