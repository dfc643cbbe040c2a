"""How orders of nodes change the State."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core.books.supply import (
    DAY_MS,
    NodeCame,
    NodeOrdered,
    NodeWent,
    Order,
    OrderChanged,
    OrderState,
    Rest,
    Slot,
    Spell,
    SupplyDeclared,
    SupplySpec,
    Way,
)
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind

SLOTS_KEPT = 4_096
"""Names of nodes that are away; beyond that, those are forgotten that have been away for two days."""


def _declared(state: State, fact: SupplyDeclared) -> None:
    books = state.supply
    books.changes += 1
    books.spec, books.version = fact.spec, fact.version
    named = {shape.name for shape in fact.spec.shapes}
    books.rests = {name: rest for name, rest in books.rests.items() if name in named}
    state.offer_again()


def _ordered(state: State, fact: NodeOrdered) -> None:
    books, order = state.supply, fact.order
    books.changes += 1
    books.orders[order.number] = order
    books.next_order = max(books.next_order, order.number + 1)
    slot = books.slots.get(order.node_name, Slot(order.shape))
    if order.way is Way.ADD:
        slot = replace(slot, shape=order.shape, added_ms=fact.at_ms)
    else:
        slot = replace(slot, removed_ms=fact.at_ms)
    books.slots[order.node_name] = slot


def _changed(state: State, fact: OrderChanged) -> None:
    books, order = state.supply, fact.order
    books.changes += 1
    old = books.orders[order.number]
    if order.node_name != old.node_name:  # whoever carries it out has named the node
        slot = books.slots.pop(old.node_name)
        books.slots[order.node_name] = replace(slot, here_ms=books.slots.get(order.node_name, slot).here_ms)
    if fact.rest_ms:
        failures = books.rests[order.shape].failures if order.shape in books.rests else 0
        books.rests[order.shape] = Rest(fact.at_ms + fact.rest_ms, failures + 1, order.problem)
    if order.open:
        books.orders[order.number] = order
        return
    del books.orders[order.number]
    books.closed.append(order)
    books.over[order.shape, order.way, order.state] += 1
    if order.way is Way.ADD and order.state is OrderState.DONE:
        books.rests.pop(order.shape, None)


def _came(state: State, fact: NodeCame) -> None:
    state.supply.changes += 1
    slots = state.supply.slots
    slot = slots.get(fact.name, Slot(fact.shape))
    slots[fact.name] = replace(slot, shape=fact.shape, here_ms=fact.at_ms, price_micro=fact.price_micro)


def _went(state: State, fact: NodeWent) -> None:
    books = state.supply
    books.changes += 1
    slot = books.slots[fact.name]
    if slot.price_micro:
        books.spells.append(Spell(slot.here_ms, fact.at_ms, slot.price_micro))
    books.slots[fact.name] = replace(slot, here_ms=0, price_micro=0)
    if len(books.slots) > SLOTS_KEPT:
        open_names = {order.node_name for order in books.orders.values()}
        for name, each in list(books.slots.items()):
            last_ms = max(each.added_ms, each.removed_ms)
            if not each.here_ms and name not in open_names and last_ms + 2 * DAY_MS < fact.at_ms:
                del books.slots[name]


SUBJECT = Subject(
    name="supply",
    apply=by_kind(_declared, _ordered, _changed, _came, _went),
    saves=(
        saving.value("supply_spec", SupplySpec | None, "supply.spec", None),
        saving.value("supply_version", int, "supply.version", 0),
        saving.value("next_order", int, "supply.next_order", 1),
        saving.records("orders", Order, "supply.orders", key="number"),
        saving.rows("orders_closed", Order, "supply.closed"),
        saving.pairs("slots", Slot, "supply.slots"),
        saving.pairs("rests", Rest, "supply.rests"),
        saving.rows("spells", Spell, "supply.spells"),
    ),
)
