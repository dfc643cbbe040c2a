"""Heals fragmentation by itself where the settings allow it: a few moves an hour, never in quiet hours.

It does what `aliquot defragment` does, in the pool's own name: who looks at the record of changes sees each round that
moved something, and a moved lease says why. Two bounds hold together. `moves_an_hour` are earned as time passes and are
not saved up beyond an hour. And each move is taken from the budget of moves that requests earn (`core.moving.budget`),
so that in a mean lifetime less than a hundredth of the leases is moved, whatever moves them. A `dry-run` only logs what
it would move.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.books.access import Actor
from aliquot.coordinator.core.books.tenancy.in_force import is_open
from aliquot.coordinator.core.commands import Command, Defragment, OnBehalf
from aliquot.coordinator.core.commands.outcomes import DefragmentView

log = logging.getLogger(__name__)

PRINCIPAL = "pool:defragment"
HOUR_MS = 3_600_000
STEPS_MAX = 64
"""Steps of a round at most; the next round goes on where it stopped."""


class Auto(enum.StrEnum):
    """Whether leases are moved by themselves."""

    OFF = "off"
    DRY_RUN = "dry-run"
    ON = "on"


class Rules(NamedTuple):
    """When, and how much."""

    auto: Auto
    every_ms: int
    moves_an_hour: int
    quiet_hours: str = ""
    """When nothing is moved, as windows of quotas are written; empty: there are no such hours."""

    def quiet(self, now_ms: int) -> bool:
        """Whether these are quiet hours; they are where a zone is not known any more."""
        try:
            return bool(self.quiet_hours) and is_open(self.quiet_hours, now_ms)
        except ValueError:
            return True


class Submit(Protocol):
    """The writer's `submit`."""

    def __call__(self, command: Command[DefragmentView]) -> Awaitable[DefragmentView]: ...  # noqa: D102


class Defragmenter:
    """Rounds of defragmentation, for as long as a coordinator leads."""

    def __init__(self, submit: Submit, clock: Clock, rules: Callable[[], Rules]) -> None:
        """`rules` are asked for before each round."""
        self._submit = submit
        self._clock = clock
        self._rules = rules
        self._earned_milli = 0
        """Moves that may be made, in thousandths."""
        self._looked_ms = clock.now_ms()
        self._cursor = 0

    async def run(self) -> None:
        """Until cancelled. What can't be done now is done in the next round."""
        while True:
            await asyncio.sleep(self._rules().every_ms / 1000)
            with contextlib.suppress(AliquotError):
                await self.round()

    async def round(self) -> int:
        """One round; returns how many leases were moved, or would have been. Raises what submitting raises."""
        rules, now_ms = self._rules(), self._clock.now_ms()
        earned = (now_ms - self._looked_ms) * rules.moves_an_hour * 1000 // HOUR_MS
        self._earned_milli = min(self._earned_milli + earned, rules.moves_an_hour * 1000)
        self._looked_ms = now_ms
        if rules.auto is Auto.OFF or rules.quiet(now_ms):
            return 0
        moved = 0
        for _ in range(STEPS_MAX):
            left = self._earned_milli // 1000
            if not left:
                break
            carry_out = rules.auto is Auto.ON
            command = Defragment(carry_out, left, self._cursor, by_itself=True)
            done = await self._submit(OnBehalf(Actor(PRINCIPAL, action="Defragment"), "", command))
            for move in done.moves:
                verb = "is" if carry_out else "would be"
                log.info("lease %s of %s %s moved: defragmentation", move.lease_id, move.tenant, verb)
            moved += len(done.moves)
            self._earned_milli -= 1000 * len(done.moves)
            self._cursor = done.cursor
            if not self._cursor:
                break
        return moved
