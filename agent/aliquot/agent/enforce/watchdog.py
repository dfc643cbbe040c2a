"""Tier `watchdog`: the agent measures what a lease's processes hold, and ends the one that makes it too much.

There is nothing to set on the device. The tier is in force exactly while the agent can do both halves of it:
see the memory of single processes on this device, and signal them. The decisions are `core.enforcement`.
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import Limited, NothingSet
from aliquot.common.tiers import Tier


class WatchdogEnforcer(NothingSet):
    """See `base.Enforcer`.

    `blind(device_uuid)` answers why the memory of single processes can't be seen there, `powerless()` why
    processes can't be signalled, `unusable(device)` why no program can use it; all empty when all is well.
    """

    tier = Tier.WATCHDOG

    def __init__(
        self,
        blind: Callable[[str], str],
        powerless: Callable[[], str],
        unusable: Callable[[DeviceInfo], str] = lambda device: "",
    ) -> None:
        self._blind = blind
        self._powerless = powerless
        self._unusable = unusable

    def available(self, limited: Limited) -> str:
        """Empty while memory can be seen and processes can be signalled."""
        return self._powerless() or self._blind(limited.device.uuid) or self._unusable(limited.device)

    def read_back(self, limited: Limited) -> bool:
        """In force while it is available."""
        return not self.available(limited)
