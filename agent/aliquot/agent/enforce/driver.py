"""Tier `driver`: the driver itself limits what a cgroup may hold of a device.

The limit is set on the holder's cgroup, so it also holds children, shells and static programs, without any help of the
process. Needs root, cgroup v2 and a driver that offers it (r615, CUDA 13.4), which is tried, not taken for granted.

The driver has two backends (read in NVIDIA's documents, not yet seen on a card; `aliquot doctor` tries it). Where the
kernel has `dmem`, limits nest: those above bound what is below, and a cgroup without one of its own is shown the whole
device, so parts of the leaf get the same one, to be shown it. By the driver's own books a cgroup has the limit of the
nearest one above it, and one that has its own takes nothing from that: parts with limits would each hold as much as
the whole, so the leaf alone has one.

A limit is guaranteed as well (soft = hard): what lies above a soft limit is borrowed, and its holder may be ended for
it. The guarantee is taken away before the cgroup goes, else nobody could give it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pynvml

from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.controllers import SHUT_BYTES, cgroups_of, make_ready, shares_of
from aliquot.agent.enforce.nothing_set import NothingSet
from aliquot.agent.processes.cgroups import below
from aliquot.agent.processes.tree import RealTree
from aliquot.common.tiers import Tier

NO_LIMIT = 2**64 - 1
TOOLKIT_VARIABLES = ("NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_LIMIT")
"""Of a container, for each of its devices, in whole MiB. NVIDIA's toolkit does nothing unless both are there, and reads
them where the container is made: in a program's environment they do nothing.
"""
SCRATCH = "offered"
"""A cgroup in which nothing ever runs, made and removed where leases have theirs."""
SCRATCH_BYTES = 1 << 30
SINCE = "driver r615 (CUDA 13.4)"


class Offer(NamedTuple):
    """What a trial has shown of a device."""

    problem: str
    """Why it can't be had; empty: it can."""
    nested: bool = False
    """Whether limits bound what is below them together with the limits there."""


class DriverEnforcer(NothingSet):
    """See `base.Enforcer`. NVML must have been initialised in this process."""

    tier = Tier.DRIVER

    def __init__(self, why_no_cgroups: Callable[[], str], base: Callable[[], str]) -> None:
        """`base`: see `base.Cgroups`."""
        self._why_no_cgroups = why_no_cgroups
        self._base = base
        self._tree = RealTree()
        self._offers: dict[str, Offer] = {}

    def available(self, limited: Limited) -> str:
        """Empty where the driver has taken such a limit, or can be expected to."""
        problem = self._why_no_cgroups()
        if problem:
            return f"the driver limits cgroups, and there are none: {problem}"
        if limited.device.mig_profile or limited.device.parent_uuid:
            return "the driver has no such limits on devices in MIG mode"
        return self.offer(limited.device.uuid).problem

    def offer(self, uuid: str) -> Offer:
        """What the driver offers on a device: tried once."""
        if uuid not in self._offers:
            self._offers[uuid] = self._ask(uuid)
        return self._offers[uuid]

    def apply(self, limited: Limited) -> None:
        """Set the limit on the holder's leaf, which is made if it isn't there, or on the cgroup that was attached to
        it. Raises `EnforcementError`.
        """
        if limited.cgroup is not None:
            make_ready(self._tree, limited.cgroup)
        for path, limit_bytes in self._wanted(limited):
            self._set(limited.device.uuid, path, limit_bytes)

    def read_back(self, limited: Limited) -> bool:
        """Whether the driver says so, of each of its cgroups. Limits of parts that would not count together with the
        holder's are lifted.
        """
        for path, limit_bytes in self._wanted(limited):
            if limit_bytes == NO_LIMIT:
                # Asking tells nothing: what it answers for may be the leaf's.
                self._set(limited.device.uuid, path, NO_LIMIT)
            elif self._limit_of(limited.device.uuid, path) != limit_bytes:
                return False
        return True

    def clear(self, limited: Limited) -> None:
        """Lift the limit; without its cgroup there is none."""
        for path in map(Path, cgroups_of(self._tree, limited)):
            for each in (path, *below(path)) if path.is_dir() else ():
                self._set(limited.device.uuid, each, NO_LIMIT)

    def environment(self, limited: Limited) -> Mapping[str, str]:
        """What a container must have from its start. Where limits nest, it is shown its limit by that; where they
        don't, a limit of its own would give it as much again.
        """
        if not self.offer(limited.device.uuid).nested:
            return {}
        return dict.fromkeys(TOOLKIT_VARIABLES, str(limited.spec.memory_bytes >> 20))

    def _wanted(self, limited: Limited) -> Iterator[tuple[Path, int]]:
        """Every cgroup of the holder with its limit, those above first. Attached ones that have gone are left out."""
        nested = self.offer(limited.device.uuid).nested
        for place, (name, limit_bytes) in enumerate(shares_of(self._tree, limited).items()):
            path = Path(name)
            if place and not path.is_dir():
                continue
            yield path, limit_bytes
            for part in below(path) if path.is_dir() else ():
                yield part, limit_bytes if nested else NO_LIMIT

    def _limit_of(self, uuid: str, path: Path) -> int | None:
        if not path.is_dir():
            return None
        limits = pynvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(path).encode())
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return None
            raise EnforcementError(f"the driver's limit can't be read: {error}") from error
        return int(limits.hardLimit)

    def _set(self, uuid: str, path: Path, limit_bytes: int) -> None:
        try:
            _set_limit(uuid, path, limit_bytes)
        except pynvml.NVMLError as error:
            raise EnforcementError(f"the driver does not take the limit: {error}") from error

    def _ask(self, uuid: str) -> Offer:
        """Set a limit on a cgroup of our own, in which nothing runs, and read it back: reading alone proves nothing, as
        a cgroup that can't be limited answers for one above it.
        """
        if not hasattr(pynvml, "nvmlDeviceGetMemoryLimits_v1"):
            return Offer("this nvidia-ml-py is too old: 13.615 and newer know the call")
        base, mount = self._base(), self._tree.cgroups()
        directory = mount.directory_of(base) if base and mount is not None else None
        if directory is None:
            return Offer("leases have no cgroup of their own here")
        scratch, part = directory / SCRATCH, directory / SCRATCH / "part"
        try:
            no_dmem = make_ready(self._tree, f"{base}/{SCRATCH}")
            part.mkdir(exist_ok=True)
            try:
                return self._try(uuid, scratch, part, no_dmem)
            finally:
                part.rmdir()
                scratch.rmdir()
        except EnforcementError as error:
            return Offer(f"the driver's limits could not be tried: {error.message}")
        except OSError as error:
            return Offer(f"the driver's limits could not be tried: cgroup {scratch}: {error.strerror}")

    def _try(self, uuid: str, scratch: Path, part: Path, no_dmem: str) -> Offer:
        try:
            _set_limit(uuid, scratch, SCRATCH_BYTES)
            answer, below_it = self._limit_of(uuid, scratch), self._limit_of(uuid, part)
            _set_limit(uuid, scratch, NO_LIMIT)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_NOT_FOUND:
                return Offer(f"the driver can't limit the cgroups of leases: {no_dmem or 'it does not find them'}")
            if error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
                return Offer(f"this driver can't limit cgroups; {SINCE} and newer can")
            if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
                return Offer("setting the driver's limits needs root")
            return Offer(f"the driver offers no limits for cgroups here: {error}")
        if answer != SCRATCH_BYTES:
            return Offer(f"the driver took a limit and does not keep it: {no_dmem or 'it says another one when asked'}")
        # A part that answers for nothing nests, or has no books: taken for the latter, it is still held.
        return Offer("", nested=below_it is not None and below_it > SCRATCH_BYTES)


def _set_limit(uuid: str, path: Path, limit_bytes: int) -> None:
    """Guaranteed, unless nothing is to be held there, or everything. Raises `pynvml.NVMLError`."""
    soft_bytes = limit_bytes if SHUT_BYTES < limit_bytes < NO_LIMIT else 0
    limits = pynvml.c_nvmlSetMemoryLimits_v1_t(
        nameSpace=str(path).encode(), softLimit=soft_bytes, hardLimit=limit_bytes
    )
    pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(uuid), limits)
