"""What a program needs to use a lease that is served, and what has become of the lease: from the SDK, or from a file.

`aliquot run --remote` keeps such a file for the program that it starts, and writes it anew when something changes. It
holds the lease's serving credential, so only its user may read it; arguments and variables have only its name.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final, Self

import msgspec

from aliquot.client import Lease, ticket
from aliquot.common.errors import SecurityError
from aliquot.remote.errors import SessionError

VARIABLE: Final = "ALIQUOT_REMOTE_TICKET"
_FILE_BYTES_MAX: Final = 1 << 20


class Ticket(ticket.Ticket, frozen=True):
    """See the module's docstring."""

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """For a lease as it is now. Raises `SessionError` where its secret is not known."""
        if not lease.secret:
            raise SessionError(
                f"the secret of lease {lease.lease_id} is not known here",
                hint="only who allocated a lease is told its secret: use the lease that `allocate` or `lease` gave",
                reason="SESSION_SECRET",
            )
        return super().of(lease)

    def write(self, path: Path) -> None:
        """Put it in place of an earlier one, for this user only. Raises `OSError`."""
        staging = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(staging, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self))
        staging.replace(path)

    @classmethod
    def read(cls, path: Path) -> Ticket:
        """From a file. Raises `SecurityError` where others can read it, `SessionError` where it is none."""
        try:
            with path.open("rb") as file:
                about = os.fstat(file.fileno())
                content = file.read(_FILE_BYTES_MAX)
        except OSError as error:
            raise SessionError(
                f"{path}: {error.strerror}", hint="its `aliquot run --remote` has ended, and its lease with it"
            ) from error
        try:
            found = msgspec.json.decode(content, type=cls)
        except msgspec.DecodeError as error:
            raise SessionError(f"{path} says of no lease how to use it: {error}") from error
        if stat.S_IMODE(about.st_mode) & 0o077:  # looked at last, so that it is said of tickets only
            raise SecurityError(f"others can read {path}, which proves who may use a lease", hint=f"chmod 600 {path}")
        return found
