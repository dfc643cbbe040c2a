"""How a session with the process that serves a lease ends, or does not begin.

    AliquotError, RuntimeError
     └── SessionError
          ├── SessionRefused       the server does not let this client in, or does not do what it asks
          ├── SessionUnreachable   nobody answers at the endpoint, or somebody else does
          ├── SessionLost          what the session had on the device is gone: the server ended, or was away too long
          ├── SessionLeaseEnded    the lease was preempted, has expired, or is otherwise over
          └── SessionClosed        this program has closed the session itself

The error that ended a session is raised by every call of it from then on. They are `RuntimeError`s as PyTorch's own.
"""

from __future__ import annotations

from aliquot.common.errors import AliquotError


class SessionError(AliquotError, RuntimeError):
    """See the module's docstring. `stated_reason` is the stable word; `acknowledged`: so many frames were done."""

    reason = "SESSION"

    def __init__(self, message: str, *, hint: str = "", reason: str = "", acknowledged: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.stated_reason = reason or type(self).reason
        self.acknowledged = acknowledged


class SessionRefused(SessionError):
    """The server says why."""

    reason = "SESSION_REFUSED"


class SessionUnreachable(SessionError):
    """There was never a session."""

    reason = "SESSION_UNREACHABLE"


class SessionLost(SessionError):
    """There was a session. What it had on the device is gone; begin again, from a checkpoint if there is one."""

    reason = "SESSION_LOST"


class SessionLeaseEnded(SessionError):
    """`end_reason` is the lease's: PREEMPTED, EXPIRED, DRAINED, RELEASED, …; empty: not known."""

    reason = "SESSION_LEASE_ENDED"

    def __init__(
        self, message: str, *, hint: str = "", reason: str = "", acknowledged: int = 0, end_reason: str = ""
    ) -> None:
        super().__init__(message, hint=hint, reason=reason, acknowledged=acknowledged)
        self.end_reason = end_reason


class SessionClosed(SessionError):
    """Nothing is wrong, but nothing can be done any more either."""

    reason = "SESSION_CLOSED"
