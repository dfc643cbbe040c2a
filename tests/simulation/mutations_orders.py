"""Mistakes about nodes that are ordered: too many, twice, taken from under a lease or a guarantee, back and forth."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core import decide, tick
from aliquot.coordinator.core.books.supply import NodeShape, OrderChanged, OrderState, SupplySpec
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.deciding.supply import giving_back, growth, ordering
from aliquot.coordinator.core.rules import supply as bounds
from aliquot.coordinator.core.values.timers import Due
from tests.simulation.mutant import Put, decide_by, mutant

_BEGIN = """
pool 3 of 1
asleep node-0001
asleep node-0002
start
wait 2
"""
_BUSY = "allocate one 1 ttl=3600\nallocate two 1 until=granted ttl=3600\nallocate three 1 until=granted ttl=3600\n"
_WAKE = _BEGIN + "offer\nprovider honest\n" + _BUSY + "wait 60\n"
_AGAIN = "allocate a 1 ttl=3600\nallocate b 1 until=granted ttl=3600\nallocate c 1 until=granted ttl=3600\n"
_IDLE = "release one\nrelease two\nrelease three\n"


@mutant(
    "orders above the limit", "a shape's bound on nodes is not looked at", scene=_WAKE.replace("offer", "offer max=1")
)
def _limit(put: Put) -> None:
    original = bounds.Bounds.against

    def against(self: bounds.Bounds, shape: NodeShape) -> str:
        return original(self, replace(shape, nodes_max=99))

    put(bounds.Bounds, "against", against)


@mutant("forgets what is on its way", "nodes that were ordered do not count as there", scene=_WAKE)
def _coming(put: Put) -> None:
    put(growth, "on_their_way", lambda state: [])
    put(bounds, "free_name", lambda state, shape, taken: shape.machines[0])


@mutant(
    "acts in a dry run",
    "nodes are ordered although only advice is asked for",
    scene=_WAKE.replace("offer", "offer at=0"),
)
def _dry(put: Put) -> None:
    original = tick._LOOK[Due.SUPPLY]

    def look(state: Any, subject: str, now_ms: int) -> list[Any]:
        spec = state.supply.spec
        return original(state, subject, now_ms) or (ordering._act(state, spec, now_ms) if spec is not None else [])

    put(tick, "_LOOK", {**tick._LOOK, Due.SUPPLY: look})


@mutant("takes a node from under a lease", "a node that holds something counts as empty", scene=_WAKE + "wait 240\n")
def _empty(put: Put) -> None:
    put(giving_back, "is_empty", lambda state, here: True)


@mutant(
    "takes a node from under a guarantee",
    "guarantees are not looked at when a node is given back",
    scene=_WAKE + "promise dev 3\n" + _IDLE + "wait 240\n",
)
def _guarantee(put: Put) -> None:
    put(giving_back, "guarantee_scale", lambda state: 0)


@mutant(
    "goes back and forth",
    "a node is given back again and again in a day",
    scene=_WAKE.replace("offer", "offer rest=3600")
    + _IDLE
    + "wait 120\n"
    + _AGAIN
    + "wait 60\nrelease a\nrelease b\nrelease c\nwait 120\nwait 60\n",
)
def _back_and_forth(put: Put) -> None:
    original = giving_back.shrink

    def shrink(state: Any, spec: SupplySpec, now_ms: int) -> giving_back.Shrinkage:
        return original(state, replace(spec, policy=replace(spec.policy, rest_ms=0)), now_ms)

    put(ordering, "shrink", shrink)


@mutant(
    "leaves it open",
    "a node that is to go may still be given to somebody",
    scene=_WAKE + _IDLE + "provider hangs\nwait 150\n" + _AGAIN + "wait 5\n",
)
def _open(put: Put) -> None:
    original = ordering._act

    def act(state: Any, spec: SupplySpec, now_ms: int) -> list[Any]:
        return [fact for fact in original(state, spec, now_ms) if type(fact).__name__ != "NodeCordoned"]

    put(ordering, "_act", act)


@mutant(
    "gives an order to two",
    "an order that somebody carries out is given to the next who asks",
    scene=_BEGIN + "offer\nprovider hangs\n" + _BUSY + "wait 20\n",
)
def _two(put: Put) -> None:
    original = decide._DECIDE[c.TakeOrders]

    def take(state: Any, command: Any, now_ms: int) -> Decision[Any]:
        decision = original(state, replace(command, taker=f"{command.taker}-{now_ms}"), now_ms)
        late = [
            replace(order, taken_by=f"{command.taker}-{now_ms}", state=OrderState.TAKEN)
            for order in state.supply.orders.values()
            if order.state is OrderState.TAKEN
        ]
        return Decision((*decision.facts, *(OrderChanged(now_ms, order) for order in late)), decision.outcome)

    decide_by(put, "TakeOrders", take)
