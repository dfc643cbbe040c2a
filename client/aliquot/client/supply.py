"""Nodes that come when they are missed and go when they are not: shapes on offer, orders, advice, forecasts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class OrderWay(StrEnum):
    """What is ordered."""

    UNSPECIFIED = "UNSPECIFIED"
    ADD = "ADD"
    REMOVE = "REMOVE"


class OrderState(StrEnum):
    """How far an order has come."""

    UNSPECIFIED = "UNSPECIFIED"
    ORDERED = "ORDERED"
    """It waits for somebody to carry it out."""
    TAKEN = "TAKEN"
    """Somebody is at it."""
    UNDER_WAY = "UNDER_WAY"
    """It was accepted: the node is on its way, or is going."""
    DONE = "DONE"
    FAILED = "FAILED"
    WITHDRAWN = "WITHDRAWN"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """A kind of node on offer."""

    name: str
    model: str
    devices: int
    nodes_max: int
    """At a time, with those on their way."""
    pool: str = ""
    memory_bytes: int = 0
    """Of one device; 0: the catalogue's figure for its model."""
    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_milli: int | None = None
    host_memory_bytes: int | None = None
    nodes_min: int = 0
    """Kept, however empty."""
    lead_s: int = 0
    """From an order to a node that takes leases."""
    price_micro: int = 0
    """Of one node for an hour, in millionths of the currency."""
    machines: tuple[str, ...] = ()
    """Names of machines there are, asleep or awake. None: nodes are made, and named after the shape."""
    linked: bool = False
    """Its devices reach one another over NVLink."""


@dataclass(frozen=True, slots=True)
class PoolBound:
    """What holds for all shapes of one pool together."""

    pool: str
    nodes_max: int | None = None
    headroom_permille: int | None = None


@dataclass(frozen=True, slots=True)
class SupplyPolicy:
    """By which rules nodes are ordered and given back. None: as it is by default."""

    act: bool = False
    """False: a dry run. Advice is given, and nothing is ordered."""
    target_wait_s: int | None = None
    """300: a request that nothing else serves within this gets a node."""
    means: tuple[str, ...] = ()
    """What is waited for instead, in this order: wait, reclaim, shrink, move. Empty: all of them."""
    means_s: int | None = None
    """120: a means is believed in for so long beyond the target."""
    idle_s: int | None = None
    """600: a node is given back that was empty for so long..."""
    keep_s: int | None = None
    """1800: ...has been here for so long..."""
    rest_s: int | None = None
    """86400: ...and was not given back within this time already."""
    headroom_permille: int | None = None
    """100: so much of what is left stays free when nodes are given back."""
    spare_permille: int | None = None
    """The headroom, at most 100: a node is ordered ahead when less than this is free."""
    late_s: int | None = None
    """900: a node that is so much later than expected is ordered elsewhere."""
    orders_max: int | None = None
    """32: open at a time."""
    hour_micro: int | None = None
    """0: no bound on what all nodes may cost in an hour."""
    month_micro: int | None = None
    """0: no bound on what they may cost in a calendar month (UTC)."""
    no_means: bool = False
    """Order at once, whatever else would serve."""
    ready_permille: int | None = None
    """930: what will be asked for before a node could come finds room with this probability; 0: not looked at."""


@dataclass(frozen=True, slots=True)
class SupplySpec:
    """All that is declared about ordering nodes."""

    shapes: tuple[NodeShape, ...] = ()
    policy: SupplyPolicy = field(default_factory=SupplyPolicy)
    pools: tuple[PoolBound, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """An order of one node, to come or to go."""

    number: int
    order_id: str
    """The same however often it is carried out."""
    way: OrderWay
    state: OrderState
    shape: str
    pool: str
    node_name: str
    node_id: str
    why: str
    ordered_ms: int
    due_ms: int
    changed_ms: int
    price_micro: int
    taken_by: str
    taken_until_ms: int
    tries: int
    again_ms: int
    """Not to be taken before."""
    reference: str
    """What whoever carries it out calls it."""
    problem: str
    early: bool
    """A forecast wants it; nobody waits for it yet."""


@dataclass(frozen=True, slots=True)
class ShapedNode:
    """A node of a shape that is there."""

    node_id: str
    name: str
    shape: str
    pool: str
    leases: int
    """Above 0: whoever manages machines must leave it alone."""
    here_ms: int
    kept: str
    """Why it stays although it is empty."""


@dataclass(frozen=True, slots=True)
class NodeAdvice:
    """One act that the pool would order now."""

    way: OrderWay
    shape: str
    node_name: str
    why: str
    early: bool


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request that something else serves before a node would."""

    lease_id: str
    means: str
    story: str


@dataclass(frozen=True, slots=True)
class UnservedRequests:
    """Requests that wait too long, and for which no node can be ordered."""

    lease_id: str
    """The first of them."""
    requests: int
    why: str


@dataclass(frozen=True, slots=True)
class RestingShape:
    """A shape that could not be had, and is not ordered again yet."""

    shape: str
    until_ms: int
    failures: int
    problem: str


@dataclass(frozen=True, slots=True)
class Supply:
    """What is on offer and ordered, and what the pool would do now."""

    spec: SupplySpec
    version: int
    """0: nothing was ever on offer."""
    orders: tuple[NodeOrder, ...]
    """Open ones."""
    closed: tuple[NodeOrder, ...]
    """The latest first."""
    nodes: tuple[ShapedNode, ...]
    advice: tuple[NodeAdvice, ...]
    served: tuple[ServedRequest, ...]
    unserved: tuple[UnservedRequests, ...]
    resting: tuple[RestingShape, ...]
    hour_micro: int
    """What nodes cost that are there or on their way."""
    month_micro: int
    """What was paid since the calendar month (UTC) began."""
    oldest_wait_ms: int
    """Of those that only another node would serve."""


@dataclass(frozen=True, slots=True)
class ExpectedUse:
    """What is expected to be used at a time, with an interval, in thousandths of devices."""

    at_ms: int
    milli: int
    low_milli: int
    high_milli: int


@dataclass(frozen=True, slots=True)
class ExpectedSeries:
    """One series of a forecast."""

    pool: str
    model: str
    fit: bool
    """Whether its intervals have covered what came, lately."""
    points: tuple[ExpectedUse, ...]
