"""An asyncio event loop whose time is simulated: it never waits, it jumps to the next moment when something happens.

Everything that runs here belongs to a `Process` of the simulated world, found through a context variable, so that
tasks, timers and callbacks inherit it without knowing. A process can be killed (nothing of it ever runs again, not even
a `finally`, as after a SIGKILL), frozen (as by SIGSTOP) and thawed. What would run in a thread runs on the loop after a
delay, so that there is exactly one order of events, and it depends on the seed alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import math
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

US_PER_S = 1_000_000
US_PER_MS = 1_000
_64_BITS = (1 << 64) - 1

STEPS_AT_ONCE_MAX = 200_000
"""More than this many callbacks without any time passing are a loop that never ends."""


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


class Process:
    """What lives and dies together: a coordinator, an agent, a launcher, or the world itself."""

    __slots__ = ("alive", "context", "delayed", "frozen", "host", "name", "on_exit", "stalls_us", "tasks")

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen = False
        self.delayed: deque[Handle] = deque()
        self.tasks: set[asyncio.Task[Any]] = set()
        """Strong references: nothing is collected, and no `finally` runs, at a moment that the seed does not decide."""
        self.on_exit: list[Callable[[], None]] = []
        self.stalls_us = 0
        """How long a worker thread takes on top of what it usually takes."""
        self.host: Any = None
        """The simulated machine it runs on, where that matters."""
        self.context = contextvars.Context()
        """In which its plain callbacks run, and from which its tasks start."""
        self.context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Handle:
    """A callback that will run, unless cancelled."""

    __slots__ = ("args", "callback", "context", "process", "when_us")

    def __init__(
        self, callback: Callable[..., object] | None, args: tuple[Any, ...], context: contextvars.Context, when_us: int
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.process = context[PROCESS]
        self.when_us = when_us

    def cancel(self) -> None:
        """Not any more."""
        self.callback = None
        self.args = ()

    def cancelled(self) -> bool:
        """Whether it will not run."""
        return self.callback is None

    def when(self) -> float:
        """In seconds of the loop's clock."""
        return self.when_us / US_PER_S


class Stuck(RuntimeError):
    """Nothing is left to happen."""


class SimLoop:
    """See the module's docstring. `asyncio` finds it by `running`, and asks no more of it than what is here."""

    def __init__(self, thread_latency_us: Callable[[], int]) -> None:
        self.now_us = 0
        self.steps = 0
        self.moments = 0
        """A fingerprint of all moments at which something happened. Two messages that change places show here at once,
        as each takes the delay that was drawn for the other, however long it is until anything else comes of it.
        """
        self.errors: list[str] = []
        """Exceptions that nobody caught: each is a defect of what is simulated, or of the simulation."""
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[int, int, Handle]] = []
        self._numbers = 0
        self._thread_latency_us = thread_latency_us
        self._kept: list[Process] = []
        self._itself: Any = self

    # -- running

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop."""
        asyncio._set_running_loop(self._itself)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def run_until(self, until_us: int, violations: Sequence[str] = ()) -> bool:
        """Let everything happen up to then. Ends early, with True, when something was violated or went uncaught."""
        ready, timers, errors = self._ready, self._timers, self.errors
        while True:
            stand_still = self.steps + STEPS_AT_ONCE_MAX
            while ready:
                if self.steps > stand_still:
                    self.errors.append(f"time stands still: {ready[0].callback!r} of {ready[0].process}")
                    return True
                handle = ready.popleft()
                callback = handle.callback
                if callback is None:
                    continue
                process = handle.process
                if not process.alive:
                    continue
                if process.frozen:
                    process.delayed.append(handle)
                    continue
                self.steps += 1
                try:
                    handle.context.run(callback, *handle.args)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's own handles do
                    self.errors.append(f"{process.name}: {callback!r}: {error!r}")
                if errors or violations:
                    return True
            while timers and timers[0][2].callback is None:
                heapq.heappop(timers)
            if not timers or timers[0][0] > until_us:
                self.now_us = max(self.now_us, until_us)
                return False
            when_us, _, handle = heapq.heappop(timers)
            self.now_us = max(self.now_us, when_us)
            self.moments = (self.moments * 31 + self.now_us) & _64_BITS
            ready.append(handle)

    # -- processes

    def spawn(self, name: str) -> Process:
        """A new process in which nothing runs yet."""
        process = Process(name)
        self._kept.append(process)
        return process

    def start(self, process: Process, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Run a coroutine as a part of a process."""
        return self._task(coroutine, process.context.copy(), name)

    def call_in(self, process: Process, delay_us: int, callback: Callable[..., object], *args: Any) -> Handle:
        """Call a plain function as a part of a process."""
        return self._at(self.now_us + delay_us, callback, args, process.context)

    def kill(self, process: Process) -> None:
        """At once, and for good."""
        if not process.alive:
            return
        process.alive = False
        process.delayed.clear()
        for task in process.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        for callback in process.on_exit:
            callback()

    def freeze(self, process: Process) -> None:
        """It stands still until thawed; what should have run is late."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Let it go on."""
        if process.frozen:
            process.frozen = False
            self._ready.extend(process.delayed)
            process.delayed.clear()

    # -- what asyncio asks of a loop

    def time(self) -> float:
        return self.now_us / US_PER_S

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        handle = Handle(callback, args, contextvars.copy_context() if context is None else context, self.now_us)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        return self.call_at(self.now_us / US_PER_S + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> Any:
        # Never early, and never without time passing: who waits for a moment would find it not come yet, and wait on.
        when_us = max(self.now_us + 1, math.ceil(when * US_PER_S - 0.001))
        return self._at(when_us, callback, args, contextvars.copy_context() if context is None else context)

    def _at(
        self, when_us: int, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context
    ) -> Handle:
        handle = Handle(callback, args, context, when_us)
        self._numbers += 1
        heapq.heappush(self._timers, (when_us, self._numbers, handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._itself)

    def create_task(self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None) -> Any:
        return self._task(coro, context if context is not None else contextvars.copy_context(), name or "")

    def _task(self, coroutine: Any, context: contextvars.Context, name: str) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coroutine, loop=self._itself, name=name or "task", context=context)
        tasks = context[PROCESS].tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard, context=context)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """A worker thread: the call happens, all at once, a little later."""
        future = self.create_future()

        def work() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except BaseException as error:  # noqa: BLE001 - it belongs to who waits
                if PROCESS.get().alive:
                    future.set_exception(error)
            else:
                if PROCESS.get().alive:
                    future.set_result(result)

        stalls_us = PROCESS.get().stalls_us
        self._at(self.now_us + self._thread_latency_us() + stalls_us, work, (), contextvars.copy_context())
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, asyncio.CancelledError):
            return
        self.errors.append(f"{context.get('message')}: {error!r} {context.get('task') or context.get('future') or ''}")

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: Any) -> None:
        pass

    def abandon(self) -> None:
        """The world ends: let go of everything without letting anything run."""
        for process in self._kept:
            process.alive = False
        for process in self._kept:
            for task in list(process.tasks):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                _close(task)
            process.tasks.clear()
        self._ready.clear()
        self._timers.clear()


@contextlib.contextmanager
def let_go() -> Iterator[None]:
    """What is collected meanwhile may have been in the middle of a wait: a generator that delegates to another, and is
    closed by its collection, finds that other one still running, which nobody needs to know.
    """
    before = sys.unraisablehook

    def hook(found: Any) -> None:
        if not (isinstance(found.exc_value, RuntimeError) and "already running" in str(found.exc_value)):
            before(found)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _close(task: asyncio.Task[Any]) -> None:
    """End a suspended coroutine. Its `finally` parts run into a loop that carries nothing out any more."""
    coroutine = task.get_coro()
    with contextlib.suppress(BaseException):  # nothing that it says matters now
        coroutine.close()


def current() -> Process:
    """The process that runs now."""
    return PROCESS.get()
