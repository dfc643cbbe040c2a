"""Remote GPUs: programs on a machine without a GPU run their work on a leased part of one (docs/remote.md)."""

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
]
