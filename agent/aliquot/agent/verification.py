"""Checks that the limits of slices are still in force, and that the processes that serve them answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from aliquot.agent.core.model import Holder, Intent, Reservation
from aliquot.agent.hosting.base import Host
from aliquot.agent.limits_setter import Check, LimitSetter
from aliquot.agent.state import NodeState

log = logging.getLogger(__name__)


class Verifier(msgspec.Struct, eq=False):
    """One task for each device and each serving process: none waits for another.

    `limit_lost` is called for slices whose limit is not in force any more, `not_served` for members whose process does
    not answer, with the reason.
    """

    state: NodeState
    limits: LimitSetter
    host: Host
    limit_lost: Callable[[Reservation], None]
    not_served: Callable[[Holder, str], None]
    _tasks: dict[str, asyncio.Task[None]] = {}
    _silent: set[Holder] = set()
    """Whose process did not answer when it was last asked."""

    def begin(self) -> None:
        """Start every check that is not still running."""
        running = [record for record in self.state.book.holding() if record.intent is Intent.RUN]
        checks, lost = self.limits.checks(
            [record for record in running if self.state.actual_of(record.slice_id).limit_set]
        )
        self._lost(lost)
        for lane, of_lane in checks.items():
            self._start(f"limits of {lane}", partial(self._read_back, lane, of_lane))
        for holder in sorted({each.spec.holder for each in running if self.state.actual_of(each.slice_id).endpoint}):
            self._start(f"process of {holder}", partial(self._check_host, holder))

    def cancel(self) -> None:
        """End all checks."""
        for task in self._tasks.values():
            task.cancel()

    def _start(self, what: str, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def ask() -> None:
            try:
                await look()
            except Exception:  # a defect here must not end the verification of everything else
                log.exception("%s can't be verified", what)
            finally:
                del self._tasks[what]

        if what not in self._tasks:
            self._tasks[what] = asyncio.create_task(ask(), name=f"verify {what}")

    async def _read_back(self, lane: str, checks: Sequence[Check]) -> None:
        self._lost(await self.limits.broken(lane, checks))

    def _lost(self, lost: Iterable[Reservation]) -> None:
        for record in lost:
            current = self.state.book.get(record.slice_id)
            if current is None or current.intent is not Intent.RUN:
                continue
            if self.state.actual_of(record.slice_id).limit_set:
                self.limit_lost(current)

    async def _check_host(self, holder: Holder) -> None:
        problem = await self.host.health(holder)
        if not problem:
            self._silent.discard(holder)
        elif holder not in self._silent:
            self._silent.add(holder)  # one that is busy for a moment is asked once more
        else:
            self._silent.discard(holder)
            self.not_served(holder, problem)
