"""The kernel's files (/sys, /proc, cgroups), read below a root: another root is a recorded or a simulated machine."""

from __future__ import annotations

import os

_CHUNK_BYTES = 1 << 16


class KernelFiles:
    """Paths are absolute, as on the machine. Methods raise `OSError`. A poll asks hundreds of times, so without what
    files of Python cost beside the reading.
    """

    def __init__(self, root: str = "") -> None:
        """`root`: empty for this machine."""
        self.root = root.rstrip("/")
        self.calls = 0
        """How often the kernel was asked so far."""

    def read(self, path: str) -> str:
        """A file's text."""
        self.calls += 1
        descriptor = os.open(self.root + path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found = os.read(descriptor, _CHUNK_BYTES)
            while chunk := os.read(descriptor, _CHUNK_BYTES):
                found += chunk
        finally:
            os.close(descriptor)
        return found.decode(errors="replace")

    def names(self, path: str) -> list[str]:
        """What a directory holds."""
        self.calls += 1
        return os.listdir(self.root + path)  # noqa: PTH208 - see above

    def link(self, path: str) -> str:
        """Where a link leads, as it is written."""
        self.calls += 1
        return os.readlink(self.root + path)  # noqa: PTH115 - see above

    def real(self, path: str) -> str:
        """A path without links."""
        self.calls += 1
        return os.path.realpath(self.root + path)[len(os.path.realpath(self.root or "/").rstrip("/")) :]

    def drm_minor(self, path: str, target: str) -> int | None:
        """Which DRM device an open file in /proc is; None: it is none. `target`: where its link leads, whose name
        tells.
        """
        del path
        return minor_of_name(target)


def minor_of_name(target: str) -> int | None:
    """Of `/dev/dri/renderD128` and `/dev/dri/card0`, as the kernel names them."""
    name = target.rpartition("/dri/")[2]
    number = name.removeprefix("renderD").removeprefix("card")
    return int(number) if number.isdecimal() and number != name else None
