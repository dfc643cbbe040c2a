"""What can go wrong with a lease that is used from elsewhere.

    AliquotError
     └── RemoteError
          ├── RemoteRefused       the server does not let this client in, or does not do what it asks
          ├── RemoteUnreachable   nobody answers at the endpoint, or somebody else does
          ├── RemoteLost          what the session had on the server is gone: the server ended, or was away for too long
          ├── RemoteLeaseEnded    the lease was preempted, has expired, or is otherwise over
          └── RemoteClosed        this program has closed the session itself

An error that ended a session is raised by every call of it from then on.
"""

from __future__ import annotations

from aliquot.common.errors import AliquotError


class RemoteError(AliquotError):
    """See the module's docstring. `stated_reason` is the stable word; `acknowledged`: so many frames were done."""

    reason = "REMOTE"

    def __init__(self, message: str, *, hint: str = "", reason: str = "", acknowledged: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.stated_reason = reason or type(self).reason
        self.acknowledged = acknowledged


class RemoteRefused(RemoteError):
    """The server says why."""

    reason = "REMOTE_REFUSED"


class RemoteUnreachable(RemoteError):
    """There was never a session."""

    reason = "REMOTE_UNREACHABLE"


class RemoteLost(RemoteError):
    """There was a session. What it had on the device is gone; begin again, from a checkpoint if there is one."""

    reason = "REMOTE_LOST"


class RemoteLeaseEnded(RemoteError):
    """`end_reason` is the lease's: PREEMPTED, EXPIRED, DRAINED, RELEASED, …; empty: not known."""

    reason = "REMOTE_LEASE_ENDED"

    def __init__(
        self, message: str, *, hint: str = "", reason: str = "", acknowledged: int = 0, end_reason: str = ""
    ) -> None:
        super().__init__(message, hint=hint, reason=reason, acknowledged=acknowledged)
        self.end_reason = end_reason


class RemoteClosed(RemoteError):
    """Nothing is wrong, but nothing can be done any more either."""

    reason = "REMOTE_CLOSED"
