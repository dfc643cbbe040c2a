"""What the agent's records ask of a file system: the one place where a disk is written to, handed in so that a test or
a simulation can cut the power between two of its calls.

Only what was synced survives that: a file's bytes when `write` was told to sync them, its name (new, changed or gone)
when `sync_directory` was called for its folder afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from aliquot.common.own_files import lock_file, make_private


class Files(Protocol):
    """All of them raise `OSError`."""

    def make_directory(self, path: Path) -> None:
        """Make a folder that only its owner can open, and those above it; one that is there is no error. Durable when
        it returns.
        """

    def lock(self, path: Path) -> Callable[[], None]:
        """Take a lock that dies with this process. Returns what lets it go. Raises `BlockingIOError` where another
        process has it.
        """

    def names(self, directory: Path) -> list[str]:
        """What is in a folder, sorted."""

    def read(self, path: Path, bytes_max: int) -> bytes:
        """The beginning of a file. Raises `FileNotFoundError`."""

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Make or overwrite a file; with `sync`, wait until its bytes are on disk."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of what had it."""

    def remove(self, path: Path) -> None:
        """Remove a file; one that is not there is no error."""

    def sync_directory(self, path: Path) -> None:
        """Wait until all that was renamed, made and removed in a folder is on disk."""


class Disk:
    """The real one."""

    def make_directory(self, path: Path) -> None:
        """See `Files`."""
        missing = [each for each in (path, *path.parents) if not each.exists()]
        make_private(path)
        # Synced also where it was there: whoever made it may have died before that.
        for made in dict.fromkeys([path, *missing]):
            with contextlib.suppress(PermissionError):  # a folder that can't be read was not written by this process
                self.sync_directory(made.parent)

    def lock(self, path: Path) -> Callable[[], None]:
        """See `Files`."""
        descriptor = lock_file(path)
        return lambda: os.close(descriptor)

    def names(self, directory: Path) -> list[str]:
        """See `Files`."""
        return sorted(each.name for each in directory.iterdir())

    def read(self, path: Path, bytes_max: int) -> bytes:
        """See `Files`."""
        with path.open("rb") as file:
            return file.read(bytes_max)

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        """See `Files`."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """See `Files`."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See `Files`."""
        path.unlink(missing_ok=True)

    def sync_directory(self, path: Path) -> None:
        """See `Files`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


DISK: Files = Disk()
