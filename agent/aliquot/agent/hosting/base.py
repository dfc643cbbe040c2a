"""What serves a lease: the interface of the agent, and that of the service.

An entry point in the group `aliquot.hosts` names a `Service`. The agent never imports it: it starts a program
(`hosting.program`) as a process of the lease, which does. Between the two there is a socket in the lease's own folder,
so that an agent that starts again finds what it had started.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from aliquot.agent.core.model import Holder
from aliquot.common.errors import AliquotError

ENTRY_POINTS = "aliquot.hosts"
MAX_ENDPOINT_CHARS = 256
MAX_PROBLEM_CHARS = 1024
SOCKET = "socket"
"""In the folder of the lease's member."""


class HostError(AliquotError):
    """A lease could not be served."""

    reason = "HOST_FAILED"


class Service(Protocol):
    """What an entry point gives when it is called without arguments; runs in a process of the lease, which knows its
    lease by the environment that every process of a lease has.
    """

    async def start(self) -> str:
        """Begin to serve. Returns the endpoint for clients: a host and port, or a URI, of at most 256 characters.

        Runs in an event loop of its own: the agent is answered by another thread, also while this one is busy.
        """

    async def stop(self) -> None:
        """The lease ends: within its grace, after which the process is killed."""


class Prepared(Protocol):
    """What the class of a service may have beside."""

    @staticmethod
    def prepare() -> None:
        """Import what the first client will need, before there is a lease: it must not touch a device."""


class Measured(Protocol):
    """What a service may have beside."""

    def figures(self) -> Mapping[str, int]:
        """What it counts (`core.figures`); others are not looked at. Called by another thread, and must not wait."""


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the program says on its socket. Neither of the first two: it is still starting."""

    endpoint: str = ""
    problem: str = ""
    figures: dict[str, int] = msgspec.field(default_factory=dict)


class Host(Protocol):
    """Serves members of leases on this node."""

    def offered(self) -> frozenset[str]:
        """Names under which leases can be served here."""

    async def start(self, holder: Holder, name: str) -> str:
        """Have a member served, by the process that is there already if there is one. Returns the endpoint once it
        answers. Raises `HostError`; then nothing that was started is left, as far as the kernel can end it.
        """

    async def health(self, holder: Holder) -> str:
        """Empty while the member's process answers, else what is wrong."""

    async def measure(self, holder: Holder) -> Mapping[str, int] | None:
        """What the member's process counts now, by `core.figures`; None: it does not answer."""

    async def stop(self, holder: Holder) -> None:
        """The member's processes have ended: nothing is kept of it, unless it is held again."""

    async def sweep(self) -> None:
        """The agent has started: nothing is kept of members that are not held any more."""

    def figures(self) -> Mapping[Holder, Mapping[str, int]]:
        """What the processes that answer said of themselves when they were last asked, by `core.figures`."""


def valid_endpoint(text: str) -> bool:
    """Whether it is one: the process that says it belongs to a tenant."""
    return 0 < len(text) <= MAX_ENDPOINT_CHARS and text.isascii() and text.isprintable() and " " not in text
