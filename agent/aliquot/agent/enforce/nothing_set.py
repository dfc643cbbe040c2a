"""Tiers for which nothing has to be set on the device or asked of processes. See `base.Enforcer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aliquot.agent.core.model import Holder
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import Limited
from aliquot.common.tiers import Tier


class NothingSet:
    """What an `Enforcer` says that sets nothing, asks nothing of processes, and keeps nothing."""

    def apply(self, limited: Limited) -> None:
        """Nothing to set."""

    def clear(self, limited: Limited) -> None:
        """Nothing to clear."""

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Nothing to add: the process need not take part."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""


class NoEnforcer(NothingSet):
    """Tier `none`: a whole device. Nobody else is on it, so there is nobody to protect."""

    tier = Tier.NONE

    def available(self, limited: Limited) -> str:
        """Only for whole devices."""
        return "" if limited.whole_device else "only whole devices may be held without a limit"

    def read_back(self, limited: Limited) -> bool:
        """Exclusive holding is the coordinator's and the book's doing; there is nothing on the device to read."""
        return limited.whole_device


class WatchdogEnforcer(NothingSet):
    """Tier `watchdog`: the agent measures what a lease's processes hold, and ends the one that makes it too much. The
    tier is in force exactly while the agent can do both halves of it: see the memory of single processes on this
    device, and signal them. The decisions are `core.enforcement`.

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


class InstanceEnforcer(NothingSet):
    """Tier `mig`: a hardware partition of its own, such as a MIG instance or a virtual NPU of Ascend's. Each is a
    device, and a slice that has one whole is held by the hardware. What is read back, from the backend, is that it is
    there and as large as it was. Cutting a device is `core.partitioning` (the plan) and the backend's geometry.

    `size(device_uuid)` asks the driver for an instance's memory in bytes: None where there is
    no such instance any more. Raises `EnforcementError`.
    """

    tier = Tier.MIG

    def __init__(self, size: Callable[[str], int | None]) -> None:
        self._size = size

    def available(self, limited: Limited) -> str:
        """Empty for slices of an instance that nothing else can share."""
        if not limited.device.mig_profile:
            return "the card is not divided into instances (MIG)"
        if not limited.whole_device:
            return "within an instance the hardware holds nobody: ask for a whole one, of a smaller profile"
        return ""

    def read_back(self, limited: Limited) -> bool:
        """Whether the instance is there, with the memory it had. Raises `EnforcementError`."""
        return self._size(limited.device.uuid) == limited.device.memory_total_bytes
