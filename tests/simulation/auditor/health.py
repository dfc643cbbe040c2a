"""Incidents about cards: where one is, nothing is placed; what it may do next; how much is repaired at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books
    from tests.simulation.auditor.records import Story

QUARANTINED, DRAINED, REPAIRING, VERIFYING, PROBATION, SERVICE = 1, 2, 3, 4, 5, 6
LINKS = {"links", "fabric"}
OUT = {QUARANTINED, DRAINED, REPAIRING, VERIFYING, SERVICE}
CARD_SCOPE = 1
REBOOT = 2
FOLLOWS = {
    QUARANTINED: {QUARANTINED, DRAINED, VERIFYING, PROBATION},
    DRAINED: {DRAINED, QUARANTINED, REPAIRING, VERIFYING, PROBATION, SERVICE},
    REPAIRING: {VERIFYING, PROBATION, DRAINED, SERVICE},
    VERIFYING: {PROBATION, DRAINED, SERVICE},
    PROBATION: set[int](),
    SERVICE: {VERIFYING, PROBATION},
}
AT_ONCE_PERMILLE = 100
SOFT_PERMILLE = 200
DEGRADED = 2
OPENED_BY_HAND = {"by-hand", "check"}
STUCK_S, STUCK_FLAPPING_S = 1_800.0, 25_200.0
"""Whatever is well for so long has returned, or waits for a person; a card that flaps must rest for up to six hours."""


@dataclass(slots=True)
class Case:
    """One open incident."""

    number: int
    cause: str
    node_id: str
    units: tuple[str, ...]
    kind: tuple[str, str]
    by: str
    state: int = QUARANTINED
    well: bool = False
    """Whether all that it covers is said to be well..."""
    well_s: float = -1.0
    """...and since when that was seen."""
    again: bool = False
    """Something that it covers was in an incident before."""
    suspects: tuple[str, ...] = ()
    """The units that signs were about; empty: all."""


class Health:
    """Facts about incidents. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.cases: dict[int, Case] = {}
        self.now_s: Callable[[], float] = lambda: 0.0
        """The simulated time."""
        self._last = 0
        self._ever: set[str] = set()
        """Units that were in an incident."""
        self._parents: dict[str, str] = {}
        """Instance -> card, of every instance there ever was."""
        self._islands: dict[str, tuple[str, int]] = {}
        """Device -> its node, and its island there."""
        self._said: dict[str, tuple[bool, str]] = {}
        """Device -> whether its agent says that it is well, and what is wrong with it."""
        books.handle(
            {"ill": self._opened, "ill>": self._moved, "ill-": self._closed, "told": self._told, "device": self._device}
        )

    def described(self, spec: dict[str, Any]) -> None:
        """A node has these devices now."""
        for device in spec["devices"]:
            self._parents[device["uuid"]] = device.get("parent_uuid", "")
            self._islands[device["uuid"]] = spec["node_id"], device.get("nvlink_island", -1)
        machine = self._books.machines.get(spec["node_id"])
        gone = set(machine.devices) - {device["uuid"] for device in spec["devices"]} if machine is not None else set()
        for uuid in gone:
            self._said.pop(uuid, None)  # what was said of it is forgotten with it

    def look(self, uuid: str) -> None:
        """Bring what may be placed on a device up to date."""
        card = self._books.cards.get(uuid)
        if card is not None:
            well, cause = self._said.get(uuid, (True, ""))
            out = any(case.state in OUT for case in self.cases.values() if self._covers(case, uuid))
            card.healthy = not out and (well or bool(cause))

    def card_of(self, uuid: str) -> str:
        """The physical GPU of a device."""
        return self._parents.get(uuid, "") or uuid

    def restricted(self, uuid: str) -> str:
        """Why not everything is placed on a device; empty: nothing stands against it."""
        for case in self.cases.values():
            watched = case.suspects or case.units
            if case.state == PROBATION and (uuid in watched or self._parents.get(uuid, "") in watched):
                return "on probation"
        node_id, island = self._islands[uuid]
        if island < 0:
            return ""
        for case in self.cases.values():
            near = case.cause in LINKS and case.state in OUT and case.node_id == node_id
            if near and any(self._islands[other][1] == island for other in self._devices(case)):
                return "in an island with a bad link"
        return ""

    def keep_off(self, story: Story, uuid: str) -> str:
        """What is wrong with placing a lease there, which is not for everybody."""
        why = self.restricted(uuid)
        single = story.members * story.count == 1 and not story.elastic
        if why and not (single and (story.preemptible or why != "on probation")):
            return f"{story.lease_id} is placed on {uuid}, which is {why}"
        return ""

    def forget(self, node_id: str) -> None:
        """A node is gone."""
        for number in [number for number, case in self.cases.items() if case.node_id == node_id]:
            del self.cases[number]

    def stuck(self, now_s: float) -> str:
        """A card that has long been well and that nobody has to return by hand, and that has not returned."""
        for case in self.cases.values():
            waits = case.well and case.state not in (SERVICE, PROBATION) and not case.by
            if waits and now_s - case.well_s > (STUCK_FLAPPING_S if case.again else STUCK_S):
                return f"incident {case.number} ({case.cause}) goes on, and its cards have been well for long"
        return ""

    def _covers(self, case: Case, uuid: str) -> bool:
        return uuid in case.units or self._parents.get(uuid, "") in case.units

    def _devices(self, case: Case) -> list[str]:
        machine = self._books.machines.get(case.node_id)
        return [uuid for uuid in machine.devices if self._covers(case, uuid)] if machine is not None else []

    def _device(self, fact: list[Any]) -> str:
        uuid, foreign, healthy = fact[2:5]
        self._books.cards[uuid].foreign = foreign
        self._said[uuid] = (healthy, fact[6])
        self.look(uuid)
        for case in self.cases.values():
            if self._covers(case, uuid):
                self._note_well(case)
        return ""

    def _note_well(self, case: Case) -> None:
        devices = self._devices(case)
        well = bool(devices) and all(self._said.get(uuid, (True, ""))[0] for uuid in devices)
        if well and not case.well:
            case.well_s = self.now_s()
        case.well = well

    def _opened(self, fact: list[Any]) -> str:
        number, cause, severity, scope, _remedy, node_id, units, _reason, pool, model, absorbs, by = fact[2:14]
        suspect = fact[14] if len(fact) > 14 else ""
        if number <= self._last:
            return f"incident {number} after {self._last}"
        self._last = number
        joined = [self.cases.pop(absorbed) for absorbed in absorbs]
        taken = [unit for unit in units if any(unit in case.units for case in self.cases.values())]
        case = self.cases[number] = Case(number, cause, node_id, tuple(units), (pool, model), by)
        if suspect:
            case.suspects = (suspect, *(unit for other in joined for unit in (other.suspects or other.units)))
        case.again = bool(absorbs) or not self._ever.isdisjoint(units)
        self._ever |= set(units)
        self._after(case)
        if taken:
            return f"{taken[0]} is in two incidents"
        if scope <= CARD_SCOPE and len(units) != 1:
            return f"incident {number} takes {len(units)} cards out, and is about one"
        return self._too_soft(case) if severity == DEGRADED and not by and cause not in OPENED_BY_HAND else ""

    def _moved(self, fact: list[Any]) -> str:
        number, state, _text, _due, order, _action, _remedy, _well, units, absorbs = fact[2:12]
        case = self.cases[number]
        if state not in FOLLOWS[case.state]:
            return f"incident {number} goes from {case.state} to {state}"
        for absorbed in absorbs:
            self.cases.pop(absorbed)
        if units:
            case.suspects = case.suspects or case.units
            case.units = tuple(units)
        held = [uuid for uuid in self._devices(case) if self._books.cards[uuid].pieces]
        if state in (DRAINED, REPAIRING, VERIFYING) and held:
            return f"incident {number} is in state {state} while {held[0]} holds slices"
        if (state in (REPAIRING, VERIFYING)) != bool(order):
            return f"incident {number} is in state {state} with order {order}"
        case.state = state
        self._after(case)
        return self._too_many(case) if state == REPAIRING else self._too_early(case) if state == PROBATION else ""

    def _closed(self, fact: list[Any]) -> str:
        case = self.cases.pop(fact[2])
        by_hand = bool(fact[4])
        if case.by and not by_hand and case.state not in (VERIFYING, PROBATION):
            return f"incident {case.number} was opened by hand, and is closed by nobody"
        if case.state in (DRAINED, REPAIRING, SERVICE) and not by_hand and not case.well:
            return f"incident {case.number} is closed in state {case.state}"
        wrong = self._too_early(case) if case.state != PROBATION else ""
        self._after(case)
        return wrong

    def _after(self, case: Case) -> None:
        for uuid in self._books.cards:
            self.look(uuid)
        self._note_well(case)

    def _too_early(self, case: Case) -> str:
        bad = [uuid for uuid in self._devices(case) if not self._said.get(uuid, (True, ""))[0]]
        if bad:
            return f"{bad[0]} returns while its agent says that it is not well"
        return ""

    def _too_many(self, case: Case) -> str:
        """A tenth of what there is of a model in a pool, and one in any case."""
        busy = sum(
            len(other.units)
            for other in self.cases.values()
            if other is not case and other.kind == case.kind and other.state in (REPAIRING, VERIFYING)
        )
        cards = self._cards_like(case)
        most = max(1, cards * AT_ONCE_PERMILLE // 1000)
        if busy and busy + len(case.units) > most:
            return f"{busy + len(case.units)} of {cards} {case.kind[1]} are repaired at once"
        return ""

    def _too_soft(self, case: Case) -> str:
        """By soft evidence no more than a fifth of a model in a pool is out, and one in any case."""
        out = sum(len(other.units) for other in self.cases.values() if other.kind == case.kind and other.state in OUT)
        cards = self._cards_like(case)
        if out > max(1, cards * SOFT_PERMILLE // 1000):
            return f"incident {case.number} takes out {out} of {cards} {case.kind[1]}, on soft evidence"
        return ""

    def _cards_like(self, case: Case) -> int:
        """How many cards there are of its model in its pool."""
        pool, model = case.kind
        return len(
            {
                self.card_of(uuid)
                for machine in self._books.machines.values()
                if machine.pool == pool
                for uuid in machine.devices
                if self._books.models[uuid] == model
            }
        )

    def _told(self, fact: list[Any]) -> str:
        story = self._books.stories.get(fact[2])
        if story is None:
            return f"{fact[2]} is told of a fault, and there is no such lease"
        self._books.changed.add(fact[2])
        return ""

    def empties(self, uuid: str) -> bool:
        """Whether leases may be told to leave a device."""
        return any(self._covers(case, uuid) for case in self.cases.values())
