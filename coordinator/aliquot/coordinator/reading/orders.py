"""Orders of nodes as metrics, from the books: what is on its way, how long it takes, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aliquot.common.gauges import Metric, counter, gauge
from aliquot.coordinator.core.books.supply import OVER, OrderState, SupplyBooks, Way

SHAPES_MAX = 64
"""As many as may be on offer."""
_OPEN = [state for state in OrderState if state not in OVER]


def order_metrics(books: SupplyBooks) -> Iterator[Metric]:
    """Read on the scraper's thread: what may change meanwhile is copied first."""
    spec = books.spec
    shapes = {shape.name: shape for shape in spec.shapes[:SHAPES_MAX]} if spec is not None else {}
    orders = [order for order in list(books.orders.values()) if order.shape in shapes]
    by_state = Counter((order.shape, order.way, order.state) for order in orders)
    here = Counter(slot.shape for slot in list(books.slots.values()) if slot.here_ms)
    open_now = gauge("aliquot_node_orders_open", "Orders of nodes", labels=["shape", "way", "state"])
    there = gauge("aliquot_shape_nodes", "Nodes of a shape", labels=["shape", "phase"])
    most = gauge("aliquot_shape_nodes_limit", "Nodes of a shape that there may be", labels=["shape"])
    oldest = gauge(
        "aliquot_node_order_oldest_seconds",
        "Since 1970: when the oldest open order was given; 0: none is open",
        labels=["shape", "way"],
    )
    due = gauge(
        "aliquot_node_order_due_seconds",
        "Since 1970: when the open order should have been done that is due first; 0: none is open",
        labels=["shape", "way"],
    )
    rests = gauge(
        "aliquot_shape_resting_until_seconds",
        "Since 1970: until when a shape is not ordered, because it could not be had; 0: it may be ordered",
        labels=["shape"],
    )
    resting = dict(books.rests)
    for name, shape in shapes.items():
        for way in Way:
            mine = [order for order in orders if order.shape == name and order.way is way]
            for state in _OPEN:
                open_now.add_metric([name, way.name, state.name], by_state[name, way, state])
            oldest.add_metric([name, way.name], min((order.ordered_ms for order in mine), default=0) / 1000)
            due.add_metric([name, way.name], min((order.due_ms for order in mine), default=0) / 1000)
        coming = sum(by_state[name, Way.ADD, state] for state in _OPEN)
        leaving = sum(by_state[name, Way.REMOVE, state] for state in _OPEN)
        for phase, count in (("here", here[name]), ("coming", coming), ("leaving", leaving)):
            there.add_metric([name, phase], count)
        most.add_metric([name], shape.nodes_max)
        rest = resting.get(name)
        rests.add_metric([name], rest.until_ms / 1000 if rest is not None else 0)
    yield from (open_now, oldest, due, there, most, rests)
    over = counter("aliquot_node_orders", "Orders of nodes that are over", labels=["shape", "way", "state"])
    for (name, way, state), count in sorted(dict(books.over).items())[: SHAPES_MAX * len(Way) * len(OVER)]:
        over.add_metric([name, way.name, state.name], count)
    yield over
    kept = gauge(
        "aliquot_headroom_wanted_ratio",
        "Part of a pool that is to stay free when nodes are given back, and part that is kept free by ordering ahead",
        labels=["pool", "kind"],
    )
    if spec is not None:
        for pool in sorted({shape.node.pool for shape in shapes.values()}):
            kept.add_metric([pool, "headroom"], spec.headroom_permille(pool) / 1000)
            kept.add_metric([pool, "spare"], spec.policy.spare_permille / 1000)
    yield kept
