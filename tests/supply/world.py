"""A pool with shapes on offer, and a provider that a test steers."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.supply import NodeShape, Order, OrderState, SupplyPolicy, SupplySpec, Way
from aliquot.coordinator.core.deciding.supply.queries import GetSupply, SupplyReport
from tests.core.harness import Books, node

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
LEAD_MS = 2 * MINUTE_MS


def shape(name: str = "big", devices: int = 4, *, nodes_max: int = 4, **more: Any) -> NodeShape:
    """A shape of nodes with equal devices."""
    of_node = {key: more.pop(key) for key in ("model", "pool", "labels") if key in more}
    return NodeShape(name, node(name, devices, **of_node), nodes_max, **{"lead_ms": LEAD_MS, **more})


def policy(**more: Any) -> SupplyPolicy:
    """Acting, with short times."""
    wanted = {"act": True, "target_wait_ms": MINUTE_MS, "idle_ms": 10 * MINUTE_MS, "keep_ms": 20 * MINUTE_MS}
    return SupplyPolicy(**{**wanted, "headroom_permille": 0, **more})


class Site(Books):
    """A pool, and machines without agents that a provider brings and takes away."""

    def declare(self, *shapes: NodeShape, pools: tuple[Any, ...] = (), **more: Any) -> None:
        """Put shapes on offer."""
        self.do(c.DeclareSupply(SupplySpec(shapes, policy(**more), pools)))

    def looked(self) -> SupplyReport:
        """What there is, and what would be done."""
        return self.ask(GetSupply())

    @property
    def orders(self) -> list[Order]:
        """Those that are open."""
        return [order for _, order in sorted(self.state.supply.orders.items())]

    def open(self, way: Way) -> list[Order]:
        """Those that are open, of one kind."""
        return [order for order in self.orders if order.way is way]

    def pass_by(self, milliseconds: int, step_ms: int = 5_000) -> None:
        """Let time pass in steps."""
        while milliseconds > 0:
            self.advance(min(step_ms, milliseconds))
            milliseconds -= step_ms

    def take(self, taker: str = "runner") -> tuple[Order, ...]:
        """Somebody who carries orders out asks for some."""
        return self.do(c.TakeOrders(taker)).outcome

    def accept(self, order: Order, taker: str = "runner", **more: Any) -> Order:
        """...and says that one is under way."""
        return self.do(c.ReportOrder(order.number, taker, accepted=True, **more)).outcome

    def arrive(self, order: Order, name: str = "") -> None:
        """The node that was ordered comes."""
        assert self.state.supply.spec is not None
        of = self.state.supply.spec.shape(order.shape)
        assert of is not None
        name = name or order.node_name
        devices = tuple(replace(d, uuid=f"GPU-{name}-{i}") for i, d in enumerate(of.node.devices))
        self.do(c.DeclareNode(replace(of.node, node_id=f"n-{name}", name=name, devices=devices, agentless=True)))
        self.settle()

    def serve(self) -> None:
        """Carry out every order at once."""
        for order in self.take():
            self.accept(order)
            if order.way is Way.ADD:
                self.arrive(order)
        self.pass_by(15_000)

    def last(self, state: OrderState) -> list[Order]:
        """Orders that are over, in this state."""
        return [order for order in self.state.supply.closed if order.state is state]
