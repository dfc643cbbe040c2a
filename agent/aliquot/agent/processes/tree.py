"""The kernel's files (/sys, /proc, cgroups), read and written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

from aliquot.agent.processes.cgroups import MOUNTINFO, Mount, find_mount
from aliquot.common.kernel_files import KernelFiles

DRM_MAJOR = 226


class Hierarchy(Protocol):
    """Where cgroup v2 is mounted: see `cgroups.Mount`."""

    @property
    def directory(self) -> Path:
        """Of its top."""

    def directory_of(self, cgroup: str) -> Path | None:
        """Of a cgroup, as /proc/pid/cgroup names it."""


class Tree(Protocol):
    """Paths are absolute, as on the machine. Methods raise `OSError`."""

    calls: int
    """How often the kernel was asked so far."""

    @property
    def taker(self) -> tuple[str, ...]:
        """The program that takes memory of a card of this machine: a module and its first arguments; empty: none."""

    def cgroups(self) -> Hierarchy | None:
        """Where cgroup v2 is mounted; its directory is to be used with this tree only. None: nowhere."""

    def read(self, path: str) -> str:
        """A file's text."""

    def write(self, path: str, text: str) -> None:
        """Into a file, by one call."""

    def names(self, path: str) -> list[str]:
        """What a directory holds."""

    def link(self, path: str) -> str:
        """Where a link leads, as it is written."""

    def real(self, path: str) -> str:
        """A path without links."""

    def drm_minor(self, path: str, target: str) -> int | None:
        """Which DRM device an open file in /proc is; None: it is none. `target`: where its link leads."""

    def make(self, path: str) -> None:
        """A directory with all that are above it; one that is there is well."""

    def remove(self, path: str) -> None:
        """An empty directory."""


class RealTree(KernelFiles):
    """See `Tree`."""

    def __init__(self, root: str = "") -> None:
        super().__init__(root)
        self._mount: Mount | None = None

    @property
    def taker(self) -> tuple[str, ...]:
        """By the kernel's own calls; nothing takes memory of a recorded machine."""
        return () if self.root else ("aliquot.agent.doctor.drm_probe",)

    def cgroups(self) -> Mount | None:
        """By this process's table of mounts, which a recorded machine has not."""
        if self._mount is None and not self.root:
            self._mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
        return self._mount

    def write(self, path: str, text: str) -> None:
        """See `Tree`."""
        self.calls += 1
        descriptor = os.open(self.root + path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def drm_minor(self, path: str, target: str) -> int | None:
        """By the device itself: in a container it may have another's name. Of a recorded machine, by the name."""
        if self.root:
            return super().drm_minor(path, target)
        if not target.startswith("/dev/") and "/dri/" not in target:
            return None
        self.calls += 1
        number = os.stat(path).st_rdev  # noqa: PTH116 - asked a thousand times a poll
        return os.minor(number) if os.major(number) == DRM_MAJOR else None

    def make(self, path: str) -> None:
        """See `Tree`."""
        self.calls += 1
        os.makedirs(self.root + path, exist_ok=True)  # noqa: PTH103 - asked a thousand times a poll

    def remove(self, path: str) -> None:
        """See `Tree`."""
        self.calls += 1
        os.rmdir(self.root + path)  # noqa: PTH106 - asked a thousand times a poll
