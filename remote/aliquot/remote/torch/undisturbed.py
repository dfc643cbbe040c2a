"""Regions in which no signal handler of the program runs: it could use the device, and wait there for itself.

Python runs handlers in the main thread between any two of its instructions, also while that holds a lock. Handlers that
were wrapped (`deferring`; programs of `aliquot run --remote` have theirs wrapped) run when the region is left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

_main = threading.main_thread
_ident = threading.get_ident


class _Region:
    """Entered and left like a lock, any number of times; other threads than the main one pass through."""

    __slots__ = ("deferred", "depth")

    def __init__(self) -> None:
        self.depth = 0
        self.deferred: list[tuple[Handler, int]] = []

    def __enter__(self) -> None:
        if _ident() == _main().ident:
            self.depth += 1

    def __exit__(self, *_: object) -> None:
        if _ident() == _main().ident:
            self.depth -= 1
            while self.deferred and not self.depth:
                handler, number = self.deferred.pop(0)
                handler(number, None)


undisturbed = _Region()


class UndisturbedLock:
    """A lock that its thread may take again, within which no wrapped handler runs."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        undisturbed.__enter__()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        undisturbed.__exit__()


def deferring(handler: Handler) -> Handler:
    """The same handler, but that it waits until such a region is left."""

    @wraps(handler)
    def handle(number: int, frame: FrameType | None) -> Any:
        if undisturbed.depth:
            undisturbed.deferred.append((handler, number))
            return None
        return handler(number, frame)

    return handle
