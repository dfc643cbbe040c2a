"""What has happened to orders of nodes; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.capacity.records import CapacitySpec, Order
from aliquot.coordinator.core.fact import Fact


class CapacityDeclared(Fact, frozen=True, tag="shapes"):
    """These shapes are on offer from now on, by these rules, and no others."""

    spec: CapacitySpec
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
