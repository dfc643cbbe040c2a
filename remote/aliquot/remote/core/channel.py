"""The seam between what is said and how it travels.

The lanes (eager operators, captured steps, graphs, raw CUDA) turn calls into frames and back. The transport carries
frames in order, each once, over connections that may break meanwhile; it never looks into one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

FRAME_BYTES_MAX = 1 << 20
"""Of one frame. What is larger, such as a tensor that goes up or comes down, travels as several."""


class Channel(Protocol):
    """The client's end. Any thread may send; one at a time receives."""

    def send(self, frame: bytes) -> None:
        """Queue a frame behind those sent before. Blocks only where the bound on running ahead is reached.

        Raises the error that ended the session, if one did.
        """

    def receive(self) -> bytes:
        """The next frame from the server; waits for it. Raises the error that ended the session, if one did."""

    def close(self) -> None:
        """End the session: the server frees everything that it held for it."""


class Engine(Protocol):
    """The server's end of one session: what its frames do. Called by one thread, never by two at once."""

    def handle(self, frame: bytes) -> None:
        """Do what a frame says. An error of its content is answered by a frame; it never raises for one."""

    def close(self) -> None:
        """The session has ended: free everything."""


EngineFactory = Callable[[Callable[[bytes], None]], Engine]
"""Makes the engine of a new session. It is given how to answer: a function that any thread may call with a frame."""
