"""Time as a busy machine deserves it: a test that hangs is ended, one that merely waits for a processor is not.

Seconds in which many more want to run than there are processors count for less: with eight times as many, an eighth.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

_LOOK_EVERY_S = 2.0
_GRACE_S = 60.0
"""After it was told that its time is over, what a test may still need before its process is ended."""


def slowness() -> float:
    """How many want each processor, at least 1: so much longer everything takes."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Allowance:
    """Seconds that pass more slowly on a busy machine."""

    def __init__(
        self, seconds: float, clock: Callable[[], float] = time.monotonic, slow: Callable[[], float] = slowness
    ) -> None:
        self._left_s, self._clock, self._slow = seconds, clock, slow
        self._seen_s = clock()

    def over(self) -> bool:
        """Whether it is used up. To be asked every few seconds, as how busy the machine is changes."""
        now_s = self._clock()
        self._left_s -= (now_s - self._seen_s) / self._slow()
        self._seen_s = now_s
        return self._left_s <= 0


class TimedOutError(Exception):
    """A test hangs."""


class Watch:
    """Ends a test that hangs: by an exception in it, and where that does nothing, by ending its process."""

    def __init__(self, seconds: float, show_all: Callable[[], object]) -> None:
        self._seconds, self._show_all = seconds, show_all
        self._done = threading.Event()
        self._before = signal.signal(signal.SIGALRM, self._raise)
        threading.Thread(target=self._look, args=(threading.main_thread().ident,), daemon=True).start()

    def stop(self) -> None:
        """The test is over."""
        self._done.set()
        signal.signal(signal.SIGALRM, self._before)

    def _raise(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._done.is_set():
            raise TimedOutError(f"it hangs: {self._seconds:.0f} s of a quiet machine are over")

    def _look(self, main_thread: int) -> None:
        if self._waited(self._seconds):
            return
        # To descriptor 2, which pytest shows with what the test has written.
        faulthandler.dump_traceback(2, all_threads=True)
        signal.pthread_kill(main_thread, signal.SIGALRM)
        if not self._waited(_GRACE_S):
            self._show_all()
            faulthandler.dump_traceback(2, all_threads=True)
            os._exit(1)

    def _waited(self, seconds: float) -> bool:
        """Whether the test was over within so long."""
        allowance = Allowance(seconds)
        while not allowance.over():
            if self._done.wait(_LOOK_EVERY_S):
                return True
        return False


_watches: dict[str, Watch] = {}


def pytest_timeout_set_timer(item: pytest.Item, settings: object) -> bool:
    """In place of pytest-timeout's own timer, whose seconds are the clock's and which ends the whole process."""
    if threading.current_thread() is not threading.main_thread():
        return False
    capture = item.config.pluginmanager.getplugin("capturemanager")
    show_all = capture.stop_global_capturing if capture is not None else lambda: None
    _watches[item.nodeid] = Watch(settings.timeout, show_all)  # type: ignore[attr-defined]
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """The test is over."""
    watch = _watches.pop(item.nodeid, None)
    if watch is not None:
        watch.stop()
    return watch is not None
