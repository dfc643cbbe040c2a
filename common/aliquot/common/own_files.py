"""Files and folders that a program keeps for itself: private, written whole, locked. Nothing here reads what
people write (`files`), so that who keeps files loads little.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone, whatever the umask. Raises OSError.

    `mkdir(parents=True, mode=…)` gives its mode to the last of them only: with a umask of 000 anybody could rename what
    it made within the others, which we refuse when we see it later.
    """
    if folder.is_dir():
        return
    make_private(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)


def write_whole(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Put a file in the place of the one that is there: readers see the old one or the new one, and who dies meanwhile
    leaves the old one. It is for those whom `mode` lets read it, whatever the umask. `durable`: it survives a loss of
    power. Raises OSError.
    """
    staging = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(descriptor)
        if mode != 0o600:
            staging.chmod(mode)
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise


def lock_file(path: Path, *, wait: bool = False) -> int:
    """Lock a file, which is made if there is none, until the descriptor that this returns is closed: by its owner, or
    by the end of its process, whatever ends that. Raises OSError; without `wait`, BlockingIOError while another has it.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(ImportError):
            import fcntl  # noqa: PLC0415 - does not exist on all systems, where the command line does

            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
