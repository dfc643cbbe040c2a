"""Orders about sick cards, what became of them, and what to do about one that the agent's end interrupted. Pure."""

from __future__ import annotations

import msgspec

from aliquot.common.signs import Remedy

MAX_CARDS = 1_024
RESULTS_KEPT = 64
TRIES_MAX = 2
"""Starts of one order: a command that ends the agent each time is not tried for ever."""


class CareOrder(msgspec.Struct, frozen=True):
    """What the coordinator wants done to cards that nothing holds."""

    number: int
    """Rises."""
    action: Remedy
    uuids: tuple[str, ...]
    reason: str = ""


class CareResult(msgspec.Struct, frozen=True):
    """What became of it."""

    problem: str = ""
    """Empty: it was done."""
    story: str = ""
    """What was seen, for people."""
    copy_mb_s: dict[str, int] = {}
    """By card or instance that was tested: how fast it copies within itself, where that was measured."""


class Begun(msgspec.Struct, frozen=True):
    """An order that is being carried out: on disk before anything is done."""

    order: CareOrder
    boot_id: str
    tries: int = 1


class CareRecord(msgspec.Struct, frozen=True):
    """What is on disk."""

    results: dict[int, CareResult] = {}
    begun: Begun | None = None


def interrupted(begun: Begun, boot_id: str) -> CareResult | Begun:
    """The agent ended while it carried out an order: its result, where that is known, or the order once more."""
    if begun.order.action is Remedy.REBOOT:
        if boot_id != begun.boot_id:
            return CareResult(story="the machine has restarted")
        if begun.tries >= TRIES_MAX:
            return CareResult(problem="the agent was started again, the machine was not")
    elif begun.tries >= TRIES_MAX:
        return CareResult(problem=f"the agent ended {begun.tries} times while it did this")
    return Begun(begun.order, boot_id, begun.tries + 1)


def latest(results: dict[int, CareResult]) -> dict[int, CareResult]:
    """Those that are kept."""
    return {number: results[number] for number in sorted(results)[-RESULTS_KEPT:]}
