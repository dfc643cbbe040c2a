"""What the raw lane says and hears on its channel: calls that are queued, questions that are waited for, faults."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import msgspec

from aliquot.remote.core import driving, language
from aliquot.remote.core.channel import Channel
from aliquot.remote.core.driving import CHUNK_HEADER, Kind
from aliquot.remote.errors import RemoteDriverError, RemoteError, RemoteMemoryError, RemoteRefusedError


class Link:
    """A session's channel. Any thread may use it; one at a time asks."""

    def __init__(self, channel: Channel) -> None:
        """Open the session. Raises `RemoteRefusedError`, and what the channel raises."""
        self._channel = channel
        self._lock = threading.RLock()
        self._handles = 0
        self._requests = 0
        self._faults: dict[int, driving.Fault] = {}
        self._dropped: deque[int] = deque()
        """Handles of things that nobody has any more: said with the next call, as they end in any thread."""
        channel.send(language.encode(driving.Open(driving.PROTOCOL)))
        answer = driving.decode(channel.receive())
        if isinstance(answer, driving.Refused):
            raise RemoteRefusedError(answer.reason)
        if not isinstance(answer, driving.Welcome):
            raise RemoteRefusedError("the server does not speak the raw lane")
        self.welcome = answer

    def handle(self) -> int:
        """A number that nothing has had."""
        with self._lock:
            self._handles += 1
            return self._handles

    def let_go(self, handle: int) -> None:
        """Nobody has the thing any more. Never blocks, so that it may be said while memory is collected."""
        self._dropped.append(handle)

    def say(self, message: msgspec.Struct) -> None:
        """Queue a call. Its error, if it fails, is raised by the next question."""
        self.send(language.encode(message))

    def send(self, frame: bytes) -> None:
        """Queue a frame."""
        with self._lock:
            while self._dropped:
                self._channel.send(language.encode(driving.Drop(self._dropped.popleft())))
            self._channel.send(frame)

    def ask(self, make: Callable[[int], msgspec.Struct], into: bytearray | None = None) -> driving.Reply:
        """The answer to a question, with the bytes that came before it.

        Raises:
            RemoteDriverError, RemoteMemoryError: it failed, or a call that was queued before it; nothing behind that
                one was done. The session goes on.
            SessionError: the session is over.
        """
        with self._lock:
            self._requests += 1
            request = self._requests
            self.say(make(request))
            while True:
                frame = self._channel.receive()
                if frame[0] == Kind.CHUNK:
                    _, of, offset = CHUNK_HEADER.unpack_from(frame)
                    if of == request and into is not None:
                        data = memoryview(frame)[CHUNK_HEADER.size :]
                        into[offset : offset + len(data)] = data
                    continue
                message = driving.decode(frame)
                if isinstance(message, driving.Fault):
                    self._faults[message.fault] = message
                elif isinstance(message, driving.Reply) and message.request == request:
                    if not message.fault:
                        return message
                    fault = self._faults.pop(message.fault)
                    self.say(driving.Resume(fault.fault))
                    raise error_of(fault)

    def close(self) -> None:
        """End the session: what it had on the device is freed."""
        self._channel.close()


def error_of(fault: driving.Fault) -> RemoteError:
    """What a program is told of a fault."""
    text = f"{fault.call}: {fault.message}" if fault.call else fault.message
    if fault.reason == "out_of_memory":
        memory = RemoteMemoryError(text)
        memory.operator = fault.call
        memory.asked_bytes, memory.used_bytes, memory.limit_bytes = (
            fault.asked_bytes, fault.used_bytes, fault.limit_bytes,
        )  # fmt: skip
        return memory
    error = RemoteDriverError(text)
    error.operator, error.code = fault.call, fault.code
    return error
