"""What deciding may not do. Nobody runs this: mypy refuses each line, and an ignore that is not needed is an error.

What books change of themselves by their methods is not refused here: the harness compares all of the State before and
after every decision (`frozen`).
"""

from __future__ import annotations

from aliquot.coordinator.core.books.ledger.ledger import Ledger
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.queueing import WaitingLines


def books(state: Known) -> None:
    """Records, and what holds them."""
    state.seq = 1  # type: ignore[misc]
    del state.leases["l-1"]  # type: ignore[attr-defined]
    state.leases = {}  # type: ignore[misc]
    state.ended.append("l-1")  # type: ignore[attr-defined]
    state.tenancy = Tenancy()  # type: ignore[misc]
    state.ledger = Ledger()  # type: ignore[misc]
    state.leases["l-1"].arrival = 1  # type: ignore[misc]


def indexes(state: Known) -> None:
    """Who waits, what is used, what is reserved where."""
    state.ready_holds["l-1"] = None  # type: ignore[index]
    state.lines = WaitingLines(state.tenancy)  # type: ignore[misc]
    state.meters.clear()  # type: ignore[attr-defined]
    state.inventory = Inventory()  # type: ignore[misc]
