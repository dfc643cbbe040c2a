"""Tier `driver`: the driver itself limits what a cgroup may hold of a device.

The limit is set on the holder's leaf cgroup and its parts, so it also holds children, shells and static programs,
without any help of the process. Needs root, cgroup v2 and a driver that offers it (r615, CUDA 13.4), which is tried,
not taken for granted. A limit is taken away before its cgroup goes: a later cgroup must not inherit it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import pynvml

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.controllers import switch_on
from aliquot.agent.processes.cgroups import MOUNTINFO, below, find_mount
from aliquot.agent.processes.tree import RealTree
from aliquot.common.tiers import Tier

T = TypeVar("T")

NO_LIMIT = 2**64 - 1
TOOLKIT_LIMIT = "NVIDIA_GPU_MEMORY_LIMIT"
"""In bytes, for each device of a container."""
SCRATCH = "offered"
"""A cgroup in which nothing ever runs, made and removed where leases have theirs."""
SCRATCH_BYTES = 1 << 30
SINCE = "driver r615 (CUDA 13.4)"


class DriverEnforcer:
    """See `base.Enforcer`. NVML must have been initialised in this process."""

    tier = Tier.DRIVER

    def __init__(self, why_no_cgroups: Callable[[], str], base: Callable[[], str]) -> None:
        """`base`: see `base.Cgroups`."""
        self._why_no_cgroups = why_no_cgroups
        self._base = base
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
            path.parent.mkdir(parents=True, exist_ok=True)
            mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
            if mount is not None and limited.cgroup is not None:
                switch_on(RealTree(), mount, limited.cgroup.rpartition("/")[0])
            path.mkdir(exist_ok=True)
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
        """The process need not take part. A container that it starts gets this limit from NVIDIA's container toolkit,
        whose hook reads the variable: the same one that is set here once the container's cgroup is attached.
        """
        return {TOOLKIT_LIMIT: str(limited.spec.memory_bytes)}

    def forget(self, holder: Holder) -> None:
        """Nothing is kept."""

    def _paths(self, limited: Limited) -> list[Path]:
        """The holder's leaf first, then what is below it. Attached cgroups that have gone are left out."""
        mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
        directory = mount.directory_of(limited.cgroup) if mount is not None and limited.cgroup is not None else None
        if mount is None or directory is None:
            raise EnforcementError("this lease's processes are not followed by cgroup")
        others = [mount.directory_of(path) for path in limited.attached]
        # The driver goes by the cgroup that a process is in itself: parts of the leaf have the limit as well.
        parts = list(below(directory))
        return [directory, *parts, *(each for each in others if each is not None and each.is_dir())]

    def _set(self, limited: Limited, path: Path, hard_bytes: int) -> None:
        limits = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=str(path).encode(), softLimit=0, hardLimit=hard_bytes)
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(limited.device.uuid)
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, limits)
        except pynvml.NVMLError as error:
            raise EnforcementError(f"the driver does not take the limit: {error}") from error

    def _ask(self, uuid: str) -> str:
        """Set a limit on a cgroup of our own, in which nothing runs, and read it back: reading alone proves nothing, as
        a cgroup that can't be limited answers for one above it.
        """
        mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
        if mount is None:
            return "no cgroup v2 hierarchy is mounted"
        if not hasattr(pynvml, "nvmlDeviceGetMemoryLimits_v1"):
            return "this nvidia-ml-py is too old: 13.615 and newer know the call"
        base = self._base()
        directory = mount.directory_of(base) if base else None
        if directory is None:
            return "leases have no cgroup of their own here"
        # Drivers on kernels that have the controller hold limits by it; on others they keep books of their own.
        no_dmem = switch_on(RealTree(), mount, base)
        scratch = directory / SCRATCH
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            try:
                return self._try(uuid, scratch, no_dmem)
            finally:
                scratch.rmdir()
        except OSError as error:
            return f"the driver's limits could not be tried: cgroup {scratch}: {error.strerror}"

    def _try(self, uuid: str, scratch: Path, no_dmem: str) -> str:
        name = str(scratch).encode()
        try:
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            wanted = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=name, softLimit=0, hardLimit=SCRATCH_BYTES)
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, wanted)
            answer = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=name)
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, answer)
            nothing = pynvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=name, softLimit=0, hardLimit=NO_LIMIT)
            pynvml.nvmlDeviceSetMemoryLimits_v1(handle, nothing)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return f"the driver can't limit the cgroups of leases: {no_dmem or 'it does not find them'}"
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return f"this driver can't limit cgroups; {SINCE} and newer can"
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return "setting the driver's limits needs root"
            return f"the driver offers no limits for cgroups here: {error}"
        if int(answer.hardLimit) != SCRATCH_BYTES:
            return f"the driver took a limit and does not keep it: {no_dmem or 'it says another one when asked'}"
        return ""
