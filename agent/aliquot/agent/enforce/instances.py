"""Tier `mig` on devices of vendors whose driver the backend speaks to: a virtual NPU of Ascend's.

As with MIG the hardware holds a slice that has an instance whole. What is read back, from the backend, is that the
instance is still there and still as large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.base import Limited
from aliquot.common.tiers import Tier


class InstanceEnforcer:
    """See `base.Enforcer`. `size(device_uuid)` asks the driver for an instance's memory in bytes: None where there is
    no such instance any more. Raises `EnforcementError`.
    """

    tier = Tier.MIG

    def __init__(self, size: Callable[[str], int | None]) -> None:
        self._size = size

    def available(self, limited: Limited) -> str:
        """Empty for slices of an instance that nothing else can share."""
        if not limited.device.mig_profile:
            return "the card is not divided into instances"
        if not limited.whole_device:
            return "within an instance the hardware holds nobody: ask for a whole one, of a smaller profile"
        return ""

    def apply(self, limited: Limited) -> None:
        """The instance is the limit."""

    def read_back(self, limited: Limited) -> bool:
        """Whether the instance is there, with the memory it had. Raises `EnforcementError`."""
        return self._size(limited.device.uuid) == limited.device.memory_total_bytes

    def clear(self, limited: Limited) -> None:
        """Instances stay."""

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Nothing beyond what shows a program its device."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""
