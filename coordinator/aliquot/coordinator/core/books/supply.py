"""What the books hold about nodes that are ordered: what is on offer, by which rules, and the course of every order."""

from __future__ import annotations

import enum
from collections import Counter, deque

import msgspec

from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import NodeSpec

CLOSED_KEPT = 1_000
"""Orders that are over; older ones are forgotten."""
SPELLS_KEPT = 10_000
SHAPE_LABEL = "supply.aliquot.dev/shape"
"""A node with this label is of the shape that it names, whatever the node's own name is."""
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class Means(enum.StrEnum):
    """What may serve a request without another node."""

    RECLAIM = "reclaim"
    """Somebody ends for it: a borrower, or a lease of lower priority."""
    SHRINK = "shrink"
    """Elastic leases give members back."""
    MOVE = "move"
    """Movable leases are granted elsewhere, so that there is room in one place."""
    WAIT = "wait"
    """What runs will have ended, by its time limit, before a node could be there."""


EVERY_MEANS = (Means.WAIT, Means.RECLAIM, Means.SHRINK, Means.MOVE)


class NodeShape(msgspec.Struct, frozen=True, omit_defaults=True):
    """A kind of node on offer."""

    name: str
    node: NodeSpec
    """What such a node has: devices, labels, pool, CPU. Its names and UUIDs mean nothing."""
    nodes_max: int
    """At most so many at a time, with those on their way."""
    nodes_min: int = 0
    """So many are kept, however empty."""
    lead_ms: int = 0
    """From an order to a node that takes leases, as a rule."""
    price_micro: int = 0
    """Of one node for an hour, in millionths of the currency."""
    machines: tuple[str, ...] = ()
    """Names of the machines that there are, asleep or awake. Empty: nodes are made, and are named after the shape."""


class PoolBound(msgspec.Struct, frozen=True, omit_defaults=True):
    """What holds for all shapes of one pool together."""

    pool: str
    nodes_max: int = -1
    """-1: no bound of its own."""
    headroom_permille: int = -1
    """-1: that of the policy."""


class SupplyPolicy(msgspec.Struct, frozen=True, omit_defaults=True):
    """By which rules nodes are ordered and given back."""

    act: bool = False
    """False: a dry run. Advice is given, and nothing is ordered."""
    target_wait_ms: int = 300_000
    """A request that no means would serve within this gets a node ordered for it..."""
    means: tuple[Means, ...] = EVERY_MEANS
    """...unless one of these will serve it; they are asked in this order."""
    means_ms: int = 120_000
    """A means is believed in for so long beyond the target; then a node is ordered after all."""
    idle_ms: int = 600_000
    """A node is given back that has been empty for so long..."""
    keep_ms: int = 1_800_000
    """...has been here for so long..."""
    rest_ms: int = DAY_MS
    """...and was not given back within this time already: at most two reversals of one node a day."""
    headroom_permille: int = 100
    """So much of what is left stays free when nodes are given back."""
    spare_permille: int = 0
    """A node is ordered ahead of those who will ask, when less than this is free. Not above the headroom."""
    late_ms: int = 900_000
    """A node that is so much later than it was promised does not come any more: it is ordered elsewhere, and this one
    is cancelled."""
    orders_max: int = 32
    """Orders that are open at a time."""
    hour_micro: int = 0
    """What all nodes of the shapes may cost in an hour; 0: no bound."""
    month_micro: int = 0
    """What they may cost in a calendar month (UTC); 0: no bound."""
    ready_permille: int = 0
    """What will be asked for in the time that a node takes to come finds room with this probability, as far as the
    requests of the last hours tell. 0: nothing is ordered for it (what journals of before it meant)."""


class SupplySpec(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is declared about ordering nodes."""

    shapes: tuple[NodeShape, ...] = ()
    policy: SupplyPolicy = SupplyPolicy()
    pools: tuple[PoolBound, ...] = ()

    def shape(self, name: str) -> NodeShape | None:
        """The shape of this name."""
        return next((shape for shape in self.shapes if shape.name == name), None)

    def bound(self, pool: str) -> PoolBound:
        """What holds for a pool."""
        return next((bound for bound in self.pools if bound.pool == pool), PoolBound(pool))

    def headroom_permille(self, pool: str) -> int:
        """How much of a pool stays free when nodes are given back."""
        own = self.bound(pool).headroom_permille
        return own if own >= 0 else self.policy.headroom_permille


class Way(enum.IntEnum):
    """What is ordered. Numbers equal those of the contract."""

    ADD = 1
    REMOVE = 2


class OrderState(enum.IntEnum):
    """How far an order has come. Numbers equal those of the contract."""

    ORDERED = 1
    """It waits for somebody to carry it out."""
    TAKEN = 2
    """Somebody is at it."""
    UNDER_WAY = 3
    """It was accepted: the node is on its way, or is going."""
    DONE = 4
    FAILED = 5
    WITHDRAWN = 6


OVER = frozenset({OrderState.DONE, OrderState.FAILED, OrderState.WITHDRAWN})


class Order(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node, to come or to go."""

    number: int
    way: Way
    shape: str
    pool: str
    node_name: str
    why: str
    """One sentence: who waits for it, or why nobody needs it."""
    ordered_ms: int
    due_ms: int
    """When it should be done."""
    price_micro: int = 0
    state: OrderState = OrderState.ORDERED
    changed_ms: int = 0
    taken_by: str = ""
    taken_until_ms: int = 0
    """Whoever took it and has not said a word by then has lost it: another may carry it out, under the same id."""
    tries: int = 0
    again_ms: int = 0
    """Not to be taken before; after a failure."""
    reference: str = ""
    """What whoever carries it out calls it."""
    problem: str = ""
    node_id: str = ""
    """Of a node that goes, or has come."""
    closed: bool = False
    """The node was closed for this order, and is open again if it stays."""
    early: bool = False
    """A forecast wants it; nobody waits for it yet."""

    @property
    def order_id(self) -> str:
        """What makes it one order, however often it is carried out."""
        return f"order-{self.number}"

    @property
    def open(self) -> bool:
        """Whether something is still to become of it."""
        return self.state not in OVER


class Slot(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is remembered of a node by its name, also while it is away."""

    shape: str
    added_ms: int = 0
    """When it was last ordered."""
    here_ms: int = 0
    """When it last came; 0: it is not here."""
    removed_ms: int = 0
    """When it was last ordered away."""
    price_micro: int = 0
    """What it costs, while it is here."""


class Rest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shape that can't be had for a while."""

    until_ms: int
    failures: int
    """In a row."""
    problem: str = ""


class Spell(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True):
    """A time for which a node was paid."""

    from_ms: int
    to_ms: int
    price_micro: int


class SupplyBooks:
    """Declared shapes, orders, and what follows from them. Changed by `evolve` alone."""

    def __init__(self) -> None:
        self.spec: SupplySpec | None = None
        self.version = 0
        self.next_order = 1
        self.orders: dict[int, Order] = {}
        """Open ones, by number."""
        self.closed: deque[Order] = deque(maxlen=CLOSED_KEPT)
        self.slots: dict[str, Slot] = {}
        """By the node's name."""
        self.rests: dict[str, Rest] = {}
        """By shape."""
        self.over: Counter[tuple[str, Way, OrderState]] = Counter()
        """Orders that are over, by shape and how they ended: since this process began, for metrics."""
        self.changes = 0
        """How often anything here has changed, in this process: what was found for one number is stale at another."""
        self.spells: deque[Spell] = deque(maxlen=SPELLS_KEPT)
        """Of nodes that went, in the order in which they did."""


# --------------------
# What has happened to orders of nodes.


class SupplyDeclared(Fact, frozen=True, tag="shapes"):
    """These shapes are on offer from now on, by these rules, and no others."""

    spec: SupplySpec
    version: int


class NodeOrdered(Fact, frozen=True, tag="order+"):
    """A node was ordered, to come or to go."""

    order: Order


class OrderChanged(Fact, frozen=True, tag="order>"):
    """An order has gone on, or is over."""

    order: Order
    rest_ms: int = 0
    """Its shape is not ordered again for so long, because it can't be had now."""


class NodeCame(Fact, frozen=True, tag="node+"):
    """A node of a shape is here that was not, whoever ordered it; its time is paid from now on."""

    name: str
    shape: str
    price_micro: int = 0


class NodeWent(Fact, frozen=True, tag="node-"):
    """A node of a shape is not here any more, whoever took it away."""

    name: str
