"""Asks the processes that serve leases what they count, while they do, so that the coordinator hears of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from aliquot.agent.core.figures import ServedReport, rates
from aliquot.agent.core.model import Holder
from aliquot.agent.hosting.base import Host
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.state import NodeState

log = logging.getLogger(__name__)

EVERY_S = 1.0
REPORT_S = 5.0
"""How often what has changed is reported; what has not is not."""


class Measuring:
    """A task for each member that is served. Use from one event loop."""

    def __init__(self, state: NodeState, host: Host, mailbox: Mailbox, monotonic_s: Callable[[], float]) -> None:
        self._state = state
        self._host = host
        self._mailbox = mailbox
        self._monotonic_s = monotonic_s
        self._tasks: dict[Holder, asyncio.Task[None]] = {}

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
        told_s = self._monotonic_s() - REPORT_S
        try:
            while self._state.held(holder):
                figures = await self._host.measure(holder)
                now_s = self._monotonic_s()
                running = self._state.running(holder)
                # The last words of one that ends are told at once: soon nothing of it counts.
                due = not running or now_s - told_s >= REPORT_S
                if figures is not None and due and (told is None or figures != told or self._mailbox.rated(holder)):
                    first = min((each.slice_id for each in self._state.book.of_holder(holder)), default="")
                    rose = rates(told, figures, now_s - told_s) if told is not None else {}
                    self._mailbox.serve(holder, ServedReport(first, figures, rose))
                    told, told_s = figures, now_s
                await asyncio.sleep(EVERY_S)
        except Exception:  # a defect here must not end what is measured
            log.exception("%s can't be measured", holder)
        finally:
            self._tasks.pop(holder, None)
            self._mailbox.serve(holder, None)
