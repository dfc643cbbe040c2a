"""What a waiting request is told about nodes that were ordered."""

from __future__ import annotations

from aliquot.coordinator.core.capacity.nodes import on_their_way
from aliquot.coordinator.core.capacity.offers import members_per_node
from aliquot.coordinator.core.leases.records import Lease
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.types import Demand

SHOWN_MAX = 3


def notes(state: Planning, lease: Lease, demand: Demand, now_ms: int) -> list[str]:
    """Nodes on their way that would take a member of it; or that one could be ordered."""
    spec = state.capacity.spec
    if spec is None:
        return []
    suits = [shape.name for shape in spec.shapes if members_per_node(shape, demand)]
    coming = [order for order in on_their_way(state) if order.shape in suits]
    found = [
        f"a node is on its way: {order.node_name} ({order.order_id}), expected "
        + (f"in {(order.due_ms - now_ms) // 1000} s" if order.due_ms > now_ms else "any moment")
        for order in sorted(coming, key=lambda order: order.due_ms)[:SHOWN_MAX]
    ]
    if len(coming) > SHOWN_MAX:
        found.append(f"{len(coming) - SHOWN_MAX} more nodes are on their way")
    if suits and not coming:
        if not spec.policy.act:
            return [f"a node of shape {suits[0]} would serve it; ordering is off (`aliquot capacity act on`)"]
        wait_s = max(0, lease.created_ms + spec.policy.target_wait_ms - now_ms) // 1000
        which = " or ".join(suits[:SHOWN_MAX])
        return [f"a node of shape {which} is ordered if nothing else serves it within {wait_s} s"]
    return found
