"""Everything the coordinator knows, changed only by `evolve(state, fact)`.

The books are what the journal says: leases, nodes, tenants, holds, the ledger. The indexes (who waits, what is due,
what is reserved on which device) are derived from them: kept up to date by `evolve`, rebuilt by replay, recounted by
tests (`tests/core/invariants.py`), and left out of snapshots and hashes. Neither depends on any setting. What the
decider remembers of its earlier searches is in `memory`, and sees by the versions here whether it still holds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from aliquot.coordinator.core.books.access import AccessBooks, AuditEntry
from aliquot.coordinator.core.books.demand import DemandBooks, Hour, RecentDemand
from aliquot.coordinator.core.books.enrolment import EnrolmentBooks
from aliquot.coordinator.core.books.health.records import HealthBooks
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.ledger import Ledger
from aliquot.coordinator.core.books.ledger.meters import Meter
from aliquot.coordinator.core.books.maintenance import Closure, Window
from aliquot.coordinator.core.books.nodes import Device, Node
from aliquot.coordinator.core.books.supply import SupplyBooks
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.mix import ArrivalMix
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.queueing import WaitingLines
from aliquot.coordinator.core.values.errors import no_lease, no_node
from aliquot.coordinator.core.values.timers import AFTER, Timers


@dataclass(slots=True)
class Mark:
    """When something last happened, and how often it has."""

    version: int = 0
    at_ms: int = 0

    def move(self, at_ms: int) -> None:
        """It has happened again."""
        self.version += 1
        self.at_ms = at_ms


@dataclass(slots=True)
class Touched:
    """What changed since last taken; each id once, in order of its first change."""

    leases: dict[str, None] = field(default_factory=dict)
    nodes: dict[str, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    meters: dict[str, None] = field(default_factory=dict)
    """Tenants whose budgets are used at another pace."""
    plans: bool = False
    """Whether holds or maintenance windows have changed."""
    principals: dict[str, None] = field(default_factory=dict)
    tokens: dict[str, None] = field(default_factory=dict)
    audit: list[AuditEntry] = field(default_factory=list)
    """What was put down of who did what, in order."""
    enrolled: dict[str, None] = field(default_factory=dict)
    """Nodes whose key has changed."""
    invites: dict[str, None] = field(default_factory=dict)
    authority: bool = False
    """Whether a generation of the pool's authority has begun, or was retired."""
    demand: list[tuple[int, Hour]] = field(default_factory=list)
    """Hours of demand that are over."""


class State:
    """See the module's docstring. Changed by `evolve`, and as due work is taken; read by all others."""

    def __init__(self) -> None:
        # the books: what snapshots and hashes hold
        self.seq = 0
        self.now_ms = 0
        self.leader_epoch = 0
        self.next_arrival = 1
        self.leases: dict[str, Lease] = {}
        self.nodes: dict[str, Node] = {}
        self.devices: dict[str, Device] = {}
        self.ended: deque[str] = deque()
        """Ended leases, in the order of their ends."""
        self.tenancy = Tenancy()
        self.ledger = Ledger()
        self.holds: dict[str, Hold] = {}
        """By the lease they are for."""
        self.disruptions: dict[str, tuple[int, ...]] = {}
        """When leases of a tenant were last preempted by priority; only of tenants that bound it."""
        self.windows: dict[str, Window] = {}
        """Maintenance windows, by name."""
        self.access = AccessBooks()
        self.enrolment = EnrolmentBooks()
        self.health = HealthBooks()
        self.demand = DemandBooks()
        self.supply = SupplyBooks()
        self.prices: PriceTable | None = None
        """What the price policy believes; None: what it starts with."""

        self._begin_indexes()
        self._begin_versions()

    def _begin_indexes(self) -> None:
        """What is derived from the books, by `evolve` and by `rebuild`."""
        self.inventory = Inventory()
        self.lines = WaitingLines(self.tenancy)
        self.arrivals = ArrivalMix()
        """What was asked for lately, among the facts that this State has seen."""
        self.recent = RecentDemand()
        """What was granted lately, likewise."""
        self.started = 0
        """How many leases were granted for the first time, among the same facts."""
        self.keys: dict[tuple[str, str], str] = {}
        """(tenant, idempotency key) -> lease."""
        self.node_ids_by_name: dict[str, str] = {}
        self.slice_ids_by_node: dict[str, dict[str, None]] = {}
        self.meters: dict[str, Meter] = {}
        """Of tenants that have a budget."""
        self.hold_of_device: dict[str, str] = {}
        """Device -> the lease it is kept for."""
        self.ready_holds: dict[str, None] = {}
        """Holds that are complete: their owners can be granted."""
        self.holding_by_priority: dict[int, int] = {}
        """How many slices are held by leases of each priority."""
        self.movable_slices = 0
        """How many slices are held by leases that were marked movable: where there are none, no moves are planned."""
        self.ending: dict[str, None] = {}
        """Leases that are on their way out, and still hold something."""
        self.elastic: dict[str, None] = {}
        """Elastic leases that have a grant."""
        self.lenders: dict[str, None] = {}
        """Idle leases whose share opportunistic ones may use."""
        self.borrowers: dict[str, dict[str, None]] = {}
        """Slice -> the slices that are held on it."""
        self.closed: dict[str, Closure] = {}
        """Nodes that would be grantable, were it not for a maintenance window."""
        self.emptying: dict[str, None] = {}
        """Nodes under maintenance on which something still runs."""
        self.cutting: dict[str, None] = {}
        """Nodes with cards that may be cut."""
        self.timers = Timers()
        """What is due, where the books say when."""
        self.since = {kind: Timers() for kind in AFTER}
        """What is due some time after something began: entries say when that was, settings how long after."""

    def _begin_versions(self) -> None:
        """Versions of the indexes: what was remembered for one version is stale at another."""
        self.capacity_version = 0
        """Moves when what could be leased at all changes: nodes, their state, the health of devices."""
        self.freed_version = 0
        """Moves whenever something may fit, or be preempted, that did not or could not before."""
        self.closed_version = 0
        """Moves when a node is closed."""
        self.offer_version = 0
        """Moves whenever another pass along the lines is worth while."""
        self.elastic_version = 0
        """Moves when an elastic lease begins or ends."""
        self.idle = Mark()
        """Since when capacity that elastic leases could use may have been idle."""
        self.reshaped = Mark()
        """The last change of an elastic lease's shape, after which it rests."""
        self.node_versions: dict[str, int] = {}
        """Rises whenever leases on a node change, also across a removal and a return of the node."""
        self._touches = 0

        self.touched = Touched()
        """What readers are to be told: whatever replaces a record says so here."""

    @classmethod
    def fresh(cls) -> State:
        """An empty pool."""
        return cls()

    def lease(self, lease_id: str) -> Lease:
        """The lease of this id. Raises LeaseNotFound."""
        lease = self.leases.get(lease_id)
        if lease is None:
            raise no_lease(lease_id)
        return lease

    def node(self, node_id: str) -> Node:
        """The node of this id or, failing that, of this name. Raises NodeNotFound."""
        node = self.nodes.get(node_id) or self.nodes.get(self.node_ids_by_name.get(node_id, ""))
        if node is None:
            raise no_node(node_id)
        return node

    def offer_again(self) -> None:
        """Waiting requests may fit now, or others may have to make room for them."""
        self.offer_version += 1

    def free_capacity(self) -> None:
        """Something may fit that did not before."""
        self.offer_version += 1
        self.freed_version += 1
        self.idle.move(self.now_ms)

    def elastic_begins(self, lease_id: str) -> None:
        """An elastic lease has a grant from now on."""
        self.elastic[lease_id] = None
        self.elastic_version += 1
        self.idle.move(self.now_ms)

    def elastic_ends(self, lease_id: str) -> None:
        """A lease has no grant any more, or is ending. Does nothing for a rigid one."""
        if self.elastic.pop(lease_id, self) is None:
            self.elastic_version += 1

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

    def take_touched(self) -> Touched:
        """What has changed since this was last called."""
        touched, self.touched = self.touched, Touched()
        return touched
