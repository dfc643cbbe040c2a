"""Asks the processes that serve leases what they count, while they do, so that the coordinator hears of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import msgspec

from aliquot.agent.core.figures import ServedReport, rates
from aliquot.agent.core.model import Holder
from aliquot.agent.hosting.base import Host
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.state import NodeState

log = logging.getLogger(__name__)

EVERY_S = 1.0
REPORT_S = 5.0
"""How often what has changed is reported; what has not is not."""


class Measuring(msgspec.Struct, eq=False):
    """A task for each member that is served. Use from one event loop."""

    state: NodeState
    host: Host
    mailbox: Mailbox
    monotonic_s: Callable[[], float]
    _tasks: dict[Holder, asyncio.Task[None]] = {}

    def begin(self, holder: Holder) -> None:
        """A member is served, again or for the first time."""
        if holder not in self._tasks:
            self._tasks[holder] = asyncio.create_task(self._measure(holder), name=f"measure {holder}")

    def cancel(self) -> None:
        """Ask nobody any more."""
        for task in self._tasks.values():
            task.cancel()

    async def _measure(self, holder: Holder) -> None:
        told: Mapping[str, int] | None = None
        told_s = self.monotonic_s() - REPORT_S
        try:
            while self.state.held(holder):
                figures = await self.host.measure(holder)
                now_s = self.monotonic_s()
                running = self.state.running(holder)
                # The last words of one that ends are told at once: soon nothing of it counts.
                due = not running or now_s - told_s >= REPORT_S
                if figures is not None and due and (told is None or figures != told or self.mailbox.rated(holder)):
                    first = min((each.slice_id for each in self.state.book.of_holder(holder)), default="")
                    rose = rates(told, figures, now_s - told_s) if told is not None else {}
                    self.mailbox.serve(holder, ServedReport(first, figures, rose))
                    told, told_s = figures, now_s
                await asyncio.sleep(EVERY_S)
        except Exception:  # a defect here must not end what is measured
            log.exception("%s can't be measured", holder)
        finally:
            self._tasks.pop(holder, None)
            self.mailbox.serve(holder, None)
