"""The kernel's files (/sys, /proc, cgroups), read and written below a root: another root is a recorded or a simulated
machine.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import msgspec

MOUNTINFO = Path("/proc/self/mountinfo")
_CHUNK_BYTES = 1 << 16


class Mount(msgspec.Struct, frozen=True):
    """Where (part of) the hierarchy is mounted."""

    directory: Path
    root: str
    """The cgroup that is mounted there: "/" unless a container sees a part."""

    def directory_of(self, cgroup: str) -> Path | None:
        """The directory of a cgroup, as /proc/pid/cgroup names it; None where it lies outside of what is mounted."""
        if self.root == "/":
            return self.directory / cgroup.lstrip("/")
        if cgroup == self.root or cgroup.startswith(self.root + "/"):
            return self.directory / cgroup[len(self.root) :].lstrip("/")
        return None

    def own_name(self, cgroup: str) -> str:
        """What /proc/pid/cgroup calls a cgroup here that is named from the root of the hierarchy. A reader in a cgroup
        namespace of its own sees others' cgroups as above its own.
        """
        above = self.root.strip("/").split("/")
        return self.root + cgroup if all(part == ".." for part in above) else cgroup

    def full_name(self, name: str) -> str:
        """The opposite of `own_name`."""
        above = self.root.strip("/").split("/")
        return name.removeprefix(self.root) if all(part == ".." for part in above) else name


def find_mount(mountinfo: str) -> Mount | None:
    """The cgroup v2 mount in the text of /proc/self/mountinfo; of several, the one that shows the most."""
    found: list[Mount] = []
    for line in mountinfo.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split()
        if separator and len(fields) >= 6 and after.split()[:1] == ["cgroup2"]:
            found.append(Mount(Path(_unescaped(fields[4])), _unescaped(fields[3])))
    return min(found, key=lambda mount: len(mount.root), default=None)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


class KernelFiles:
    """Paths are absolute, as on the machine. Methods raise `OSError`. A poll asks hundreds of times, so without what
    files of Python cost beside the reading.
    """

    def __init__(self, root: str = "") -> None:
        """`root`: empty for this machine."""
        self.root = root.rstrip("/")
        self.calls = 0
        """How often the kernel was asked so far."""

    @property
    def taker(self) -> tuple[str, ...]:
        """The program that takes memory of a card of this machine: a module and its first arguments; empty: none."""
        return ()

    def cgroups(self) -> Mount | None:
        """Where cgroup v2 is mounted; its directory is to be used with these files only. None: nowhere."""
        return None

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

    def write(self, path: str, text: str) -> None:
        """Into a file, by one call."""
        self.calls += 1
        descriptor = os.open(self.root + path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def make(self, path: str) -> None:
        """A directory with all that are above it; one that is there is well."""
        self.calls += 1
        os.makedirs(self.root + path, exist_ok=True)  # noqa: PTH103 - see above

    def remove(self, path: str) -> None:
        """An empty directory."""
        self.calls += 1
        os.rmdir(self.root + path)  # noqa: PTH106 - see above

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
