"""The gRPC server of a process that serves a lease: lets clients in, keeps their sessions while they are away."""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import grpc

from aliquot.remote.core.channel import Engine
from aliquot.remote.core.window import UP_LIMITS, Limits, WindowError
from aliquot.remote.server.certificate import OwnCertificate
from aliquot.remote.server.doorkeeper import Lease, Part, Refusal, admit
from aliquot.remote.server.session import ServedSession
from aliquot.remote.wire.options import SERVER_OPTIONS
from aliquot.v1 import remote_pb2, remote_pb2_grpc

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
"""Of everybody, strangers too: more are told to come back."""
SESSIONS_MAX = 16
HELLO_S = 10.0
RESUME_S = 30.0
_SWEEP_S = 0.5
_LOOK_S = 0.1
_BRIEFLY_S = 3.0
_ADD_UP = ("frames_up", "frames_down", "bytes_up", "bytes_down", "answer_waits", "resumed", "ops", "waits")

MakeEngine = Callable[[str, Part, Callable[[bytes], None]], Engine]
"""Of a name, for a part; given how to answer. Raises `LookupError` with a sentence where it can't."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much a server takes upon itself, and for how long."""

    window: Limits = UP_LIMITS
    resume_s: float = RESUME_S
    hello_s: float = HELLO_S
    sessions_max: int = SESSIONS_MAX
    connections_max: int = CONNECTIONS_MAX


class RemoteServer(remote_pb2_grpc.RemoteServiceServicer):
    """See the module's docstring."""

    def __init__(self, lease: Lease, make_engine: MakeEngine, software: str, bounds: Bounds | None = None) -> None:
        self._lease = lease
        self._make_engine = make_engine
        self._software = software
        self._bounds = bounds or Bounds()
        self._lock = threading.Lock()
        self._sessions: dict[bytes, ServedSession] = {}
        self._beginning = 0
        """Sessions whose engine is being made."""
        self._strangers: dict[int, tuple[float, Callable[[], object]]] = {}
        """Connections that have not said hello: until when they may take, and how to end them."""
        self._past: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._stopping: remote_pb2.RemoteNotice | None = None
        self._stopped = threading.Event()
        self._server: grpc.Server | None = None

    # -- its life

    def start(self, host: str, port: int, certificate: OwnCertificate) -> int:
        """Listen, on any free port where that is 0. Returns the port. Raises `OSError`."""
        connections = self._bounds.connections_max
        server = grpc.server(
            ThreadPoolExecutor(connections, thread_name_prefix="connection"),
            options=SERVER_OPTIONS,
            maximum_concurrent_rpcs=connections,
        )
        remote_pb2_grpc.add_RemoteServiceServicer_to_server(self, server)
        credentials = grpc.ssl_server_credentials([(certificate.key_pem, certificate.certificate_pem)])
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"{address} can't be listened on: {error}") from error
        server.start()
        self._server = server
        threading.Thread(target=self._sweep, name="sweeper", daemon=True).start()
        return bound

    def announce(self, grace_s: float, detail: str) -> None:
        """Tell everybody, also who comes later, that it ends after a time."""
        notice = remote_pb2.RemoteNotice(reason="STOPPING", detail=detail, grace_ms=round(grace_s * 1000))
        with self._lock:
            self._stopping = notice
            sessions = list(self._sessions.values())
        for session in sessions:
            session.notice(notice)

    def sessions(self) -> int:
        """How many there are, with a connection or without."""
        with self._lock:
            return len(self._sessions)

    def wait_empty(self, timeout_s: float) -> None:
        """Until nobody is there any more, or the time is over. Who has been away for a while is not waited for: a
        program that was killed can't close its session.
        """
        until_s = time.monotonic() + timeout_s
        while (now_s := time.monotonic()) < until_s:
            with self._lock:
                here = self._beginning + sum(each.alone_s(now_s) < _BRIEFLY_S for each in self._sessions.values())
            if not here:
                return
            self._stopped.wait(_LOOK_S)

    def stop(self, reason: str, detail: str, timeout_s: float = 2.0) -> None:
        """End every session, and say why. Returns when clients were told and engines have freed what they held, or
        after the time.
        """
        until_s = time.monotonic() + timeout_s
        with self._lock:
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.end(reason, detail)
        for session in sessions:
            session.wait_closed(max(0.0, until_s - time.monotonic()))
        if self._server is not None:
            self._server.stop(max(0.0, until_s - time.monotonic())).wait()
        self._stopped.set()

    # -- a connection

    def Connect(  # noqa: N802 - as the contract names it
        self, request_iterator: Iterator[remote_pb2.RemoteUp], context: grpc.ServicerContext
    ) -> Iterator[remote_pb2.RemoteDown]:
        """See the contract."""
        try:
            hello = self._hello(request_iterator, context)
            if hello is None:
                return
            version, part = admit(self._lease, hello, self._software)
            session = self._session(hello, part)
            connection, received = self._attach(session, hello)
        except Refusal as refusal:
            with self._lock:
                self._refused[refusal.reason] += 1
            log.info("refused: %s", refusal)
            yield remote_pb2.RemoteDown(end=remote_pb2.RemoteEnd(reason=refusal.reason, detail=refusal.detail))
            return
        if self._stopping is not None:  # announced while the session's engine was made
            session.notice(self._stopping)
        context.add_callback(lambda: session.detach(connection))
        window = self._bounds.window
        yield remote_pb2.RemoteDown(
            welcome=remote_pb2.RemoteWelcome(
                version=version,
                software=self._software,
                session=session.identity,
                received=received,
                window_bytes=window.bytes_max,
                window_frames=window.frames_max,
                resume_ms=round(self._bounds.resume_s * 1000),
                memory_bytes=part.memory_bytes,
            )
        )
        threading.Thread(
            target=self._read, args=(session, connection, request_iterator), name="reader", daemon=True
        ).start()
        try:
            yield from session.messages(connection)
        finally:
            session.detach(connection)
            if session.over:
                self._forget(session)

    def _hello(
        self, requests: Iterator[remote_pb2.RemoteUp], context: grpc.ServicerContext
    ) -> remote_pb2.RemoteHello | None:
        """The first message's; None: the stranger has gone, or was sent away. Raises `Refusal`."""
        key = id(context)
        with self._lock:
            self._strangers[key] = (time.monotonic() + self._bounds.hello_s, context.cancel)
        try:
            first = next(requests, None)
        except Exception:  # noqa: BLE001 - what gRPC raises for a call that has ended has no public class
            return None
        finally:
            with self._lock:
                self._strangers.pop(key, None)
        if first is None:
            return None
        if not first.HasField("hello"):
            raise Refusal("PROTOCOL", "the first message has no hello")
        return first.hello

    def _session(self, hello: remote_pb2.RemoteHello, part: Part) -> ServedSession:
        """The session that a client wants. Raises `Refusal`."""
        with self._lock:
            if hello.session:
                known = self._sessions.get(hello.session)
                if known is None or known.over:
                    raise Refusal("UNKNOWN_SESSION", "there is no such session here any more")
                return known
            if self._stopping is not None:
                raise Refusal("STOPPING", self._stopping.detail)
            most = self._bounds.sessions_max
            if len(self._sessions) + self._beginning >= most:
                raise Refusal("SESSIONS", f"the lease has {most} sessions already, and may not have more")
            self._beginning += 1
        session: ServedSession | None = None
        try:
            # Not under the lock: an engine may have a framework to load.
            session = ServedSession(
                secrets.token_bytes(16),
                lambda answer: self._make_engine(hello.engine, part, answer),
                self._bounds.window,
            )
        except LookupError as error:
            raise Refusal("ENGINE", str(error.args[0])) from error
        except Exception as error:
            log.exception("an engine could not start")
            raise Refusal("ENGINE_FAILED", f"{type(error).__name__}: {error}"[:1000]) from error
        finally:
            with self._lock:
                self._beginning -= 1
                if session is not None:
                    self._sessions[session.identity] = session
        return session

    def _attach(self, session: ServedSession, hello: remote_pb2.RemoteHello) -> tuple[int, int]:
        try:
            return session.attach(hello.received)
        except WindowError as error:
            raise Refusal("PROTOCOL", str(error)) from error

    def _read(self, session: ServedSession, connection: int, requests: Iterator[remote_pb2.RemoteUp]) -> None:
        with contextlib.suppress(Exception):  # what gRPC raises for a call that has ended has no public class
            for message in requests:
                if not session.take(connection, message):
                    return
        session.detach(connection)

    # -- upkeep

    def _sweep(self) -> None:
        while not self._stopped.wait(_SWEEP_S):
            now_s = time.monotonic()
            with self._lock:
                slow = [cancel for until_s, cancel in self._strangers.values() if until_s < now_s]
                sessions = list(self._sessions.values())
            for cancel in slow:
                cancel()
            for session in sessions:
                if session.alone_s(now_s) > self._bounds.resume_s:
                    session.end("SESSION_EXPIRED", f"its client was away for {self._bounds.resume_s:g} s")
                if session.over and not session.connected:
                    self._forget(session)

    def _forget(self, session: ServedSession) -> None:
        figures = session.figures()
        with self._lock:
            if self._sessions.pop(session.identity, None) is not None:
                self._past.update({key: figures[key] for key in _ADD_UP if key in figures})

    def figures(self) -> Mapping[str, int]:
        """Sums over all sessions that there were, and what those that are there hold now."""
        with self._lock:
            total = Counter(self._past)
            sessions = list(self._sessions.values())
            total["refused"] = sum(self._refused.values())
        total["sessions"] = len(sessions)
        for session in sessions:
            total.update(session.figures())
        return dict(total)
