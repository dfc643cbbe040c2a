"""Nodes that come and go with demand."""

from __future__ import annotations

from aliquot.coordinator.core.books.supply import Order, SupplySpec
from aliquot.coordinator.core.commands.base import Command


class DeclareSupply(Command[int], frozen=True):
    """These shapes of nodes are on offer, by these rules, and no others. The answer is the new version."""

    spec: SupplySpec
    version: int = -1
    """That it replaces; -1: whatever is there now."""


class TakeOrders(Command[tuple[Order, ...]], frozen=True):
    """Give orders to somebody who carries them out, for a while."""

    taker: str
    orders_max: int = 8
    for_ms: int = 300_000


class ReportOrder(Command[Order], frozen=True):
    """What became of an order, says who took it."""

    number: int
    taker: str
    accepted: bool
    """Its node is on its way, or is going. False: it failed, and is tried again."""
    reference: str = ""
    node_name: str = ""
    """Under which it will come; empty: the one that was ordered."""
    due_ms: int = 0
    """When it will come; 0: as was expected."""
    problem: str = ""
    final: bool = False
    """Trying again is of no use."""


class WithdrawOrder(Command[Order], frozen=True):
    """An administrator wants no more of an order."""

    number: int
    reason: str = ""
