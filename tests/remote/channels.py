"""Channels for tests: an engine in a thread of this process, or in a process of its own behind a socket.

The product's transport is another; these only carry frames in order.
"""

from __future__ import annotations

import queue
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable

from aliquot.remote.core.channel import Engine, EngineFactory

_LENGTH = struct.Struct("<I")


class LocalChannel:
    """Frames to an engine in a thread, and back."""

    def __init__(self, factory: EngineFactory) -> None:
        self._up: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._down: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.engine: Engine = factory(self._down.put)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while (frame := self._up.get()) is not None:
            self.engine.handle(frame)
        self.engine.close()

    def send(self, frame: bytes) -> None:
        self._up.put(frame)

    def receive(self) -> bytes:
        return self._down.get(timeout=60)

    def close(self) -> None:
        self._up.put(None)
        self._thread.join()


def read_exactly(read: Callable[[int], bytes], count: int) -> bytes:
    parts = []
    while count:
        part = read(min(count, 1 << 20))
        if not part:
            raise ConnectionError("the other end is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def read_frame(read: Callable[[int], bytes]) -> bytes:
    (size,) = _LENGTH.unpack(read_exactly(read, 4))
    return read_exactly(read, size)


class ServerProcess:
    """A process that serves each connection with an engine of its own; one thread runs a connection's operators."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = f"{self._folder.name}/server"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote.channels", self.path], stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "serving\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self, memory_bytes: int = 1 << 34) -> ProcessChannel:
        return ProcessChannel(self.path, memory_bytes)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._folder.cleanup()


class ProcessChannel:
    """Frames to an engine of a server process, and back."""

    def __init__(self, path: str, memory_bytes: int) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = self._socket.makefile("rb", buffering=1 << 16)
        self.send(str(memory_bytes).encode())

    def send(self, frame: bytes) -> None:
        self._socket.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        return read_frame(self._reader.read)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


def serve_connection(connection: socket.socket, blobs: object) -> None:
    from aliquot.remote.server.blobs import Blobs
    from aliquot.remote.server.engine import Settings, engine_factory

    assert isinstance(blobs, Blobs)
    reader = connection.makefile("rb", buffering=1 << 16)
    settings = Settings(memory_bytes=int(read_frame(reader.read)), threads=1, blobs=blobs)
    engine = engine_factory(settings)(lambda frame: connection.sendall(_LENGTH.pack(len(frame)) + frame))
    try:
        while True:
            engine.handle(read_frame(reader.read))
    except ConnectionError:
        engine.close()
        reader.close()
        connection.close()


def serve(path: str) -> None:
    from aliquot.remote.server.blobs import Blobs

    blobs = Blobs(1 << 28)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_connection, args=(connection, blobs), daemon=True).start()


if __name__ == "__main__":
    serve(sys.argv[1])
