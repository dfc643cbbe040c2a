"""What becomes of orders: nodes that came, went, are late, or are not needed any more before anybody has begun."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.access import SYSTEM, Acted
from aliquot.coordinator.core.books.enrolment import NodeDisenrolled
from aliquot.coordinator.core.books.nodes import Node, NodeCordoned, NodeRemoved
from aliquot.coordinator.core.books.supply import (
    NodeCame,
    NodeOrdered,
    NodeWent,
    Order,
    OrderChanged,
    OrderState,
    Slot,
    SupplySpec,
    Way,
)
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.supply import is_up, nodes_here, open_orders
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import NodeSpec, NodeState

TRIES_MAX = 5
AGAIN_MS = 15_000
"""After the first failure of an order; twice as long after each more..."""
AGAIN_MS_MAX = 300_000
REST_MS = 120_000
"""A shape that could not be had rests so long; twice as long after each failure in a row, up to an hour."""
REST_MS_MAX = 3_600_000
NODES_AT_ONCE_MAX = 64


def acted(now_ms: int, action: str, subject: str) -> Acted:
    """The record of what the pool does by itself."""
    return Acted(now_ms, SYSTEM, "", "", action, subject)


def closed_by(order: Order) -> str:
    """The reason on a node that is closed because an order takes it away."""
    return f"{order.order_id} takes it away"


def node_of(known: Known, order: Order) -> Node | None:
    """The node that an order is about, as far as it is known."""
    return known.nodes.get(order.node_id) or known.nodes.get(known.node_ids_by_name.get(order.node_name, ""))


def follow(known: Known, now_ms: int) -> list[Fact]:
    """Facts about orders that have gone on by themselves. A bounded number at a time."""
    spec = known.supply.spec or SupplySpec()
    facts = _seen(known, spec, now_ms)
    for order in (*open_orders(known, Way.ADD), *open_orders(known, Way.REMOVE)):
        facts += (_coming if order.way is Way.ADD else _going)(known, spec, order, now_ms)
        if any(isinstance(fact, NodeOrdered) for fact in facts):
            break  # the next one gets its number when this one is in the books
    return facts


def _seen(known: Known, spec: SupplySpec, now_ms: int) -> list[Fact]:
    """Nodes of shapes that have come or gone since the last look."""
    facts: list[Fact] = []
    here = {each.name: each for each in nodes_here(known, spec)}
    slots = known.supply.slots
    for name, each in here.items():
        if is_up(each.node) and not slots.get(name, Slot("")).here_ms:
            facts.append(NodeCame(now_ms, name, each.shape.name, each.shape.price_micro))
    facts += [NodeWent(now_ms, name) for name, slot in slots.items() if slot.here_ms and name not in here]
    return facts[:NODES_AT_ONCE_MAX]


def _coming(known: Known, spec: SupplySpec, order: Order, now_ms: int) -> list[Fact]:
    node = node_of(known, order)
    if node is not None and (node.state is NodeState.READY or (is_up(node) and node.spec.agentless)):
        came = replace(order, state=OrderState.DONE, changed_ms=now_ms, node_id=node.spec.node_id)
        return [OrderChanged(now_ms, came)]
    if now_ms < order.due_ms + spec.policy.late_ms:
        return []
    if order.state is OrderState.ORDERED:
        problem = "nobody carries orders out"
        return [*over(known, order, OrderState.FAILED, problem, now_ms)]
    minutes = (now_ms - order.ordered_ms) // 60_000
    return [*over(known, order, OrderState.FAILED, f"it has not come in {minutes} minutes", now_ms)]


def _going(known: Known, spec: SupplySpec, order: Order, now_ms: int) -> list[Fact]:
    node = node_of(known, order)
    if order.state is OrderState.UNDER_WAY and (node is None or not is_up(node) or node.spec.agentless):
        return _gone(known, spec, order, node, now_ms)
    if node is None or order.state is not OrderState.ORDERED:
        if now_ms >= order.due_ms + spec.policy.late_ms:
            return over(known, order, OrderState.FAILED, "it is still here", now_ms)
        return []
    if known.slice_ids_by_node[node.spec.node_id]:
        return over(known, order, OrderState.WITHDRAWN, "something holds it after all", now_ms)
    return []


def _gone(known: Known, spec: SupplySpec, order: Order, node: Node | None, now_ms: int) -> list[Fact]:
    """It went. A machine stays known, and open for when it is woken; what was made for an order is forgotten."""
    if node is None:
        return [OrderChanged(now_ms, replace(order, state=OrderState.DONE, changed_ms=now_ms))]
    node_id = node.spec.node_id
    shape = spec.shape(order.shape)
    done = OrderChanged(now_ms, replace(order, state=OrderState.DONE, changed_ms=now_ms))
    if shape is not None and shape.machines:
        return [done, *_opened(node, order, now_ms)]
    if known.slice_ids_by_node[node_id]:
        return []  # something that only its return, or an administrator, can settle
    facts: list[Fact] = [done, NodeRemoved(now_ms, node_id)]
    if node_id in known.enrolment.enrolled:
        facts.append(NodeDisenrolled(now_ms, node_id))
    return facts


def over(known: Known, order: Order, how: OrderState, problem: str, now_ms: int) -> list[Fact]:
    """An order ends otherwise than it was meant to. What may come all the same is cancelled by an order of its own; a
    node that stays is open again.
    """
    changed = replace(order, state=how, problem=problem, changed_ms=now_ms)
    rest_ms = 0
    if how is OrderState.FAILED and order.way is Way.ADD:
        old = known.supply.rests.get(order.shape)
        rest_ms = min(REST_MS << min(old.failures if old is not None else 0, 8), REST_MS_MAX)
    action = "WithdrawOrder" if how is OrderState.WITHDRAWN else "GiveUpOrder"
    facts: list[Fact] = [
        acted(now_ms, action, f"{order.order_id}: {problem}"),
        OrderChanged(now_ms, changed, rest_ms),
    ]
    node = node_of(known, order)
    if order.way is Way.REMOVE:
        return [*facts, *(_opened(node, order, now_ms) if node is not None else ())]
    leaving = any(other.node_name == order.node_name for other in open_orders(known, Way.REMOVE))
    if not leaving and (order.state is not OrderState.ORDERED or order.reference or order.tries):
        cancel = Order(
            number=known.supply.next_order,
            way=Way.REMOVE,
            shape=order.shape,
            pool=order.pool,
            node_name=order.node_name,
            why=f"{order.order_id} is not wanted any more: {problem}",
            ordered_ms=now_ms,
            due_ms=now_ms + 60_000,
            price_micro=order.price_micro,
            changed_ms=now_ms,
            reference=order.reference,
            closed=True,
        )
        facts.append(NodeOrdered(now_ms, cancel))
        if node is not None and node.grantable:
            facts.append(NodeCordoned(now_ms, node.spec.node_id, cordoned=True, reason=closed_by(cancel)))
    return facts


def _opened(node: Node, order: Order, now_ms: int) -> list[Fact]:
    by_hand = node.draining or (node.state is NodeState.READY and node.reason not in ("", closed_by(order)))
    if node.cordoned and order.closed and not by_hand:
        return [NodeCordoned(now_ms, node.spec.node_id, cordoned=False)]
    return []


def closes(known: Known, spec: NodeSpec, now_ms: int) -> list[Fact]:
    """A node that registers while an order takes it away is closed at once: it must not be given anything."""
    for order in open_orders(known, Way.REMOVE):
        if spec.name == order.node_name and order.node_id in ("", spec.node_id):
            old = known.nodes.get(spec.node_id)
            if old is None or not old.cordoned:
                return [NodeCordoned(now_ms, spec.node_id, cordoned=True, reason=closed_by(order))]
    return []
