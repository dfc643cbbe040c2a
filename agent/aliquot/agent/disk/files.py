"""The file operations that what an agent keeps is made of. The simulation hands in a disk that loses power instead."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO


class Files:
    """A real disk. All methods raise `OSError`; what is not synced may be lost or torn when the machine loses power."""

    def make_directory(self, path: Path) -> None:
        """Make a directory, and those above it, where there is none; its name is durable when this returns."""
        made = [part for part in (path, *path.parents) if not part.exists()]
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        for part in made:
            self.sync_directory(part.parent)

    def lock(self, path: Path) -> IO[str]:
        """Keep others out until it is closed. Raises `BlockingIOError` while another process has it."""
        lock = path.open("a", encoding="ascii")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        return lock

    def names(self, directory: Path) -> list[Path]:
        """What is in a directory, in order."""
        return sorted(directory.iterdir())

    def exists(self, path: Path) -> bool:
        """Whether there is such a file."""
        return path.exists()

    def read(self, path: Path, bytes_max: int) -> bytes:
        """The first bytes of a file."""
        with path.open("rb") as file:
            return file.read(bytes_max)

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        """Write a file over. With `sync`, its content is durable when this returns; its name is not yet."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fsync(file.fileno())

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name; what had it is gone."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """Remove a file; none is no error."""
        path.unlink(missing_ok=True)

    def sync_directory(self, directory: Path) -> None:
        """Make renames and removals in a directory durable."""
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


FILES = Files()
