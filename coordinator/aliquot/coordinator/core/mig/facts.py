"""What has happened to orders to cut cards in MIG mode. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.types import Cut


class CutOrdered(Fact, frozen=True, tag="cut"):
    """A card of a node is to be cut anew, for somebody who waits. Its agent may refuse."""

    node_id: str
    cut: Cut


class CutSettled(Fact, frozen=True, tag="cut!"):
    """The card was cut as ordered; or, with a problem, it was not."""

    node_id: str
    card_uuid: str
    number: int
    problem: str = ""
