"""Tier `driver`: the driver itself limits what a cgroup may hold of a device.

The limit is set on the holder's leaf cgroup, so it also holds children, shells and static programs, without any help
of the process. Needs root, cgroup v2 and a driver that offers it (r615, CUDA 13.4). A limit is taken away before its
cgroup goes: a later cgroup must not inherit it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pynvml

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.processes.cgroups import MOUNTINFO, find_mount
from aliquot.common.tiers import Tier

T = TypeVar("T")

NO_LIMIT = 2**64 - 1
SINCE = "driver r615 (CUDA 13.4)"


class DriverEnforcer:
    """See `base.Enforcer`. NVML must have been initialised in this process."""

    tier = Tier.DRIVER

    def __init__(self, why_no_cgroups: Callable[[], str]) -> None:
        self._why_no_cgroups = why_no_cgroups
        self._not_offered: dict[str, str] = {}

    def available(self, limited: Limited) -> str:
        """Empty where the driver has taken such a limit, or can be expected to."""
        problem = self._why_no_cgroups()
        if problem:
            return f"the driver limits cgroups, and there are none: {problem}"
        if limited.device.mig_profile or limited.device.parent_uuid:
            return "the driver has no such limits on devices in MIG mode"
        if limited.device.uuid not in self._not_offered:
            self._not_offered[limited.device.uuid] = self._ask(limited.device.uuid)
        return self._not_offered[limited.device.uuid]

    def apply(self, limited: Limited) -> None:
        """Set the limit on the holder's leaf, which is made if it isn't there, and on cgroups that were attached to it.
        Raises `EnforcementError`.
        """
        path, *others = self._paths(limited)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnforcementError(f"cgroup {path}: {error.strerror}") from error
        for each in (path, *others):
            self._set(limited, each, limited.spec.memory_bytes)

    def read_back(self, limited: Limited) -> bool:
        """Whether the driver says so, of each of its cgroups."""
        return all(self._is_set(limited, path) for path in self._paths(limited))

    def _is_set(self, limited: Limited, path: Path) -> bool:
        if not path.is_dir():
            return False
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(path).encode())
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(limited.device.uuid)
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, limits)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return False
            raise EnforcementError(f"the driver's limit can't be read: {error}") from error
        return int(limits.hardLimit) == limited.spec.memory_bytes

    def clear(self, limited: Limited) -> None:
        """Lift the limit; without its cgroup there is none."""
        for path in self._paths(limited):
            if path.is_dir():
                self._set(limited, path, NO_LIMIT)

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """Nothing: the process need not take part."""
        return {}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""

    def _paths(self, limited: Limited) -> list[Path]:
        """The holder's leaf first. Attached cgroups that have gone are left out."""
        mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
        directory = mount.directory_of(limited.cgroup) if mount is not None and limited.cgroup is not None else None
        if mount is None or directory is None:
            raise EnforcementError("this lease's processes are not followed by cgroup")
        others = [mount.directory_of(path) for path in limited.attached]
        return [directory, *(each for each in others if each is not None and each.is_dir())]

    def _set(self, limited: Limited, path: Path, hard_bytes: int) -> None:
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=str(path).encode(), softLimit=0, hardLimit=hard_bytes)
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(limited.device.uuid)
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        except pynvml.NVMLError as error:
            raise EnforcementError(f"the driver does not take the limit: {error}") from error

    def _ask(self, uuid: str) -> str:
        """Ask about a cgroup that has no limit: what the driver answers says whether it knows the question."""
        mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
        if mount is None:
            return "no cgroup v2 hierarchy is mounted"
        if not hasattr(pynvml, "nvmlDeviceGetMemoryLimits_v1"):
            return "this nvidia-ml-py is too old: 13.615 and newer know the call"
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(mount.directory).encode())
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return ""
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return f"this driver can't limit cgroups; {SINCE} and newer can"
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return "setting the driver's limits needs root"
            return f"the driver offers no limits for cgroups here: {error}"
        return ""
