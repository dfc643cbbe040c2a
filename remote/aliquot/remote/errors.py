"""What remote work can end in.

    RemoteError
    ├── RemoteOperatorError          an operator failed there; its text names the line that issued it
    │   ├── RemoteIndexError         … as an IndexError
    │   ├── RemoteValueError         … as a ValueError
    │   ├── RemoteTypeError          … as a TypeError
    │   └── RemoteNotImplementedError
    ├── RemoteOutOfMemoryError       the lease's memory is used up; the session can be used on
    ├── RemoteRefusedError           the ends don't fit together
    └── CaptureError                 a step can't be captured

They are `RuntimeError`s as PyTorch's own. With PyTorch, `aliquot.remote.torch.errors` adds its classes to them.
"""

from __future__ import annotations


class RemoteError(RuntimeError):
    """Something about remote work failed."""


class RemoteOperatorError(RemoteError):
    """An operator failed on the remote device. What was issued after it was not done."""

    operator: str = ""
    site: str = ""


class RemoteIndexError(RemoteOperatorError, IndexError):
    """An operator failed there with an IndexError."""


class RemoteValueError(RemoteOperatorError, ValueError):
    """An operator failed there with a ValueError."""


class RemoteTypeError(RemoteOperatorError, TypeError):
    """An operator failed there with a TypeError."""


class RemoteNotImplementedError(RemoteOperatorError, NotImplementedError):
    """The remote device does not have the operator."""


class RemoteRefusedError(RemoteError):
    """The server refuses the session: its text says which versions differ."""


class CaptureError(RemoteError):
    """A step can't be captured: its text says why, and where."""
