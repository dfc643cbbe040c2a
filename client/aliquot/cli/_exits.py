"""Exit codes, for scripts. `aliquot --help` lists them; codes are only ever added."""

from __future__ import annotations

import enum

from aliquot.common.errors import AliquotError


class Exit(enum.IntEnum):
    """The exit code of a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    REFUSED = 4
    NOT_NOW = 5
    UNAVAILABLE = 6
    CONFLICT = 7
    LEASE_LOST = 8
    NOT_LOGGED_IN = 9
    NOT_PERMITTED = 10
    INTERRUPTED = 130


MEANING = {
    Exit.OK: "done",
    Exit.FAILED: "failed; see the message",
    Exit.USAGE: "wrong arguments, or a request that can't be read",
    Exit.NOT_FOUND: "no such lease, node or tenant, or no local pool",
    Exit.REFUSED: "refused: it can never fit, or a limit forbids it",
    Exit.NOT_NOW: "not now: queued, no capacity, or out of time",
    Exit.UNAVAILABLE: "no coordinator, or no agent, answers",
    Exit.CONFLICT: "changed by somebody else, or in use",
    Exit.LEASE_LOST: "the lease ended while it was needed",
    Exit.NOT_LOGGED_IN: "no token, or one that does not count: `aliquot login`",
    Exit.NOT_PERMITTED: "your roles don't allow it",
    Exit.INTERRUPTED: "interrupted by Ctrl-C",
}

_BY_ERROR = {
    "UsageError": Exit.USAGE,
    "RequestSyntaxError": Exit.USAGE,
    "InvalidRequest": Exit.USAGE,
    "InvalidFieldError": Exit.USAGE,
    "QuantityError": Exit.USAGE,
    "DurationError": Exit.USAGE,
    "ConfigError": Exit.USAGE,
    "SecurityError": Exit.USAGE,
    "NotFound": Exit.NOT_FOUND,
    "NoCapacity": Exit.NOT_NOW,
    "PlacementRefused": Exit.NOT_NOW,
    "NotLoggedIn": Exit.NOT_LOGGED_IN,
    "NotPermitted": Exit.NOT_PERMITTED,
    "TenantHeldBack": Exit.NOT_NOW,
    "Refused": Exit.REFUSED,
    "AttachRefused": Exit.REFUSED,
    "DeadlineExceeded": Exit.NOT_NOW,
    "Unavailable": Exit.UNAVAILABLE,
    "AgentError": Exit.UNAVAILABLE,
    "Conflict": Exit.CONFLICT,
    "WatchCompacted": Exit.CONFLICT,
    "LeaseLost": Exit.LEASE_LOST,
}
"""By the error's class, else by the nearest above it. By name: to list the codes needs nothing of the SDK."""


def exit_of(error: AliquotError) -> Exit:
    """The exit code of an error."""
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return next((_BY_ERROR[kind] for kind in kinds if kind in _BY_ERROR), Exit.FAILED)


def describe() -> str:
    """The codes as lines of text, for `--help`."""
    return "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANING.items())
