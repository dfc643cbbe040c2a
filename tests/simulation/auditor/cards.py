"""How cards are cut anew: one order at a time, of parts that hold nothing, and nothing is placed on what goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books


class Cards:
    """Facts about cuts. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._open: dict[str, tuple[str, int]] = {}
        """Node -> (card, number) of the order that is not answered yet."""
        self._numbers: dict[str, int] = {}
        """Card -> the last order's."""
        self._going: dict[str, str] = {}
        """Device -> the node whose order makes it go."""
        self._ordered_parts: dict[str, tuple[tuple[str, int], ...]] = {}
        self.parts: dict[str, tuple[tuple[str, int], ...]] = {}
        """Card -> (profile, start) of each of its parts, as it was cut last. After a failure, nobody knows."""
        books.handle({"cut": self._ordered, "cut!": self._settled})

    def _ordered(self, fact: list[Any]) -> str:
        node_id, cut = fact[2], fact[3]
        if node_id in self._open:
            return f"{node_id} gets a second order to cut, with {self._open[node_id]} under way"
        if cut["number"] <= self._numbers.get(cut["card_uuid"], 0):
            return f"order {cut['number']} of {cut['card_uuid']} after {self._numbers[cut['card_uuid']]}"
        self._numbers[cut["card_uuid"]] = cut["number"]
        self._open[node_id] = (cut["card_uuid"], cut["number"])
        parts = [(part["profile"], part["start"]) for part in cut["parts"]]
        self._ordered_parts[cut["card_uuid"]] = tuple(sorted(parts))
        for uuid in cut["lost_uuids"]:
            card = self._books.cards.get(uuid)
            if card is not None and card.pieces:
                return f"{cut['card_uuid']} is to be cut although {uuid} holds slices"
            self._going[uuid] = node_id
        return ""

    def _settled(self, fact: list[Any]) -> str:
        node_id, card_uuid, number, problem = fact[2:6]
        if self._open.get(node_id) != (card_uuid, number):
            return f"order {number} of {card_uuid} is answered, but {self._open.get(node_id)} is under way"
        self.forget(node_id)
        self.parts.pop(card_uuid, None)
        if not problem:
            self.parts[card_uuid] = self._ordered_parts[card_uuid]
        return ""

    def forget(self, node_id: str) -> None:
        """Nothing is under way on a node any more."""
        self._open.pop(node_id, None)
        for uuid in [uuid for uuid, where in self._going.items() if where == node_id]:
            del self._going[uuid]

    def goes(self, uuid: str) -> bool:
        """Whether a device is about to be cut away."""
        return uuid in self._going
