"""How cards are cut anew: for one request at a time on a node, of parts that hold nothing, where nothing is placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books


class Cards:
    """Facts about cuts. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._open: dict[str, dict[str, int]] = {}
        """Node -> card -> number of the order that is not answered yet."""
        self._whose: dict[str, tuple[str, int]] = {}
        """Node -> the lease that its last orders are for, and when they were given."""
        self._numbers: dict[str, int] = {}
        """Card -> the last order's."""
        self._going: dict[str, tuple[str, str]] = {}
        """Device -> the node and the card whose order makes it go."""
        self._ordered_parts: dict[str, tuple[tuple[str, int], ...]] = {}
        self.parts: dict[str, tuple[tuple[str, int], ...]] = {}
        """Card -> (profile, start) of each of its parts, as it was cut last. After a failure, nobody knows."""
        books.handle({"cut": self._ordered, "cut!": self._settled})

    def _ordered(self, fact: list[Any]) -> str:
        node_id, cut = fact[2], fact[3]
        under_way, whose = self._open.setdefault(node_id, {}), (cut["lease_id"], cut["ordered_ms"])
        if under_way and (whose != self._whose[node_id] or cut["card_uuid"] in under_way):
            return f"{node_id} gets another order to cut, with {under_way} for {self._whose[node_id][0]} under way"
        if cut["number"] <= self._numbers.get(cut["card_uuid"], 0):
            return f"order {cut['number']} of {cut['card_uuid']} after {self._numbers[cut['card_uuid']]}"
        self._numbers[cut["card_uuid"]] = cut["number"]
        under_way[cut["card_uuid"]], self._whose[node_id] = cut["number"], whose
        parts = [(part["profile"], part["start"]) for part in cut["parts"]]
        self._ordered_parts[cut["card_uuid"]] = tuple(sorted(parts))
        for uuid in cut["lost_uuids"]:
            card = self._books.cards.get(uuid)
            if card is not None and card.pieces:
                return f"{cut['card_uuid']} is to be cut although {uuid} holds slices"
            self._going[uuid] = (node_id, cut["card_uuid"])
        return ""

    def _settled(self, fact: list[Any]) -> str:
        node_id, card_uuid, number, problem = fact[2:6]
        under_way = self._open.get(node_id, {})
        if under_way.pop(card_uuid, None) != number:
            return f"order {number} of {card_uuid} is answered, which is not under way"
        for uuid in [uuid for uuid, (_, card) in self._going.items() if card == card_uuid]:
            del self._going[uuid]
        self.parts.pop(card_uuid, None)
        if not problem:
            self.parts[card_uuid] = self._ordered_parts[card_uuid]
        return ""

    def forget(self, node_id: str) -> None:
        """Nothing is under way on a node any more."""
        self._open.pop(node_id, None)
        for uuid in [uuid for uuid, (where, _) in self._going.items() if where == node_id]:
            del self._going[uuid]

    def goes(self, uuid: str) -> bool:
        """Whether a device is about to be cut away."""
        return uuid in self._going
