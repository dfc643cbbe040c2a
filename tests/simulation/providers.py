"""Whoever wakes machines and puts them to sleep for a simulated pool: as it should, twice, late, never, or badly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aliquot.v1 import supply_pb2
from tests.simulation.sim.loop import US_PER_S
from tests.simulation.sim.nodes import SimNode
from tests.simulation.sim.world import World

LEAD_S = 5
FOR_EVER_US = 10**15
Ask = Callable[[str, Any], bytes | None]


class Provider:
    """Takes orders when it is looked after, and does what its `kind` says."""

    def __init__(self, world: World, machines: Sequence[SimNode], ask: Ask) -> None:
        self._world = world
        self._machines = {node.node_name: node for node in machines}
        self._ask = ask
        self.kind = "honest"
        self.carried_out = 0

    def look(self, taker: str = "provider") -> None:
        """Carry out what there is."""
        data = self._ask("TakeOrders", supply_pb2.TakeOrdersRequest(taker=taker, for_s=20))
        if data is None:
            return
        for order in supply_pb2.TakeOrdersResponse.FromString(data).orders:
            self._carry_out(order, taker)

    def _carry_out(self, order: supply_pb2.NodeOrder, taker: str) -> None:
        if self.kind == "hangs":
            return
        for _ in range(2 if self.kind == "twice" else 1):
            report = supply_pb2.ReportOrderRequest(number=order.number, taker=taker, accepted=self.kind != "fails")
            if self.kind == "fails":
                report.problem = "no stock"
            self._ask("ReportOrder", report)
            if self.kind not in ("fails", "never"):
                self._do(order)
        self.carried_out += 1

    def _do(self, order: supply_pb2.NodeOrder) -> None:
        loop, node = self._world.loop, self._machines[order.node_name]
        if order.way == supply_pb2.ORDER_WAY_ADD:
            lead_us = LEAD_S * US_PER_S * (12 if self.kind == "late" else 1)
            loop.call_in(self._world.process, lead_us, node.boot)
        else:
            node.cut_power(FOR_EVER_US)
