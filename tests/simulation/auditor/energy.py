"""What leases are said to have drawn: never more than the cards themselves, all leases and all tenants together."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.auditor.books import Books


class Energy:
    """Facts that carry energy. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.drawn_mj: Callable[[str], int] = lambda node_id: 0
        """What all cards of a node (empty: of all nodes) have drawn since the simulation began, whatever their counters
        say now.
        """
        self.of_nodes: Counter[str] = Counter()
        """Of slices that are over."""
        self.of_tenants: Counter[str] = Counter()
        books.handle({"observed": self._observed})

    def over(self, slice_id: str, energy_mj: int | None) -> str:
        """A slice is over."""
        node_id = self._books.granted_ever[slice_id][0]
        if energy_mj is None:
            return ""
        self.of_nodes[node_id] += energy_mj
        if energy_mj < 0 or self.of_nodes[node_id] > self.drawn_mj(node_id):
            there = self.drawn_mj(node_id)
            return f"{slice_id} has drawn {energy_mj} mJ, all there {self.of_nodes[node_id]}, their cards {there}"
        return ""

    def _observed(self, fact: list[Any]) -> str:
        tenant, more_mj = fact[6], int(fact[9])
        self.of_tenants[tenant] += more_mj
        if more_mj < 0 or self.of_tenants.total() > self.drawn_mj(""):
            return f"{tenant} has drawn {more_mj} mJ more, all {self.of_tenants.total()} of {self.drawn_mj('')}"
        return ""
