"""A process that serves the raw lane on a Unix socket, and channels to it; frames have their length before them.

python -m tests.remote_cuda.serving SOCKET MEMORY_BYTES
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from aliquot.remote.server.doorkeeper import Part

_LENGTH = struct.Struct("<I")


def read_frame(read: Callable[[int], bytes]) -> bytes:
    """The next frame. Raises `ConnectionError` at the end."""
    head = read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise ConnectionError("the other end is gone")
    return read(_LENGTH.unpack(head)[0])


class FrameChannel:
    """A client's end."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._socket.settimeout(60)
        self._reader = self._socket.makefile("rb", buffering=1 << 16)

    def send(self, frame: bytes) -> None:
        self._socket.sendall(_LENGTH.pack(len(frame)) + frame)

    def receive(self) -> bytes:
        return read_frame(self._reader.read)

    def close(self) -> None:
        self._reader.close()
        self._socket.close()


def _serve(connection: socket.socket, part: Part) -> None:
    from aliquot.remote.server.driver import make

    engine = make(part, lambda frame: connection.sendall(_LENGTH.pack(len(frame)) + frame))
    reader = connection.makefile("rb", buffering=1 << 16)
    try:
        while True:
            engine.handle(read_frame(reader.read))
    except OSError:
        pass
    finally:
        engine.close()
        reader.close()
        connection.close()


def main() -> None:
    """Serve until the process is ended."""
    part = Part("l-1.1.0", 0, "GPU-1", int(sys.argv[2]), 250, "l-1", "research")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen()
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, part), daemon=True).start()


if __name__ == "__main__":
    main()
