"""One session at the server: its engine and its frames, over the connections that it has one after the other."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping

from aliquot.remote.core.channel import FRAME_BYTES_MAX, Engine
from aliquot.remote.core.window import DOWN_LIMITS, TELL_AFTER_S, Limits, Receiving, Sending, WindowError
from aliquot.v1 import remote_pb2

log = logging.getLogger(__name__)


class ServedSession:
    """See the module's docstring. Any thread may use it."""

    def __init__(
        self, identity: bytes, make_engine: Callable[[Callable[[bytes], None]], Engine], limits: Limits
    ) -> None:
        self.identity = identity
        self._changed = threading.Condition()
        self._receiving = Receiving(limits)
        self._sending = Sending(DOWN_LIMITS)
        self._inbox: deque[bytes] = deque()
        self._done_bytes = 0
        """Since the client was told last."""
        self._connection = 0
        """The number of the one that counts; 0: there is none."""
        self._connections = 0
        self._alone_since_s: float | None = time.monotonic()
        self._end: remote_pb2.RemoteEnd | None = None
        self._notice: remote_pb2.RemoteNotice | None = None
        self._noticed = 0
        """The connection that has had the notice."""
        self._frames = [0, 0]
        self._bytes = [0, 0]
        self._waits = 0
        self._engine = make_engine(self._answer)
        self._thread = threading.Thread(target=self._work, name="engine", daemon=True)
        self._thread.start()

    # -- connections

    def attach(self, received: int) -> tuple[int, int]:
        """A connection whose client has `received` frames; one before it counts no more. Returns its number, and how
        many of the client's frames are here. Raises `WindowError`.
        """
        with self._changed:
            self._sending.resume(received)
            self._connections += 1
            self._connection = self._connections
            self._alone_since_s = None
            self._receiving.told()
            self._changed.notify_all()
            return self._connection, self._receiving.received

    def detach(self, connection: int) -> None:
        """A connection is gone."""
        with self._changed:
            if self._connection == connection:
                self._connection = 0
                self._alone_since_s = time.monotonic()
            self._changed.notify_all()

    def alone_s(self, now_s: float) -> float:
        """How long it has had no connection."""
        since_s = self._alone_since_s
        return 0.0 if since_s is None else now_s - since_s

    @property
    def connected(self) -> bool:
        """Whether somebody is there."""
        return self._connection != 0

    @property
    def over(self) -> bool:
        """Whether nothing more is done."""
        return self._end is not None

    def take(self, connection: int, message: remote_pb2.RemoteUp) -> bool:
        """What came over a connection. False: nothing more is read from it."""
        with self._changed:
            if connection != self._connection or self._end is not None:
                return False
            try:
                self._sending.acknowledge(message.acknowledged)
                new = self._receiving.accept(message.first, message.frames) if message.frames else []
            except WindowError as error:
                self._close("PROTOCOL", str(error))
                return False
            if message.closing:
                self._close("CLOSED", "the client has closed the session")
                return False
            self._inbox.extend(new)
            self._frames[0] += len(new)
            self._bytes[0] += sum(map(len, new))
            self._changed.notify_all()
        return True

    def messages(self, connection: int) -> Iterator[remote_pb2.RemoteDown]:
        """What goes over a connection after its welcome, until it counts no more, or the session is over."""
        while (message := self._next(connection)) is not None:
            yield message
            if message.HasField("end"):
                return

    def _next(self, connection: int) -> remote_pb2.RemoteDown | None:
        with self._changed:
            while connection == self._connection:
                if self._sending.has_unsent():
                    first, frames = self._sending.take()
                    return self._acknowledging(remote_pb2.RemoteDown(first=first, frames=frames))
                if self._notice is not None and self._noticed != connection:
                    self._noticed = connection
                    return remote_pb2.RemoteDown(notice=self._notice)
                if self._end is not None:
                    return self._acknowledging(remote_pb2.RemoteDown(end=self._end))
                owes = self._receiving.owes()
                if owes and self._receiving.owes_much(self._done_bytes):
                    return self._acknowledging(remote_pb2.RemoteDown())
                if not self._changed.wait(TELL_AFTER_S if owes else None) and self._receiving.owes():
                    return self._acknowledging(remote_pb2.RemoteDown())
            return None

    def _acknowledging(self, message: remote_pb2.RemoteDown) -> remote_pb2.RemoteDown:
        message.acknowledged = self._receiving.told()
        self._done_bytes = 0
        return message

    # -- the engine

    def _work(self) -> None:
        try:
            while (frame := self._wait_for_frame()) is not None:
                self._engine.handle(frame)
                with self._changed:
                    self._receiving.finish(frame)
                    self._done_bytes += len(frame) + 1
                    if not self._inbox or self._receiving.owes_much(self._done_bytes):
                        self._changed.notify_all()
        except Exception as error:  # a defect of an engine ends its session, not those of others
            log.exception("an engine has failed")
            self.end("ENGINE_FAILED", f"{type(error).__name__}: {error}"[:1000])
        finally:
            try:
                self._engine.close()
            except Exception:
                log.exception("an engine could not be closed")

    def _wait_for_frame(self) -> bytes | None:
        with self._changed:
            while not self._inbox and self._end is None:
                self._changed.wait()
            return None if self._end is not None else self._inbox.popleft()

    def _answer(self, frame: bytes) -> None:
        if len(frame) > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {len(frame)} bytes; {FRAME_BYTES_MAX} are allowed")
        with self._changed:
            while self._end is None and not self._sending.has_room(len(frame)):
                self._waits += 1
                self._changed.wait()
            if self._end is None:
                self._sending.add(frame)
                self._frames[1] += 1
                self._bytes[1] += len(frame)
                self._changed.notify_all()

    # -- its end

    def notice(self, notice: remote_pb2.RemoteNotice) -> None:
        """Tell the client, now or when it is back."""
        with self._changed:
            self._notice = notice
            self._changed.notify_all()

    def end(self, reason: str, detail: str) -> None:
        """Nothing more is done; the client is told why. The engine is closed once it is through with a frame."""
        with self._changed:
            self._close(reason, detail)

    def wait_closed(self, timeout_s: float) -> bool:
        """Whether everything was freed within a time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _close(self, reason: str, detail: str) -> None:
        if self._end is None:
            self._end = remote_pb2.RemoteEnd(reason=reason, detail=detail)
            self._inbox.clear()
        self._changed.notify_all()

    # -- figures

    def figures(self) -> dict[str, int]:
        """What it has done so far, and holds now."""
        with self._changed:
            found = {
                "frames_up": self._frames[0],
                "frames_down": self._frames[1],
                "bytes_up": self._bytes[0],
                "bytes_down": self._bytes[1],
                "run_ahead_frames": self._receiving.held,
                "answer_waits": self._waits,
                "resumed": max(0, self._connections - 1),
            }
        own: Callable[[], Mapping[str, int]] | None = getattr(self._engine, "figures", None)
        return found | dict(own()) if own is not None else found
