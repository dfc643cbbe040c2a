"""Mistakes about sick cards: forgiven too early, never returned, too many of them, and the breaker's."""

from __future__ import annotations

from aliquot.coordinator.core.books.health.cover import cards_of
from aliquot.coordinator.core.books.health.records import Incident
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.deciding import health as caring
from aliquot.coordinator.core.evolve import health as placing
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules import health as signs
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Admits
from tests.simulation.mutant import Put, mutant

_ONE_HOT = """
pool 1 of 2
start
wait 40
ail node-0000 hot
wait 60
"""
_ON_PROBATION = """
pool 1 of 1
repairs
start
wait 40
ail node-0000 reset
wait 120
allocate job 0.5 ttl=600
wait 5
"""
_BAD_LINK = """
pool 1 of 4
links
start
wait 40
ail node-0000 links
wait 60
allocate job 2 ttl=600
wait 5
"""
_ALL_ASK = """
pool 3 of 1
repairs
start
wait 40
ail node-0000 reset
ail node-0001 reset
ail node-0002 reset
wait 120
"""


@mutant("forgives too early", "an incident is over although its agent says that the card is not well", scene=_ONE_HOT)
def _forgives(put: Put) -> None:
    put(caring, "_is_well", lambda state, node, incident: True)


@mutant(
    "never returns",
    "a card whose signs are good again stays out of service",
    scene=_ONE_HOT + "heal node-0000\nwait 2400\n",
)
def _never(put: Put) -> None:
    put(caring, "_returned", lambda state, node, incident, now_ms: [])


@mutant(
    "quarantines the node",
    "a fault of one card takes all cards of its node out of service",
    scene=_ONE_HOT.replace("hot", "reset"),  # of so few cards the breaker lets soft evidence take one only
)
def _whole_node(put: Put) -> None:
    put(signs, "units_of", lambda spec, device, sign: tuple(cards_of(spec)))


@mutant(
    "breaker blocks recoveries",
    "while too many cards are out, none returns",
    scene="""
pool 3 of 1
start
wait 40
ail node-0000 reset
ail node-0002 reset
wait 60
heal node-0000
heal node-0002
wait 2400
""",
)
def _blocked(put: Put) -> None:
    original = caring._returned

    def returned(state: Known, node: Node, incident: Incident, now_ms: int) -> list[Fact]:
        if state.health.out.get((incident.pool, incident.model), 0) > 1:
            return []
        return original(state, node, incident, now_ms)

    put(caring, "_returned", returned)


@mutant("probation for everybody", "what was repaired lately takes whatever is asked for", scene=_ON_PROBATION)
def _probation(put: Put) -> None:
    put(placing, "admits_of", lambda state, uuid: Admits.ALL)


@mutant(
    "gangs over bad links", "several devices of an island go to one lease while a link there is bad", scene=_BAD_LINK
)
def _over_links(put: Put) -> None:
    put(placing, "LINKS", frozenset())


@mutant(
    "soft evidence always believed",
    "every card that is said to be hot is taken out of service, however many are out",
    scene=_ALL_ASK.replace("reset", "hot"),
)
def _believed(put: Put) -> None:
    put(signs, "believes_soft", lambda state, pool, model, units: True)


@mutant("no breaker", "every card that asks for it is repaired at once", scene=_ALL_ASK)
def _no_breaker(put: Put) -> None:
    put(caring, "may_repair", lambda state, incident, now_ms: "")
