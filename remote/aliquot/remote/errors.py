"""What remote work can end in: one tree.

    AliquotError, RuntimeError
    └── RemoteError
        ├── RemoteOperatorError          an operator or a call failed there; the session can be used on
        │   ├── RemoteIndexError         … as an IndexError
        │   ├── RemoteValueError         … as a ValueError
        │   ├── RemoteTypeError          … as a TypeError
        │   ├── RemoteNotImplementedError
        │   └── RemoteDriverError        a call of CUDA's driver, in the raw lane
        ├── RemoteMemoryError            the part's memory is used up; the session can be used on
        ├── RemoteRefusedError           the ends don't fit together
        ├── CaptureError                 a step can't be captured
        └── SessionError                 the session is over, or did not begin
            ├── SessionRefused           the server does not let this client in, or does not do what it asks
            ├── SessionUnreachable       nobody answers at the endpoint, or somebody else does
            ├── SessionLost              what it had on the device is gone: the server ended, or was away too long
            ├── SessionLeaseEnded        the lease was preempted, has expired, or is otherwise over
            └── SessionClosed            this program has closed the session itself

The error that ended a session is raised by every call of it from then on. All are `RuntimeError`s as PyTorch's own.
With PyTorch, `aliquot.remote.torch.errors` adds its classes to them, such as `torch.OutOfMemoryError`.
"""

from __future__ import annotations

from aliquot.common.errors import AliquotError


class RemoteError(AliquotError, RuntimeError):
    """Something about remote work failed."""


class RemoteOperatorError(RemoteError):
    """An operator failed on the remote device. What was issued after it was not done."""

    operator: str = ""
    site: str = ""


class RemoteIndexError(RemoteOperatorError, IndexError):
    """An operator failed there with an IndexError."""

    reason = "REMOTE_OPERATOR"


class RemoteValueError(RemoteOperatorError, ValueError):
    """An operator failed there with a ValueError."""

    reason = "REMOTE_OPERATOR"


class RemoteTypeError(RemoteOperatorError, TypeError):
    """An operator failed there with a TypeError."""

    reason = "REMOTE_OPERATOR"


class RemoteNotImplementedError(RemoteOperatorError, NotImplementedError):
    """The remote device does not have the operator."""

    reason = "REMOTE_OPERATOR"


class RemoteDriverError(RemoteOperatorError):
    """A call in the raw lane failed: `operator` names it. What was issued after it was not done.

    `code` is CUDA's, where the driver refused it; 0 where the server did, before the driver saw it.
    """

    code: int = 0


class RemoteMemoryError(RemoteError, MemoryError):
    """The memory of the lease's part is used up. What was issued after the call named was not done."""

    operator: str = ""
    site: str = ""
    asked_bytes: int = 0
    used_bytes: int = 0
    """By all sessions of the part."""
    limit_bytes: int = 0


class RemoteRefusedError(RemoteError):
    """The server refuses the session: its text says which versions differ."""


class CaptureError(RemoteError):
    """A step can't be captured: its text says why, and where."""

    reason = "REMOTE_CAPTURE"


class SessionError(RemoteError):
    """A session ended or did not begin. `stated_reason` is the stable word; `acknowledged`: frames that were done."""

    def __init__(self, message: str, *, hint: str = "", reason: str = "", acknowledged: int = 0) -> None:
        super().__init__(message, hint=hint)
        self.stated_reason = reason or type(self).reason
        self.acknowledged = acknowledged


class SessionRefused(SessionError):
    """The server says why."""


class SessionUnreachable(SessionError):
    """There was never a session."""


class SessionLost(SessionError):
    """There was a session. What it had on the device is gone; begin again, from a checkpoint if there is one."""


class SessionLeaseEnded(SessionError):
    """`end_reason` is the lease's: PREEMPTED, EXPIRED, DRAINED, RELEASED, …; empty: not known."""

    def __init__(
        self, message: str, *, hint: str = "", reason: str = "", acknowledged: int = 0, end_reason: str = ""
    ) -> None:
        super().__init__(message, hint=hint, reason=reason, acknowledged=acknowledged)
        self.end_reason = end_reason


class SessionClosed(SessionError):
    """Nothing is wrong, but nothing can be done any more either."""


class NotOnRemoteError(RemoteError, NotImplementedError):
    """A feature that remote devices don't have. `feature` is its name."""

    reason = "REMOTE"

    def __init__(self, feature: str, instead: str = "") -> None:
        then = f"; {instead}" if instead else ""
        super().__init__(f"{feature} does not work on a remote GPU (docs/remote-scripts.md){then}")
        self.feature = feature
