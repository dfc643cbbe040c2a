"""Tier `mig`: a hardware partition of its own, such as a MIG instance or a virtual NPU of Ascend's.

The agent sees each instance as a device; a slice that has one whole is held by the hardware, and there is nothing to
set: what is read back, from the backend, is that the instance is still there and still as large. Cutting a device is
`core.partitioning` (the plan) and the backend's geometry (doing it), on nodes that allow it.
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.agent.enforce.base import Limited, NothingSet
from aliquot.common.tiers import Tier


class InstanceEnforcer(NothingSet):
    """See `base.Enforcer`. `size(device_uuid)` asks the driver for an instance's memory in bytes: None where there is
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
