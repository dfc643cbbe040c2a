"""Nodes that are ordered: never more than there may be, none twice, none that anybody counts on taken away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import DECLARED, LOST, READY

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

ADD, REMOVE = 1, 2
ORDERED, TAKEN, UNDER_WAY, DONE, FAILED, WITHDRAWN = 1, 2, 3, 4, 5, 6
FOLLOWS = {
    ORDERED: {TAKEN, DONE, FAILED, WITHDRAWN},
    TAKEN: {TAKEN, ORDERED, UNDER_WAY, DONE, FAILED, WITHDRAWN},
    UNDER_WAY: {DONE, FAILED, WITHDRAWN},
}
SHAPE_LABEL = "supply.aliquot.dev/shape"


class Supply:
    """Facts about orders."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.shapes: dict[str, dict[str, Any]] = {}
        self.policy: dict[str, Any] = {}
        self.orders: dict[int, dict[str, Any]] = {}
        self.done = 0
        self._shape_of: dict[str, str] = {}
        """Of every node that was ever ordered, by its name."""
        self._removed_ms: dict[str, int] = {}
        self._last_number = 0
        books.handle({"shapes": self._declared, "order+": self._ordered, "order>": self._changed})
        books.handle({"node+": lambda fact: "", "node-": lambda fact: ""})

    def _declared(self, fact: list[Any]) -> str:
        self.shapes = {shape["name"]: shape for shape in fact[2].get("shapes", ())}
        self.policy = fact[2].get("policy", {})
        return ""

    def _ordered(self, fact: list[Any]) -> str:
        order = fact[2]
        number, name, way = order["number"], order["node_name"], order["way"]
        if number <= self._last_number:
            return f"order {number} after {self._last_number}"
        self._last_number = number
        if any(other["node_name"] == name and other["way"] == way for other in self.orders.values()):
            return f"node {name} is ordered twice"
        self.orders[number] = order
        self._shape_of[name] = order["shape"]
        return self._added(order) if way == ADD else self._taken_away(order, fact[1])

    def _added(self, order: dict[str, Any]) -> str:
        if not self.policy.get("act"):
            return f"node {order['node_name']} is ordered, although nothing may be"
        shape = self.shapes.get(order["shape"])
        if shape is None:
            return f"a node of shape {order['shape']} is ordered, which nobody offers"
        there = {name for name, up in self._names().items() if up and self._of(name) == order["shape"]}
        there |= {
            other["node_name"] for other in self.orders.values() if other["way"] == ADD and self._same(other, order)
        }
        if len(there) > shape["nodes_max"]:
            return f"{len(there)} nodes of shape {order['shape']} are there or ordered; {shape['nodes_max']} may be"
        if len(self.orders) > self.policy.get("orders_max", 32):
            return f"{len(self.orders)} orders are open"
        return ""

    def _taken_away(self, order: dict[str, Any], at_ms: int) -> str:
        name, node_id = order["node_name"], order.get("node_id", "")
        last_ms, self._removed_ms[name] = self._removed_ms.get(name), at_ms
        if not node_id:
            return ""  # it never came, and is not to come any more
        machine = self._books.machines[node_id]
        if machine.pieces:
            return f"node {name} is to go, and holds {len(machine.pieces)} slices"
        if machine.state != LOST and last_ms is not None and at_ms - last_ms < self.policy.get("rest_ms", 86_400_000):
            return f"node {name} is to go again after {(at_ms - last_ms) // 1000} s"
        return self._guarantees(node_id) if machine.state == READY else ""

    def _guarantees(self, node_id: str) -> str:
        promised = self._books.quotas.promised()[0]
        usable = without = 0
        for machine in self._books.machines.values():
            if not machine.cordoned and (machine.state == READY or (machine.agentless and machine.state == DECLARED)):
                share = sum(self._books.compute[uuid] for uuid in machine.devices)
                usable += share
                without += share if machine.node_id != node_id else 0
        if without < min(promised, usable):
            return f"a guarantee counts on node {node_id}, which is to go"
        return ""

    def _changed(self, fact: list[Any]) -> str:
        order = fact[2]
        old = self.orders.get(order["number"])
        state = order.get("state", ORDERED)
        if old is None:
            return f"order {order['number']} is over"
        was = old.get("state", ORDERED)
        if state not in FOLLOWS[was]:
            return f"order {order['number']} goes from {was} to {state}"
        handed_on = was == state == TAKEN and old.get("taken_by") != order.get("taken_by")
        if handed_on and fact[1] < old.get("taken_until_ms", 0):
            return f"order {order['number']} is given to {order['taken_by']} while {old['taken_by']} has it"
        if state in (DONE, FAILED, WITHDRAWN):
            self.done += state == DONE
            del self.orders[order["number"]]
        else:
            self.orders[order["number"]] = order
        return ""

    def placed(self, node_id: str) -> str:
        """A slice is placed on a node."""
        for order in self.orders.values():
            if order["way"] == REMOVE and order.get("node_id") == node_id:
                return f"something is placed on {node_id}, which is to go"
        return ""

    def _names(self) -> dict[str, bool]:
        """Every node by its name, and whether it is up."""
        return {machine.name: self._up(machine) for machine in self._books.machines.values()}

    def _up(self, machine: Any) -> bool:
        return bool(machine.agentless if machine.state == DECLARED else machine.state != LOST)

    def _of(self, name: str) -> str:
        named = next((shape["name"] for shape in self.shapes.values() if name in shape.get("machines", ())), "")
        known: str = self._shape_of.get(name, named)
        return known

    def _same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        return bool(one["shape"] == other["shape"])
