"""What is on offer and ordered, and what the pool would do now. Costs as much as a look: some 10 ms at worst."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from aliquot.coordinator.core.books.leases.records import lease_id_of
from aliquot.coordinator.core.books.supply import Order, Rest, SupplySpec
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.deciding.supply.ahead import Advice
from aliquot.coordinator.core.deciding.supply.giving_back import Going, Kept, shrink
from aliquot.coordinator.core.deciding.supply.growth import Unserved, grow
from aliquot.coordinator.core.deciding.supply.waiting import Served
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.supply import Here
from aliquot.coordinator.core.values.fact import by_kind


@dataclass(frozen=True, slots=True)
class NodeHere:
    """A node of a shape, with what is held there."""

    here: Here
    leases: int
    """Above 0: whoever manages machines must leave it alone."""
    here_ms: int


@dataclass(frozen=True, slots=True)
class SupplyReport:
    """The answer to `GetSupply`."""

    spec: SupplySpec | None
    version: int
    open: tuple[Order, ...]
    closed: tuple[Order, ...]
    """The latest first."""
    nodes: tuple[NodeHere, ...] = ()
    add: tuple[Advice, ...] = ()
    remove: tuple[Going, ...] = ()
    kept: tuple[Kept, ...] = ()
    served: tuple[Served, ...] = ()
    unserved: tuple[Unserved, ...] = ()
    rests: tuple[tuple[str, Rest], ...] = ()
    hour_micro: int = 0
    month_micro: int = 0
    oldest_wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class GetSupply(Query[SupplyReport]):
    """What should come and go, and what is on its way?"""

    remembered: ClassVar[bool] = False
    advice: bool = True
    """Also what the pool would do now."""


def report(known: Known, query: GetSupply, now_ms: int) -> SupplyReport:
    """See `SupplyReport`. Changes nothing."""
    books = known.supply
    orders = tuple(order for _, order in sorted(books.orders.items()))
    closed = tuple(reversed(tuple(books.closed)))
    if books.spec is None or not query.advice:
        return SupplyReport(books.spec, books.version, orders, closed)
    growth = grow(known, books.spec, now_ms)
    wanted = bool(growth.orders or growth.oldest_wait_ms)
    shrinkage = shrink(known, books.spec, now_ms)
    nodes = []
    for here in growth.here:
        held = known.slice_ids_by_node[here.node.spec.node_id]
        slot = books.slots.get(here.name)
        leases = len(set(map(lease_id_of, held)))
        nodes.append(NodeHere(here, leases, slot.here_ms if slot is not None else 0))
    return SupplyReport(
        spec=books.spec,
        version=books.version,
        open=orders,
        closed=closed,
        nodes=tuple(nodes),
        add=growth.orders,
        remove=() if wanted else shrinkage.going,
        kept=shrinkage.kept,
        served=growth.served,
        unserved=growth.unserved,
        rests=tuple((name, rest) for name, rest in sorted(books.rests.items()) if rest.until_ms > now_ms),
        hour_micro=growth.costs.hour_micro,
        month_micro=growth.costs.month_micro,
        oldest_wait_ms=growth.oldest_wait_ms,
    )


DECIDES = Decides(queries=by_kind(report))
