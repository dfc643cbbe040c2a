"""The kernel's files of this machine."""

from __future__ import annotations

import os

from aliquot.common.kernel_files import MOUNTINFO, KernelFiles, Mount, find_mount

DRM_MAJOR = 226


class RealTree(KernelFiles):
    """What only the machine that the agent runs on has, where no other root is given."""

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

    def drm_minor(self, path: str, target: str) -> int | None:
        """By the device itself: in a container it may have another's name. Of a recorded machine, by the name."""
        if self.root:
            return super().drm_minor(path, target)
        if not target.startswith("/dev/") and "/dri/" not in target:
            return None
        self.calls += 1
        number = os.stat(path).st_rdev  # noqa: PTH116 - asked a thousand times a poll
        return os.minor(number) if os.major(number) == DRM_MAJOR else None
