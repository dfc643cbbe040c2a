"""One coordinator on one machine: a lock on a file beside the journal, and the next epoch in the journal.

The kernel drops the lock with the process, however that ends, so a restart never waits. The lock alone would not be
enough on a shared file system, which is why commits are also conditional on the epoch.
"""

from __future__ import annotations

import os
from pathlib import Path

from aliquot.common.own_files import lock_file
from aliquot.coordinator.errors import JournalLocked
from aliquot.coordinator.writing.journal.base import Journal


class SingleLeadership:
    """Leads while it holds the lock. A journal without a file needs no lock: nobody else can see it."""

    def __init__(self, journal: Journal, lock_path: Path | None) -> None:
        self._journal = journal
        self._lock_path = lock_path
        self._file: int | None = None

    def acquire(self) -> int:
        """Take the lock, open the journal, take the next epoch."""
        if self._lock_path is not None:
            self._file = _lock(self._lock_path)
        self._journal.open()
        return self._journal.raise_leader_epoch()

    def release(self) -> None:
        """Close the journal and drop the lock."""
        self._journal.close()
        if self._file is not None:
            os.close(self._file)
            self._file = None


def lock_path_of(journal_path: Path) -> Path:
    """The lock of the journal at this path."""
    return journal_path.with_name(journal_path.name + ".lock")


def _lock(path: Path) -> int:
    try:
        file = lock_file(path)
    except BlockingIOError as error:
        holder = path.read_bytes()[:32].decode("ascii", "replace").strip()
        raise JournalLocked(
            f"another coordinator{f' (process {holder})' if holder else ''} has the journal of {path}",
            hint="stop it first, or give this one a journal of its own (--journal)",
        ) from error
    except OSError as error:
        raise JournalLocked(
            f"{path} can't be opened: {error.strerror}", hint="check the folder of --journal"
        ) from error
    os.ftruncate(file, 0)
    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
    return file
