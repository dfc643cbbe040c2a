"""The record of the pool that the node has joined: written whole, and believed only where it is whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aliquot.agent.disk.durable import Damaged, read_record, write_record
from aliquot.agent.disk.files import DISK, Files
from aliquot.agent.membership import Joining, Membership
from aliquot.common.errors import SecurityError

RECORD: Final = "pool.record"
JOINING: Final = "joining.record"
_KIND, _JOINING_KIND = "pool", "joining"


def read_membership(state_dir: Path, files: Files = DISK) -> Membership | None:
    """What was kept; None: the node has joined no pool. Raises SecurityError for what can't be believed."""
    path = state_dir / RECORD
    try:
        return read_record(path, _KIND, Membership, files)
    except FileNotFoundError:
        return None
    except Damaged as error:
        raise SecurityError(
            f"{path} is damaged: {error}", hint="join again: an operator's `aliquot node invite` prints the command"
        ) from error
    except OSError as error:
        raise SecurityError(f"{path}: {error.strerror}", hint="run this as the user of the agent") from error


def write_membership(state_dir: Path, membership: Membership, files: Files = DISK) -> None:
    """Durable when it returns; a join that had begun is over. Raises OSError."""
    write_record(state_dir / RECORD, _KIND, membership, files)
    files.remove(state_dir / JOINING)


def read_joining(state_dir: Path, files: Files = DISK) -> Joining | None:
    """The join that has begun here; None where there is none that can be read."""
    try:
        return read_record(state_dir / JOINING, _JOINING_KIND, Joining, files)
    except (OSError, Damaged):
        return None


def write_joining(state_dir: Path, joining: Joining, files: Files = DISK) -> None:
    """Durable when it returns. Raises OSError."""
    write_record(state_dir / JOINING, _JOINING_KIND, joining, files)
