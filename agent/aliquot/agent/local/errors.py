"""What the local socket refuses, each with a stable reason and a hint.

LocalError
├── PeerUnknown      the kernel can't say who connected
├── LeaseNotHere     no running slice of this lease (and member) on this node
├── WrongSecret      the secret is not the lease's
├── UidMismatch      another user's processes are in this lease
├── PidNotYours      the process to attach belongs to another user
├── NotPermitted     only root and the agent's own user may
├── PidProtected     the process to attach is the agent, or init
├── ProcessGone      the process to attach has ended
├── NotActive        its limit is not set (yet)
├── StillUsing       a process that holds device memory can't be detached
└── Busy             too many connections
"""

from __future__ import annotations

from aliquot.common.errors import AliquotError


class LocalError(AliquotError):
    """A request on the local socket was refused."""


class PeerUnknown(LocalError):
    """The kernel can't say who connected."""


class LeaseNotHere(LocalError):
    """No running slice of this lease (and member) is on this node."""


class WrongSecret(LocalError):
    """The secret is not the lease's."""


class UidMismatch(LocalError):
    """Another user's processes are in this lease."""


class PidNotYours(LocalError):
    """The process to attach belongs to another user."""


class NotPermitted(LocalError):
    """Only root and the agent's own user may."""


class PidProtected(LocalError):
    """The process to attach is the agent, or the agent depends on it."""


class ProcessGone(LocalError):
    """The process to attach has ended."""


class NotActive(LocalError):
    """The slice's limit is not set (yet), so a process would run without one."""


class StillUsing(LocalError):
    """A process that holds device memory can't leave its lease: nobody would answer for that memory."""


class Busy(LocalError):
    """Too many connections at once."""
