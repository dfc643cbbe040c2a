"""Remote GPUs: programs on a machine without a GPU run their work on a leased part of one (docs/remote.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.remote.errors import (
    RemoteError,
    SessionClosed,
    SessionError,
    SessionLeaseEnded,
    SessionLost,
    SessionRefused,
    SessionUnreachable,
)
from aliquot.remote.session import Session, acquire, connect
from aliquot.remote.wire.client import Notice, RemoteChannel

if TYPE_CHECKING:
    from aliquot.remote.torch.profiling import Profiling

__all__ = [
    "Notice",
    "RemoteChannel",
    "RemoteError",
    "Session",
    "SessionClosed",
    "SessionError",
    "SessionLeaseEnded",
    "SessionLost",
    "SessionRefused",
    "SessionUnreachable",
    "acquire",
    "connect",
    "profile",
]


def profile() -> Profiling:
    """Finds where the time of a block goes that uses remote devices; printed, it is a table. Needs PyTorch."""
    from aliquot.remote.torch.profiling import Profiling  # noqa: PLC0415 - brings PyTorch, which is the program's own

    return Profiling()
