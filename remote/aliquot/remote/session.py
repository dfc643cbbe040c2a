"""A program's use of a lease that is served: its parts, a channel to each, and what becomes of the lease.

::

    from aliquot import remote

    with remote.acquire("0.25(A100),10Gi") as session:
        channel = session.open(0, engine="torch")

What frames mean is the engine's: PyTorch's devices stand on such channels.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from aliquot.client import HeldLease, Pool, PoolError, Request, RequestOptions, Serve
from aliquot.client._holding import ENDED_HINTS
from aliquot.client.ticket import TicketPart
from aliquot.common.clock import SystemClock
from aliquot.common.closing import Closing
from aliquot.remote.core.endpoint import Endpoint, EndpointError, parse
from aliquot.remote.errors import SessionError, SessionLeaseEnded, SessionUnreachable
from aliquot.remote.ticket import VARIABLE, Ticket
from aliquot.remote.wire.client import CONNECT_S, Notice, Opening, RemoteChannel, open_channel

log = logging.getLogger(__name__)

WHY_S = 3.0
"""How long it may take until whoever holds the lease says why its process has stopped."""
_LOOK_S = 0.2

OnNotice = Callable[[Notice], None]


class Session(Closing):
    """A lease's parts, numbered from 0, and the channels to them. Any thread may use it. `connect` makes one."""

    def __init__(self, current: Callable[[], Ticket], on_notice: OnNotice | None = None) -> None:
        """`current` asks what has become of the lease; it may raise `PoolError` where nobody answers."""
        self._current = current
        self._ticket = current()
        self._on_notice = on_notice
        self._lock = threading.Lock()
        self._channels: list[RemoteChannel] = []
        self._closed = False
        self.notice: Notice | None = None
        """That the lease is being ended, once it is."""
        _open.add(self)

    @property
    def lease_id(self) -> str:
        """The lease's."""
        return self._ticket.lease_id

    @property
    def parts(self) -> tuple[TicketPart, ...]:
        """One for each device."""
        return self._ticket.parts

    def open(self, index: int = 0, *, engine: str = "torch", connect_s: float = CONNECT_S) -> RemoteChannel:
        """A channel of its own to a part. What it has on the device goes when it is closed.

        Raises `IndexError`, `SessionUnreachable`, `SessionRefused`, and `SessionLeaseEnded`.
        """
        part = self.parts[index]
        ticket = self._ticket
        now = self._ask()
        if now.ending:
            raise self._ended(now.ending, now.detail)
        endpoint = self._locate(part.slice_id, stopped=False)
        if endpoint is None:
            raise SessionUnreachable(
                f"part {index} of lease {self.lease_id} is not served at the moment",
                hint="`aliquot get` says why; it is tried again by itself",
            )
        opening = Opening(
            lease_id=ticket.lease_id,
            lease_epoch=ticket.lease_epoch,
            tenant=ticket.tenant,
            slice_id=part.slice_id,
            credential=ticket.credential,
            engine=engine,
        )

        def locate(*, stopped: bool) -> Endpoint | None:
            return self._locate(part.slice_id, stopped=stopped)

        channel = open_channel(endpoint, opening, locate=locate, on_notice=self.notify, connect_s=connect_s)
        with self._lock:
            self._channels.append(channel)
            closed = self._closed
        if closed:
            channel.close()
        return channel

    def notify(self, notice: Notice) -> None:
        """The lease is being ended. The program's callback is called once, whoever says it first."""
        with self._lock:
            if self.notice is not None:
                return
            self.notice = notice
        if self._on_notice is not None:
            self._on_notice(notice)

    def figures(self) -> dict[str, float]:
        """Sums over all channels; see `RemoteChannel.figures`."""
        total: dict[str, float] = {}
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            for key, value in channel.figures().items():
                total[key] = total.get(key, 0) + value
        return total

    def close(self) -> None:
        """Close every channel. The lease stays with whoever holds it."""
        with self._lock:
            self._closed = True
            channels, self._channels = self._channels, []
        for channel in channels:
            channel.close()
        _open.discard(self)

    def _ask(self) -> Ticket:
        try:
            return self._current()
        except PoolError as error:
            log.info("what has become of lease %s can't be asked: %s", self.lease_id, error.message)
            return self._ticket

    def _locate(self, slice_id: str, *, stopped: bool) -> Endpoint | None:
        now = self._ask()
        until_s = time.monotonic() + WHY_S
        while stopped and not now.ending and time.monotonic() < until_s:
            time.sleep(_LOOK_S)  # the process is told by its agent, the lease by its coordinator: either may be first
            now = self._ask()
        if now.lease_epoch != self._ticket.lease_epoch:
            raise self._ended("PREEMPTED", "it was granted again since, perhaps elsewhere", _AGAIN)
        part = next((each for each in now.parts if each.slice_id == slice_id), None)
        if now.ending and (stopped or part is None or not part.endpoint):
            raise self._ended(now.ending, now.detail)
        if part is None:
            raise self._ended("SHED", "the part is not the lease's any more")
        try:
            return parse(part.endpoint) if part.endpoint else None
        except EndpointError as error:
            raise SessionUnreachable(error.message, hint=error.hint) from error

    def _ended(self, reason: str, detail: str, hint: str = "") -> SessionLeaseEnded:
        said = f": {detail}" if detail else ""
        return SessionLeaseEnded(
            f"lease {self.lease_id} has ended ({reason}){said}",
            hint=hint or ENDED_HINTS.get(reason, "ask for another one, and begin again from a checkpoint"),
            end_reason=reason,
        )


def connect(lease: HeldLease | None = None, *, on_notice: OnNotice | None = None) -> Session:
    """Use a lease that is served; None: that of the `aliquot run --remote` in which this program runs.

    `on_notice` is called, from another thread, when the lease will be taken back. Raises `SessionError` where there is
    none, or its secret is not known.
    """
    if lease is None:
        name = os.environ.get(VARIABLE, "")
        if not name:
            raise SessionError(
                "this program has no lease to use",
                hint="start it by `aliquot run --remote --gpu … -- PROGRAM`, or give `connect` a lease",
            )
        path = Path(name)
        return Session(lambda: Ticket.read(path), on_notice)
    held = lease
    first = [Ticket.of(held.info)]  # its state is known: it need not be asked for at once

    def current() -> Ticket:
        return first.pop() if first else Ticket.of(held.refresh())

    session = Session(current, on_notice)
    before = held.on_notice

    def heard(stops_at_ms: int) -> None:
        if before is not None:
            before(stops_at_ms)
        grace_s = max(0.0, (stops_at_ms - SystemClock().now_ms()) / 1000)
        session.notify(Notice("STOPPING", "the pool takes the lease back", grace_s))

    held.on_notice = heard
    return session


@contextmanager
def acquire(
    gpu: str | Request,
    *,
    connection: Pool | None = None,
    wait_s: float | None = None,
    on_notice: OnNotice | None = None,
    **options: Unpack[RequestOptions],
) -> Iterator[Session]:
    """Ask for parts of GPUs wherever they are, use them while the block runs, and give them back.

    `connection`: to a pool; None: one of its own. `options` are those of `Pool.lease`. Raises what that raises, and
    what `connect` does.
    """
    if not isinstance(gpu, Request):
        options = {**options, "serve": options.get("serve", Serve.REMOTE)}
    with (
        contextlib.nullcontext(connection) if connection is not None else Pool() as connected,
        connected.lease(gpu, wait_s=wait_s, **options) as lease,
        connect(lease, on_notice=on_notice) as session,
    ):
        yield session


_AGAIN = "begin again from a checkpoint at its new place, as `aliquot run --remote --on-move restart` does by itself"
_open: weakref.WeakSet[Session] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """A program that ends without closing frees what it had at once, not when it is given up."""
    for session in list(_open):
        session.close()
