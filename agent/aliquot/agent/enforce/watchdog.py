"""Tier `watchdog`: the agent measures what a lease's processes hold, and ends the one that makes it too much.

There is nothing to set on the device. The tier is in force exactly while the agent can do both halves of it:
see the memory of single processes on this device, and signal them. The decisions are `core.enforcement`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import Limited
from aliquot.common.tiers import Tier


class WatchdogEnforcer:
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

    def apply(self, limited: Limited) -> None:
        """The limit is the reservation itself; the next poll goes by it."""

    def read_back(self, limited: Limited) -> bool:
        """In force while it is available."""
        return not self.available(limited)

    def clear(self, limited: Limited) -> None:
        """The next poll knows nothing of a reservation that has ended."""

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Nothing to add: the process need not take part."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""
