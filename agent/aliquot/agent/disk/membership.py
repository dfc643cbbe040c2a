"""What a node has of the pool that it has joined, with the node's key in it: written whole, and believed only where it
is whole.

The key is made on the node and never leaves it. Everything else can be had again: the certificate by renewal, and all
of it by joining anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from aliquot.agent.disk.durable import Damaged, read_record, write_record
from aliquot.agent.disk.files import DISK, Files
from aliquot.common.errors import SecurityError

RECORD: Final = "pool.record"
JOINING: Final = "joining.record"
_KIND, _JOINING_KIND = "pool", "joining"


class Membership(msgspec.Struct, frozen=True):
    """See the module's docstring. Times are in milliseconds since 1970."""

    pool_id: str
    node_id: str
    addresses: tuple[str, ...]
    """Of the coordinators."""
    key_pem: str
    chain_pem: str
    life_ms: tuple[int, int]
    """When the certificate begins and ends; 0: it can't be read."""
    authorities_pem: str
    """Of the pool: whom its certificates are signed by."""
    server_pem: str | None = None
    """Whom to trust at the coordinators: None: the pool's own; empty: the system's."""
    invite_sha256: bytes = b""
    """Of the invite that it has joined with: the same again brings the same key."""

    def __repr__(self) -> str:
        """Without the key."""
        return f"Membership({self.pool_id}, {self.node_id})"

    @property
    def trusted_pem(self) -> str:
        """Authorities of the coordinators' certificates; empty: the system's."""
        return self.authorities_pem if self.server_pem is None else self.server_pem


class Joining(msgspec.Struct, frozen=True):
    """A join that has begun: with the same invite only the same key may come again."""

    invite_sha256: bytes
    key_pem: str

    def __repr__(self) -> str:
        """Without the key."""
        return "Joining()"


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
