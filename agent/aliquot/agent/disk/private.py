"""Whether files of the agent are its own: nobody else may write them, and nobody else may read its key."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from aliquot.common.errors import SecurityError


def require_private(path: Path, *, secret: bool) -> None:
    """Raises SecurityError, with the command that mends it, unless a file or folder is there, ours, and writable for
    nobody else; with `secret`, readable for nobody else either.
    """
    info = path.stat()
    mine, mode = os.geteuid(), stat.S_IMODE(info.st_mode)
    forbidden = 0o077 if secret else 0o022
    if info.st_uid in (mine, 0) and not mode & forbidden:
        return
    quoted = shlex.quote(str(path))
    mending = f"chmod {'go-rwx' if secret else 'go-w'} {quoted}"
    if info.st_uid not in (mine, 0):
        mending = f"chown {mine} {quoted} && {mending}"
        raise SecurityError(f"{path} belongs to user {info.st_uid}, and the agent runs as {mine}", hint=mending)
    if info.st_mode & stat.S_ISVTX:
        mending = f"name a folder in it: {path} is meant for everybody"
    what = "read or written" if secret else "written"
    raise SecurityError(f"{path} has mode {mode:03o}: it can be {what} by others than the agent", hint=mending)


def require_private_state(directory: Path) -> None:
    """The same of a state directory, with the node's key and all reservations in it. What is not there is no error."""
    for name in ("pool.record", "joining.record"):
        if (path := directory / name).exists():
            require_private(path, secret=True)
    for folder in (directory, directory / "slices", directory / "attachments"):
        if not folder.is_dir():
            continue
        require_private(folder, secret=False)
        for path in folder.glob("*.record"):
            require_private(path, secret=False)


def require_private_folder_of(socket: Path) -> None:
    """A folder in which others could put a socket of their own in the place of the agent's. Raises SecurityError."""
    folder = socket.parent
    info = folder.stat()
    if info.st_mode & stat.S_ISVTX and info.st_uid == 0:  # as /tmp: others can't replace what is ours
        return
    require_private(folder, secret=False)
