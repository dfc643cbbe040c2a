"""Tells people, by events on pods, why one waits; the same about the same pod at most once in a while."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aliquot.client import Explanation
from aliquot.common.latest import Latest
from aliquot.kube.api.errors import KubeError, level_of
from aliquot.kube.api.objects import Events, Regarding

log = logging.getLogger(__name__)

_EVERY_S: Final = 60.0
_KEPT: Final = 10_000
_WAITING_MAX: Final = 1_000


def why_not(explanation: Explanation) -> str:
    """What a request lacks and what would help: the summary mostly says both, and nothing is to be said twice."""
    changes = [missing.smallest_change for missing in explanation.missing if missing.smallest_change]
    said = not changes or any(change in explanation.summary for change in changes)
    return explanation.summary if said else f"{explanation.summary}; smallest change: {changes[0]}"


class Teller:
    """Events are written beside the work, by one task: `run`. What is too much is dropped, and counted."""

    def __init__(self, events: Events) -> None:
        self.dropped = 0
        self._events = events
        self._told: Latest[tuple[str, str], tuple[str, float]] = Latest(_KEPT)
        self._queue: asyncio.Queue[tuple[Regarding, str, str, bool]] = asyncio.Queue(_WAITING_MAX)

    def tell(self, about: Regarding, reason: str, message: str, *, warning: bool = False) -> None:
        """Have an event written, unless just this was told lately."""
        now = asyncio.get_running_loop().time()
        key = (about.uid, reason)
        told, at = self._told.get(key, ("", 0.0))
        if told == message and now - at < _EVERY_S:
            return
        self._told[key] = (message, now)
        try:
            self._queue.put_nowait((about, reason, message, warning))
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            about, reason, message, warning = await self._queue.get()
            try:
                await self._events.tell(about, reason, message, warning=warning)
            except KubeError as error:
                self.dropped += 1
                log.log(level_of(error), "an event was not written: %s", error.message)
