"""Opens the driver again when all of it has failed at once.

When every card of a node stops answering in the same moment, it is hardly the cards: access to the devices was taken
from this agent (`systemctl daemon-reload` does that to containers), or the driver was replaced underneath it. Programs
run on meanwhile, so nobody is ended: the node takes no new leases, says why, and the library is closed and opened
again until it answers.
"""

from __future__ import annotations

import logging

from aliquot.agent.care import Care
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.poller import Poller
from aliquot.agent.wakeup import Wakeup

log = logging.getLogger(__name__)


class Reopener:
    """See the module's docstring. Use from one event loop."""

    def __init__(self, poller: Poller, care: Care, every_s: float) -> None:
        self._poller = poller
        self._care = care
        self._every_s = every_s
        self._pause = Wakeup()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._poller.blinded.wait()
            self._poller.blinded.clear()
            if not self._poller.why_blind():
                continue
            try:
                await self._care.let_go()
                await self._poller.discover()
            except DeviceError as error:
                self._poller.reopened(well=False)
                log.error("the driver could not be opened again: %s", error.message)  # noqa: TRY400
            else:
                self._poller.reopened(well=True)
            await self._pause.wait(self._every_s)
