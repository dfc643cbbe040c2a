"""The client's end: a `Channel` whose connection is a background thread's affair.

A frame is handed over in a queue; threads of the channel's own send, receive, and connect again where a connection
broke. What was sent and not acknowledged is kept, so the session goes on where it was.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import grpc

from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.endpoint import Endpoint
from aliquot.remote.core.versions import VERSION_MAX, VERSION_MIN
from aliquot.remote.core.window import DOWN_LIMITS, TELL_AFTER_S, Limits, Receiving, Sending, WindowError
from aliquot.remote.errors import (
    SessionClosed,
    SessionError,
    SessionLeaseEnded,
    SessionLost,
    SessionRefused,
    SessionUnreachable,
)
from aliquot.remote.wire.options import CLIENT_OPTIONS
from aliquot.remote.wire.pinning import pinned_credentials
from aliquot.v1 import remote_pb2, remote_pb2_grpc

log = logging.getLogger(__name__)

CONNECT_S = 10.0
CLOSE_S = 2.0
_FIRST_RETRY_S, _RETRY_MAX_S = 0.05, 1.0
_LOST = frozenset({"UNKNOWN_SESSION", "SESSION_EXPIRED", "ENGINE_FAILED"})
_STOPPED = frozenset({"STOPPING", "STOPPED"})


@dataclass(frozen=True, slots=True)
class Notice:
    """The lease or its process is being ended: after `grace_s` the session is gone."""

    reason: str
    detail: str
    grace_s: float


@dataclass(frozen=True, slots=True)
class Opening:
    """What a session is to use, and by what right."""

    lease_id: str
    lease_epoch: int
    tenant: str
    slice_id: str
    credential: str = field(repr=False)
    engine: str


class Locate(Protocol):
    """Knows what has become of the lease."""

    def __call__(self, *, stopped: bool) -> Endpoint | None:
        """Where it is served now; None: not known at the moment. Asked whenever a connection broke; `stopped`: the
        server has said goodbye. Raises the `SessionError` that ends the session, where the lease has ended.
        """


class RemoteChannel:
    """See `aliquot.remote.core.channel.Channel`. `open_channel` makes one."""

    def __init__(
        self,
        endpoint: Endpoint,
        opening: Opening,
        locate: Locate | None,
        on_notice: Callable[[Notice], None] | None,
        connect_s: float,
    ) -> None:
        self._connect_s = connect_s
        self._make_locks()
        self._endpoint = endpoint
        self._opening = opening
        self._locate = locate
        self._on_notice = on_notice
        self._sending = Sending(Limits())
        self._receiving = Receiving(DOWN_LIMITS)
        self._inbox: deque[bytes] = deque()
        self._taken_bytes = 0
        self._blocked = 0
        """Threads that wait for room."""
        self._sender_sleeps = False
        self._connection = 0
        self._welcomed = False
        self._session = b""
        self._resume_s = 0.0
        self._closing = False
        self._error: SessionError | None = None
        self._call: grpc.Call | None = None
        self._credentials: grpc.ChannelCredentials | None = None
        self._waits = [0, 0.0]
        self._moved = [0, 0, 0, 0]
        self._resumed = 0
        self.memory_bytes = 0
        """Of the part, as the server says."""
        self.server_software = ""
        self.notice: Notice | None = None
        """The last one, if there was one."""
        self._thread = threading.Thread(target=self._run, name="aliquot-remote", daemon=True)
        _channels.add(self)
        self._thread.start()

    def _make_locks(self) -> None:
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        """The sender may have something to do."""
        self._arrived = threading.Condition(lock)
        """A frame has come, or the session has ended."""
        self._room = threading.Condition(lock)
        """There may be room to send, or the session has ended."""

    def abandon(self) -> None:
        """This is a fork of the program: the session is the other's, and whatever held the locks is not here."""
        self._make_locks()
        self._closing = True
        self._error = SessionClosed(
            "the session is of the program that this one was forked from",
            hint="open one of its own here, or use it there alone",
        )

    # -- the channel

    def send(self, frame: bytes) -> None:
        """See `Channel`."""
        size = len(frame)
        if size > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {size} bytes; {FRAME_BYTES_MAX} are allowed")
        with self._changed:
            self._check()
            if not self._sending.has_room(size):
                self._wait_for_room(size)
            self._sending.add(frame)
            if self._sender_sleeps:
                self._sender_sleeps = False
                self._changed.notify()

    def _wait_for_room(self, size: int) -> None:
        began_s = time.monotonic()
        self._blocked += 1
        self._changed.notify()  # what came meanwhile is acknowledged: the server may be waiting for that
        try:
            while self._error is None and not self._sending.has_room(size):
                self._room.wait()
        finally:
            self._blocked -= 1
            self._waits[0] += 1
            self._waits[1] += time.monotonic() - began_s
        self._check()

    def receive(self) -> bytes:
        """See `Channel`."""
        with self._changed:
            if not self._inbox:
                began_s = time.monotonic()
                while not self._inbox and self._error is None:
                    self._arrived.wait()
                self._waits[0] += 1
                self._waits[1] += time.monotonic() - began_s
            if not self._inbox:
                self._check()
            frame = self._inbox.popleft()
            if self._receiving.held > len(self._inbox):
                self._receiving.finish(frame)
                self._taken_bytes += len(frame)
                if self._receiving.owes_much(self._taken_bytes):
                    self._wake_sender()
            return frame

    def close(self) -> None:
        """See `Channel`. What was not done yet is not done any more."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._fail(SessionClosed("the session was closed by this program"))
            self._wake_sender()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive() and self._call is not None:
                self._call.cancel()

    @property
    def acknowledged(self) -> int:
        """So many frames were done by the server."""
        return self._sending.acknowledged

    @property
    def error(self) -> SessionError | None:
        """What ended the session, if something did."""
        return self._error

    def figures(self) -> dict[str, float]:
        """What went over it so far; waits are those of its callers."""
        with self._changed:
            return {
                "frames_up": self._moved[0],
                "frames_down": self._moved[1],
                "bytes_up": self._moved[2],
                "bytes_down": self._moved[3],
                "waits": self._waits[0],
                "waited_s": self._waits[1],
                "run_ahead_frames": self._sending.end - self._sending.acknowledged,
                "run_ahead_bytes": self._sending.under_way_bytes,
                "resumed": self._resumed,
            }

    def wait_open(self) -> None:
        """Until the server has let it in. Raises what keeps it from that."""
        with self._changed:
            while not self._session and self._error is None:
                self._arrived.wait()
            self._check()

    # -- connections

    def _run(self) -> None:
        lost_s, pause_s = time.monotonic(), _FIRST_RETRY_S
        try:
            while True:
                why = self._connect()
                with self._changed:
                    self._connection += 1
                    was_welcomed, self._welcomed = self._welcomed, False
                    self._wake_sender()
                    if self._error is not None:
                        return
                if was_welcomed:
                    lost_s, pause_s = time.monotonic(), _FIRST_RETRY_S
                    self._resumed += 1
                self._still_there()
                left_s = lost_s + (self._resume_s or self._connect_s) - time.monotonic()
                if left_s <= 0:
                    raise self._given_up(why)
                with self._changed:
                    if self._error is None:
                        self._room.wait(min(pause_s, left_s))
                pause_s = min(_RETRY_MAX_S, pause_s * 2)
        except SessionError as error:
            self._end(error)
        except Exception as error:
            log.exception("a remote session has failed")
            self._end(SessionError(f"{type(error).__name__}: {error}", hint="this is a defect of aliquot"))

    def _connect(self) -> SessionUnreachable:
        """One connection, from its beginning to its end. Returns why it ended. Raises `SessionError`."""
        connection = self._connection
        try:
            if self._credentials is None:
                self._credentials = pinned_credentials(self._endpoint, self._connect_s)
        except SessionUnreachable as error:
            if error.stated_reason == "SESSION_CERTIFICATE":
                raise
            return error
        with grpc.secure_channel(self._endpoint.address, self._credentials, options=CLIENT_OPTIONS) as channel:
            call = remote_pb2_grpc.RemoteServiceStub(channel).Connect(self._messages(connection))
            self._call = call
            try:
                for message in call:
                    self._take(message)
            except grpc.RpcError as error:
                cause = (call.details() or str(error)).rpartition(": ")[2]  # behind it is all that gRPC has tried
                return SessionUnreachable(f"nobody answers at {self._endpoint.address} ({cause})")
            except WindowError as error:
                raise SessionError(f"the server breaks the protocol: {error}", reason="PROTOCOL") from error
            finally:
                call.cancel()
                self._call = None
        return SessionUnreachable("the server has closed the connection")

    def _messages(self, connection: int) -> Iterator[remote_pb2.RemoteUp]:
        opening = self._opening
        yield remote_pb2.RemoteUp(
            hello=remote_pb2.RemoteHello(
                version_min=VERSION_MIN,
                version_max=VERSION_MAX,
                software=software(),
                lease_id=opening.lease_id,
                lease_epoch=opening.lease_epoch,
                tenant=opening.tenant,
                slice_id=opening.slice_id,
                credential=opening.credential,
                engine=opening.engine,
                session=self._session,
                received=self._receiving.received,
            )
        )
        while (message := self._next(connection)) is not None:
            yield message
            if message.closing:
                return

    def _next(self, connection: int) -> remote_pb2.RemoteUp | None:
        with self._changed:
            while connection == self._connection:
                if self._welcomed:
                    if self._closing:
                        return remote_pb2.RemoteUp(closing=True)
                    if self._blocked:
                        self._acknowledge_unread()
                    if self._sending.has_unsent():
                        first, frames = self._sending.take()
                        self._moved[0] += len(frames)
                        self._moved[2] += sum(map(len, frames))
                        return self._acknowledging(remote_pb2.RemoteUp(first=first, frames=frames))
                    if self._receiving.owes() and (self._blocked or self._receiving.owes_much(self._taken_bytes)):
                        return self._acknowledging(remote_pb2.RemoteUp())
                elif self._closing:
                    return None
                owes = self._welcomed and self._receiving.owes()
                self._sender_sleeps = True
                notified = self._changed.wait(TELL_AFTER_S if owes else None)
                self._sender_sleeps = False
                if not notified and self._welcomed and self._receiving.owes() and connection == self._connection:
                    return self._acknowledging(remote_pb2.RemoteUp())
            return None

    def _acknowledging(self, message: remote_pb2.RemoteUp) -> remote_pb2.RemoteUp:
        message.acknowledged = self._receiving.told()
        self._taken_bytes = 0
        return message

    def _acknowledge_unread(self) -> None:
        """Whoever waits to send can't receive: the server must not wait for that."""
        unread = self._receiving.held
        for frame in list(self._inbox)[-unread:] if unread else ():
            self._receiving.finish(frame)

    def _wake_sender(self) -> None:
        self._sender_sleeps = False
        self._changed.notify_all()

    def _take(self, message: remote_pb2.RemoteDown) -> None:
        """What came over the connection. Raises `SessionError` and `WindowError`."""
        if message.HasField("welcome"):
            self._greeted(message.welcome)
            return
        if message.HasField("notice"):
            self._noticed(message.notice)
        with self._changed:
            if message.frames:
                new = self._receiving.accept(message.first, message.frames)
                self._inbox.extend(new)
                self._moved[1] += len(new)
                self._moved[3] += sum(map(len, new))
                self._arrived.notify_all()
                if self._blocked:
                    self._wake_sender()
            if self._sending.acknowledge(message.acknowledged) and self._blocked:
                self._room.notify_all()
        if message.HasField("end"):
            raise self._ended_by(message.end)

    def _greeted(self, welcome: remote_pb2.RemoteWelcome) -> None:
        with self._changed:
            self._sending.resume(welcome.received)
            self._sending.limit(Limits(welcome.window_bytes, welcome.window_frames))
            self._session = welcome.session
            self._resume_s = welcome.resume_ms / 1000
            self.memory_bytes = welcome.memory_bytes
            self.server_software = welcome.software
            self._welcomed = True
            self._arrived.notify_all()
            self._room.notify_all()
            self._wake_sender()

    def _noticed(self, message: remote_pb2.RemoteNotice) -> None:
        self.notice = Notice(message.reason, message.detail, message.grace_ms / 1000)
        if self._on_notice is not None:
            try:
                self._on_notice(self.notice)
            except Exception:  # it is the user's code, and must not end the session
                log.exception("a callback for notices has failed")

    # -- ends

    def _still_there(self, *, stopped: bool = False) -> None:
        """Whether it makes sense to try again. Raises `SessionError` where it does not."""
        if self._locate is None or not self._session:
            return
        now = self._locate(stopped=stopped)
        if now is not None and now != self._endpoint:
            raise self._lost("the process that served the lease has ended")

    def _ended_by(self, end: remote_pb2.RemoteEnd) -> SessionError:
        done = self.acknowledged
        if end.reason in _STOPPED:
            try:
                self._still_there(stopped=True)  # which may know why
            except SessionError as error:
                return error
            return SessionLeaseEnded(
                f"the lease is not served any more: {end.detail}", reason=end.reason, acknowledged=done
            )
        if not self._session:
            return SessionRefused(f"the server refuses the session: {end.detail}", reason=end.reason)
        if end.reason in _LOST:
            return self._lost(end.detail, end.reason)
        if end.reason == "CLOSED":
            return SessionClosed("the session is closed")
        return SessionError(f"the server has ended the session: {end.detail}", reason=end.reason, acknowledged=done)

    def _given_up(self, why: SessionUnreachable) -> SessionError:
        return self._lost(f"{why.message}, for {self._resume_s:g} s") if self._session else why

    def _lost(self, why: str, reason: str = "") -> SessionLost:
        return SessionLost(
            f"its session is lost, with all that it had on the device: {why}",
            hint="begin again, from a checkpoint if there is one",
            reason=reason,
            acknowledged=self.acknowledged,
        )

    def _end(self, error: SessionError) -> None:
        with self._changed:
            self._fail(error)
            self._connection += 1
            self._wake_sender()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)  # raised again and again: where it was before is not of interest

    def _fail(self, error: SessionError) -> None:
        if self._error is None:
            self._error = error
        self._arrived.notify_all()
        self._room.notify_all()


def open_channel(
    endpoint: Endpoint,
    opening: Opening,
    *,
    locate: Locate | None = None,
    on_notice: Callable[[Notice], None] | None = None,
    connect_s: float = CONNECT_S,
) -> RemoteChannel:
    """A session of its own with the process that serves a lease. Raises `SessionUnreachable`, after `connect_s`, and
    `SessionRefused`.
    """
    channel = RemoteChannel(endpoint, opening, locate, on_notice, connect_s)
    try:
        channel.wait_open()
    except BaseException:
        channel.close()
        raise
    return channel


_channels: weakref.WeakSet[RemoteChannel] = weakref.WeakSet()


def _abandon_all() -> None:
    for channel in list(_channels):
        channel.abandon()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)


def software() -> str:
    """What this end is, for people."""
    try:
        return f"aliquot {version('aliquot')}"
    except PackageNotFoundError:
        return "aliquot"
