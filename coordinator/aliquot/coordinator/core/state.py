"""Everything the coordinator knows, changed only by `evolve(state, fact)`.

The books are the leases and the nodes. Everything else (who waits, what is due, what is used, what is reserved on which
device) is an index over them: kept up to date by `evolve`, rebuilt by replay, checked by `invariants`, and left out of
snapshots and hashes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from aliquot.coordinator.core.errors import LeaseNotFound, NodeNotFound
from aliquot.coordinator.core.facts import NodeState
from aliquot.coordinator.core.holds import Hold
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.ledger.books import Ledger
from aliquot.coordinator.core.ledger.meters import Meter
from aliquot.coordinator.core.maintenance.windows import Closure, Window
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.queueing import AdmissionPass, WaitingLines
from aliquot.coordinator.core.queueing.failed import FailedDemands
from aliquot.coordinator.core.tenancy.books import Tenancy
from aliquot.coordinator.core.tenancy.lending import NodeMove
from aliquot.coordinator.core.timers import Due, Timers
from aliquot.coordinator.core.types import Cut, Demand, NodeSpec

if TYPE_CHECKING:
    from aliquot.coordinator.core.preemption.plan import Preemption


SEARCHES_KEPT = 4_096
ENTITLED_KEPT = 4_096

SearchKey = tuple[Demand, str, str, int, frozenset[str] | None]
"""What makes two searches for victims the same: the demand, the tenant, the queue, the priority, and the owners of the
holds in the way. None for these: it is a limit that keeps the request out, not the devices.
"""

Outlook = tuple[tuple[str, ...], int, int, tuple[str, ...]]
"""(who would have to end, when it could start or 0, how much of that is guessed, notes on it)."""


class CoreConfig(msgspec.Struct, frozen=True):
    """Settings that decisions depend on. Facts carry what was decided, so a changed setting never changes a replay."""

    policy: str = "price"
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
    ledger_entries_max: int = 20_000
    """The latest usage is kept entry by entry, so much of it and little more; what is older as sums for each hour."""
    strict_tenants: bool = False
    """Refuse tenants and queues that were not declared. Otherwise they are welcome, with nothing guaranteed to them."""
    reclaim_min_run_ms: int = 20_000
    """Borrowed capacity may be reclaimed after this long, whatever the request says..."""
    reclaim_grace_ms: int = 30_000
    """...and with at most this much grace: together under a minute."""
    preemptions_max: int = 3
    """A lease is preempted at most so often within `preemption_period_ms`; then it waits until it can stay."""
    preemption_period_ms: int = 3_600_000
    cut_patience_ms: int = 10_000
    """A request must have waited so long before cards in MIG mode are cut for it..."""
    cut_rest_ms: int = 60_000
    """...and a card rests so long after a cut; twice as long after each that failed, up to an hour."""
    cut_timeout_ms: int = 300_000
    """An order to cut a card that was not answered for so long has failed."""
    cut_look_ms: int = 1_000
    hold_slack_ms: int = 30_000
    """A preemptor's hold outlives its victims' deadline by this much."""
    reservation_ms: int = 86_400_000
    """How long devices are kept for the head of a line before they are offered to all again."""
    growth_idle_ms: int = 5_000
    """Elastic leases grow when capacity has been on offer for so long and nobody who waits could use it..."""
    growth_rest_ms: int = 30_000
    """...and each of them not before this time after its last change: at most two changes of shape a minute."""
    shed_stop_ms: int = 5_000
    """Between SIGTERM and SIGKILL of what still runs when the notice of a slice that is given back is over."""


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
    cuts: tuple[Cut, ...] = ()
    """The last order to cut each of its cards."""
    closure: Closure | None = None
    """The maintenance window that closes it; what an administrator closed by hand is `cordoned`, and stays so."""

    @property
    def grantable(self) -> bool:
        """Whether new slices may be placed there."""
        return self.closure is None and self.open

    @property
    def open(self) -> bool:
        """Whether they might be, were it not for a maintenance window."""
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
    node_moves: tuple[NodeMove, ...] = ()
    """Nodes that changed hands, in order."""


@dataclass(slots=True)
class GrowthRound:
    """One walk over the elastic leases that may grow: a hint, like the walk over the waiting lines."""

    lease_ids: list[str]
    """Those that were not looked at yet, the next one last."""
    again_ms: int
    """When to look again once it is over."""
    grew_priority: int = -(1 << 62)
    """Of the last one that grew."""


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
        self.tenancy = Tenancy()
        self.ledger = Ledger()
        self.holds: dict[str, Hold] = {}
        """By the lease they are for."""
        self.node_moves: list[NodeMove] = []
        """The latest moves of nodes between projects, in order."""
        self.node_moved_ms: dict[str, int] = {}
        """When a node last changed hands."""
        self.disruptions: dict[str, tuple[int, ...]] = {}
        """When leases of a tenant were last preempted by priority; only of tenants that bound it."""
        self.windows: dict[str, Window] = {}
        """Maintenance windows, by name."""

        self.inventory = Inventory()
        self.engine = Engine(self.inventory, make_policy(config.policy))
        self.prices: PriceTable | None = None
        """What the price policy believes; None: what it starts with."""
        self.keys: dict[tuple[str, str], str] = {}
        self.node_ids_by_name: dict[str, str] = {}
        self.slice_ids_by_node: dict[str, dict[str, None]] = {}
        self.lines = WaitingLines(self.tenancy)
        self.meters: dict[str, Meter] = {}
        """Of tenants that have a budget."""
        self.hold_of_device: dict[str, str] = {}
        """Device -> the lease it is kept for."""
        self.ready_holds: dict[str, None] = {}
        """Holds that are complete: their owners can be granted."""
        self.holding_by_priority: dict[int, int] = {}
        """How many slices are held by leases of each priority."""
        self.ending: dict[str, None] = {}
        """Leases that are on their way out, and still hold something."""
        self.node_versions: dict[str, int] = {}
        """Moves whenever what leases do on a node changes, and never to where it was, even where the node was removed
        and returns with other devices."""
        self._touches = 0
        self.known_full = FailedDemands()
        """Demands that are known not to fit until something is freed."""
        self.freed_version = 0
        """Moves whenever something may fit, or be preempted, that did not or could not before."""
        self.searched: dict[SearchKey, tuple[int, int]] = {}
        """Searches for victims that found none: at which version, and until when they rest."""
        self.outlooks: dict[tuple[Demand, str, str, int], tuple[int, Outlook]] = {}
        """What `Explain` said lately of when equal requests can start."""
        self.preemption: Preemption | None = None
        """Plans preemptions; made when first needed."""
        self.capacity_version = 0
        """Moves when what could be leased at all changes: nodes, their state, the health of devices."""
        self.elastic: dict[str, None] = {}
        """Elastic leases that have a grant."""
        self.closed: dict[str, Closure] = {}
        """Nodes that would be grantable, were it not for a maintenance window."""
        self.timers = Timers()
        self.ended: deque[str] = deque()

        self._begin_hints()

    def _begin_hints(self) -> None:
        """What only saves work: dropped without loss, and never part of a decision's outcome."""
        self.movable_slices = 0
        """How many slices are held by leases that were marked movable: where there are none, no moves are planned."""
        self.entitled_key = (-1, -1, -1)
        self.entitled: dict[str, bool] = {}
        """Whom that waits a guarantee covers: remembered for these versions."""
        self.scale_key = (-1, -1)
        self.scale = 0
        """How much of every guarantee can be kept, in millionths: remembered for these versions."""
        self.admission: AdmissionPass | None = None
        """The walk over the waiting lines that is under way."""
        self.capacity_freed = False
        """Something may fit that did not when the last walk began."""
        self.balance_due_ms: dict[str, int] = {}
        """When each pool that balances by itself looks next."""
        self.growth_round: GrowthRound | None = None
        self._elastic_in_order: list[str] | None = None
        self.busy_permille: dict[str, int] = {}
        """How busy elastic leases were lately, as far as it was measured."""
        self.growth_due_ms = 0
        """When growth is looked for next; 0: nothing asks for it."""
        self.shed_searched: dict[tuple[Demand, str, str, int], tuple[int, int, int]] = {}
        """Searches for what elastic leases could give back that found nothing: at which version, until when they rest,
        and for how long.
        """
        self.cutting: dict[str, None] = {}
        """Nodes with cards that may be cut."""
        self.cuts_due_ms = 0
        """When it is looked next whether a card should be cut; 0: never."""
        self.emptying: dict[str, None] = {}
        """Nodes under maintenance on which something may still run that was not told to go."""
        self.full_before: dict[Demand, int] = {}
        """Demands that do not fit on nodes either that close later than this."""
        self._touched_leases: dict[str, None] = {}
        self._touched_nodes: dict[str, None] = {}
        self._touched_devices: dict[str, None] = {}
        self._node_moves_made: tuple[NodeMove, ...] = ()

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
        if self.admission is not None or self.ready_holds:
            return True
        return self.capacity_freed and len(self.lines) > self.lines.resting

    def free_capacity(self) -> None:
        """Something may fit that did not before."""
        self.capacity_freed = True
        self.freed_version += 1
        self.known_full.clear()
        self.full_before.clear()
        self.look_for_growth(self.now_ms + self.config.growth_idle_ms)

    def searched_in_vain(self, key: SearchKey, version: int, until_ms: int) -> None:
        """Nobody could be ended for such a request: not worth another search before then, as long as nothing moves."""
        if len(self.searched) >= SEARCHES_KEPT:
            self.searched.clear()
        self.searched[key] = (version, until_ms)

    def look_for_balance(self, pool: str, due_ms: int) -> None:
        """Remember to look then at how a pool's projects use their nodes."""
        self.balance_due_ms[pool] = due_ms
        self.timers.add(due_ms, Due.BALANCE, pool)

    def elastic_begins(self, lease_id: str) -> None:
        """An elastic lease has a grant from now on."""
        self.elastic[lease_id] = None
        self._elastic_in_order = None

    def elastic_ends(self, lease_id: str) -> None:
        """A lease has no grant any more, or is ending. Of a rigid one, nothing changes."""
        if self.elastic.pop(lease_id, self) is None:
            self._elastic_in_order = None

    def elastic_in_order(self) -> list[str]:
        """Those that give back first come first: the lowest priority, then the youngest."""
        if self._elastic_in_order is None:
            leases = self.leases
            self._elastic_in_order = sorted(
                self.elastic, key=lambda lease_id: (leases[lease_id].request.priority, -leases[lease_id].arrival)
            )
        return self._elastic_in_order

    def look_for_growth(self, due_ms: int) -> None:
        """Remember to look then, or before, whether an elastic lease may grow."""
        if self.elastic and not 0 < self.growth_due_ms <= due_ms:
            self.growth_due_ms = due_ms
            self.timers.add(due_ms, Due.GROWTH, "")

    def node_touched(self, node_id: str) -> None:
        """What could be evicted on a node has changed."""
        self._touches += 1
        self.node_versions[node_id] = self._touches

    def disrupted(self, tenant: str, at_ms: int) -> None:
        """A lease of this tenant was preempted by priority."""
        bound = self.tenancy.tenant_spec(tenant).disruptions_max
        if bound:
            self.disruptions[tenant] = (*self.disruptions.get(tenant, ()), at_ms)[-bound:]

    def count_lease(self, lease: Lease, slices: int) -> None:
        """A lease holds so many slices more (or, below zero, fewer)."""
        self.movable_slices += slices if lease.request.movable else 0
        priority = lease.request.priority
        left = self.holding_by_priority.get(priority, 0) + slices
        if left:
            self.holding_by_priority[priority] = left
        else:
            del self.holding_by_priority[priority]

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

    def touch_node_move(self, move: NodeMove) -> None:
        """Say that a node has changed hands."""
        self._node_moves_made += (move,)

    def take_touched(self) -> Touched:
        """What has changed since this was last called."""
        touched = Touched(
            tuple(self._touched_leases), tuple(self._touched_nodes), tuple(self._touched_devices), self._node_moves_made
        )
        self._node_moves_made = ()
        self._touched_leases.clear()
        self._touched_nodes.clear()
        self._touched_devices.clear()
        return touched
