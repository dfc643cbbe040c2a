"""Everything the coordinator knows, changed only by `evolve(state, fact)`.

The books are the leases and the nodes. Everything else (who waits, what is due, what is used, what is reserved on which
device) is an index over them: kept up to date by `evolve`, rebuilt by replay, checked by `invariants`, and left out of
snapshots and hashes.
"""

from __future__ import annotations

from collections import deque

import msgspec

from aliquot.coordinator.core.errors import LeaseNotFound, NodeNotFound
from aliquot.coordinator.core.facts import NodeState
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.queueing import AdmissionPass, WaitingLines
from aliquot.coordinator.core.timers import Timers
from aliquot.coordinator.core.types import NodeSpec


class CoreConfig(msgspec.Struct, frozen=True):
    """Settings that decisions depend on. Facts carry what was decided, so a changed setting never changes a replay."""

    policy: str = "binpack"
    confirm_timeout_ms: int = 30_000
    """A GRANTED slice that its agent has not confirmed for so long is given up and its lease requeued."""
    requeue_backoff_ms: int = 1_000
    """Doubled with every requeue of the same lease, up to `requeue_backoff_max_ms`."""
    requeue_backoff_max_ms: int = 60_000
    requeues_max: int = 16
    """A lease that failed so often ends as FAILED."""
    queued_max: int = 200_000
    retain_ended_ms: int = 600_000
    retain_ended_max: int = 100_000
    """Ended leases, and with them their idempotency keys, are kept for so long, and never many more than so many."""


class Node(msgspec.Struct, frozen=True):
    """A machine of the pool, as far as the coordinator is concerned."""

    spec: NodeSpec
    state: NodeState
    cordoned: bool = False
    draining: bool = False
    reason: str = ""
    session_epoch: int = 0
    registered: bool = False
    seq: int = 0

    @property
    def grantable(self) -> bool:
        """Whether new slices may be placed there."""
        if self.cordoned:
            return False
        return self.state is NodeState.READY or (self.state is NodeState.DECLARED and self.spec.agentless)


class Device(msgspec.Struct, frozen=True):
    """What the journal remembers of a device beside its spec."""

    foreign_bytes: int = 0
    healthy: bool = True
    reason: str = ""


class Touched(msgspec.Struct, frozen=True):
    """What changed since last taken; each id once, in order of its first change."""

    leases: tuple[str, ...]
    nodes: tuple[str, ...]
    devices: tuple[str, ...]


class State:
    """See the module's docstring. Readers outside the core look only at what the outbox has published."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.seq = 0
        self.now_ms = 0
        self.leader_epoch = 0
        self.next_arrival = 1
        self.leases: dict[str, Lease] = {}
        self.nodes: dict[str, Node] = {}
        self.devices: dict[str, Device] = {}

        self.inventory = Inventory()
        self.engine = Engine(self.inventory, make_policy(config.policy))
        self.keys: dict[tuple[str, str], str] = {}
        self.node_ids_by_name: dict[str, str] = {}
        self.slice_ids_by_node: dict[str, dict[str, None]] = {}
        self.lines = WaitingLines()
        self.timers = Timers()
        self.ended: deque[str] = deque()

        self.admission: AdmissionPass | None = None
        """The walk over the waiting lines that is under way."""
        self.capacity_freed = False
        """Something may fit that did not when the last walk began."""
        self._touched_leases: dict[str, None] = {}
        self._touched_nodes: dict[str, None] = {}
        self._touched_devices: dict[str, None] = {}

    @classmethod
    def fresh(cls, config: CoreConfig | None = None) -> State:
        """An empty pool."""
        return cls(config or CoreConfig())

    def lease(self, lease_id: str) -> Lease:
        """The lease of this id. Raises LeaseNotFound."""
        lease = self.leases.get(lease_id)
        if lease is None:
            raise LeaseNotFound(
                f"there is no lease {lease_id!r}",
                hint="it may have ended more than ten minutes ago; `aliquot ls` lists those that live",
            )
        return lease

    def node(self, node_id: str) -> Node:
        """The node of this id or, failing that, of this name. Raises NodeNotFound."""
        node = self.nodes.get(node_id) or self.nodes.get(self.node_ids_by_name.get(node_id, ""))
        if node is None:
            raise NodeNotFound(f"there is no node {node_id!r}", hint="`aliquot nodes` lists those there are")
        return node

    def wants_admission(self) -> bool:
        """Whether an Admit command could find something to grant."""
        return self.admission is not None or (self.capacity_freed and len(self.lines) > self.lines.resting)

    def next_due_ms(self) -> int | None:
        """When a Tick command will find something to do."""
        return self.timers.next_due_ms()

    def touch_lease(self, lease_id: str) -> None:
        """Say that this lease's record was replaced."""
        self._touched_leases[lease_id] = None

    def touch_node(self, node_id: str) -> None:
        """Say that this node's record was replaced."""
        self._touched_nodes[node_id] = None

    def touch_device(self, uuid: str) -> None:
        """Say that this device's record was replaced."""
        self._touched_devices[uuid] = None

    def take_touched(self) -> Touched:
        """What has changed since this was last called."""
        touched = Touched(tuple(self._touched_leases), tuple(self._touched_nodes), tuple(self._touched_devices))
        self._touched_leases.clear()
        self._touched_nodes.clear()
        self._touched_devices.clear()
        return touched
