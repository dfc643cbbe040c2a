"""The files of a simulated machine as an agent reads and writes them: what it writes is obeyed at once."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aliquot.common.kernel_files import KernelFiles, Mount
from aliquot.simgpu.drm import files
from aliquot.simgpu.drm.books import Books, locked
from aliquot.simgpu.drm.machine import order_limit, reap
from aliquot.simgpu.errors import NotBuiltError
from aliquot.simgpu.vendors.scene import library

MOUNT = "/sys/fs/cgroup"
REAPED_S = 0.25


class SimulatedTree(KernelFiles):
    """See `KernelFiles`."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self._lock = threading.Lock()
        self._reaped_s = 0.0

    @property
    def taker(self) -> tuple[str, ...]:
        """The program that takes memory of a simulated card."""
        return ("aliquot.simgpu.drm.hold", self.root)

    @property
    def libraries(self) -> dict[str, str]:
        """What vendors' libraries must find in their environment to read this machine's cards."""
        roots = {"SIMSYS": "sys", "SIMPROC": "proc", "SIMCGROUP": "sys/fs/cgroup"}
        names = {"ALIQUOT_AMD_SMI_LIBRARY": "libamd_smi.so", "ALIQUOT_ZE_LIBRARY": "libze_loader.so.1"}
        return {f"ALIQUOT_{name}": f"{self.root}/{path}" for name, path in roots.items()} | {
            variable: os.environ.get(variable) or _built(name) for variable, name in names.items()
        }

    def cgroups(self) -> Mount:
        """It is always there."""
        return Mount(Path(MOUNT), "/")

    def read(self, path: str) -> str:
        """A file's text."""
        if path.startswith(MOUNT) or path.endswith("_used"):
            self._reap()
        return super().read(path)

    def names(self, path: str) -> list[str]:
        """What a directory holds."""
        if path == "/proc":
            self._reap()
        return super().names(path)

    def write(self, path: str, text: str) -> None:
        """Obeyed, or refused as the kernel would."""
        self.calls += 1
        group, _, name = path.removeprefix(MOUNT).rpartition("/")
        if not path.startswith(MOUNT) or not Path(self.root + path).exists():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        with self._changed() as books:
            if name == "cgroup.subtree_control":
                offered = Path(f"{self.root}{MOUNT}{group}/cgroup.controllers").read_text(encoding="utf-8").split()
                for word in text.split():
                    if word[1:] not in offered:
                        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                    if word == "+dmem" and (group or "/") not in books.enabled:
                        books.enabled.append(group or "/")
                    elif word == "-dmem" and (group or "/") in books.enabled:
                        books.enabled.remove(group or "/")
            elif name == "dmem.max":
                try:
                    order_limit(books, group or "/", text)
                except ValueError as error:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path) from error
            else:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    def make(self, path: str) -> None:
        """Cgroups come with their files."""
        self.calls += 1
        if not path.startswith(MOUNT):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        with self._changed() as books:
            above = ""
            for part in path.removeprefix(MOUNT).strip("/").split("/"):
                above += f"/{part}"
                if above != "/" and above not in books.groups:
                    books.groups.append(above)

    def remove(self, path: str) -> None:
        """A cgroup goes with its limits."""
        self.calls += 1
        group = path.removeprefix(MOUNT)
        with self._changed() as books:
            books.groups = [each for each in books.groups if each != group]
            books.limits.pop(group, None)
            if group in books.enabled:
                books.enabled.remove(group)
        folder = Path(self.root + path)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()

    @contextmanager
    def _changed(self) -> Iterator[Books]:
        with locked(Path(self.root)) as books:
            yield books
            files.show_groups(Path(self.root), books)

    def _reap(self) -> None:
        """Processes that have ended hold nothing."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._reaped_s < REAPED_S:
                return
            self._reaped_s = now_s
        with locked(Path(self.root)) as books:
            before = len(books.held)
            reap(books)
            if len(books.held) != before:
                files.show_use(Path(self.root), books)


def _built(name: str) -> str:
    """A stand-in's path; `off` where none was built."""
    try:
        return str(library(name))
    except NotBuiltError:
        return "off"
