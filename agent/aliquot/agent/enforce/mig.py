"""Tier `mig`: a hardware partition of its own.

The agent sees each instance as a device; a slice that has one whole is held by the hardware, and there is nothing to
set: what is read back is that the instance is still there and still as large. Cutting a device is
`core.partitioning` (the plan) and `mig_geometry` (doing it), on nodes that allow it.
"""

from __future__ import annotations

from collections.abc import Mapping

import pynvml

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.common.tiers import Tier


class MigEnforcer:
    """See `base.Enforcer`. NVML must have been initialised in this process."""

    tier = Tier.MIG

    def available(self, limited: Limited) -> str:
        """Empty for slices of an instance that nothing else can share."""
        if not limited.device.mig_profile:
            return "the device is not partitioned (MIG)"
        if not limited.whole_device:
            return "within a MIG instance the hardware holds nobody: ask for a whole one, of a smaller profile"
        return ""

    def apply(self, limited: Limited) -> None:
        """The instance is the limit."""

    def read_back(self, limited: Limited) -> bool:
        """Whether the instance is there, with the memory it had. Raises `EnforcementError`."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(limited.device.uuid)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                return False
            raise EnforcementError(f"the MIG instance can't be read: {error}") from error
        return int(memory.total) == limited.device.memory_total_bytes

    def clear(self, limited: Limited) -> None:
        """Instances stay."""

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Nothing beyond CUDA_VISIBLE_DEVICES, which names the instance."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""
