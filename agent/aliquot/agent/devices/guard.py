"""Calls into a driver that may hang for ever, without the agent hanging.

Each device has a worker thread of its own (a *lane*), in which its calls run one after the other. A call is waited for
at most `timeout_s` from when it began; when it does not come back, its lane is *stuck*: further calls for that device
fail at once until the lost one returns, and the other devices' lanes go on. So at most one thread hangs per device,
whatever the driver does, and one bad device does not blind the agent to the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, InvalidStateError
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from aliquot.agent.devices.base import DeviceError
from aliquot.agent.wakeup import Wakeup

T = TypeVar("T")


class Run(Protocol):
    """See `DeviceGuard.run`."""

    async def __call__(self, device: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """The result of the call."""


class DeviceHung(DeviceError):
    """A call into the driver has not come back in time, or one before it has not."""


class _Job(msgspec.Struct):
    call: Callable[[], Any]
    future: Future[Any] = msgspec.field(default_factory=Future)
    begun_s: float | None = None

    def remaining_s(self, limit_s: float) -> float:
        """How long the call may still take. One that waits behind others has all its time before it."""
        return limit_s if self.begun_s is None else max(0.0, self.begun_s + limit_s - time.monotonic())

    def hopeless(self, *, stuck: bool) -> bool:
        """Whether it waits behind a call that does not come back."""
        return stuck and self.begun_s is None


class _Lane:
    """One device's thread. It is a daemon, so that one that hangs ends with the process."""

    def __init__(self, device: str) -> None:
        self.jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self.lock = threading.Lock()
        self.current: _Job | None = None
        self.overdue: _Job | None = None
        """The job that was given up; the lane is stuck while it is the current one."""
        threading.Thread(target=self._serve, name=f"device {device}", daemon=True).start()

    @property
    def stuck(self) -> bool:
        with self.lock:
            return self.overdue is not None

    def give_up(self, job: _Job) -> bool:
        """Stop waiting for a job; False when it came back in the last moment."""
        with self.lock:
            if self.current is job:
                self.overdue = job
                return True
            return False

    def _serve(self) -> None:
        while (job := self.jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            with self.lock:
                self.current = job
                job.begun_s = time.monotonic()
            error: BaseException | None = None
            result: Any = None
            try:
                result = job.call()
            except BaseException as raised:  # noqa: BLE001  it belongs to who waits for the call
                error = raised
            with self.lock:
                given_up = self.overdue is job
                self.current = self.overdue = None
            if given_up:
                continue
            with contextlib.suppress(InvalidStateError):
                if error is None:
                    job.future.set_result(result)
                else:
                    job.future.set_exception(error)


def _tell(loop: asyncio.AbstractEventLoop, ended: Wakeup, _: Future[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended before the call
        loop.call_soon_threadsafe(ended.set)


class DeviceGuard:
    """Runs blocking calls for devices. Use from one event loop."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lanes: dict[str, _Lane] = {}
        self._open = asyncio.Event()
        """Unset while somebody has the driver for itself."""
        self._open.set()
        self._under_way: set[asyncio.Future[Any]] = set()

    @contextlib.asynccontextmanager
    async def alone(self) -> AsyncIterator[Run]:
        """Within it, only calls by the function that this gives are made; others wait. Waits for those under way."""
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            while self._under_way:
                await asyncio.wait(self._under_way)
            yield self._run
        finally:
            self._open.set()

    @property
    def stuck(self) -> frozenset[str]:
        """Devices with a call that has not come back."""
        return frozenset(device for device, lane in self._lanes.items() if lane.stuck)

    async def run(self, device: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """The result of a blocking call for a device. Raises `DeviceHung`, or what the call raised."""
        while not self._open.is_set():
            await self._open.wait()
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            return await self._run(device, call, timeout_s)
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    async def _run(self, device: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
        lane = self._lanes.get(device)
        if lane is None:
            lane = self._lanes[device] = _Lane(device)
        limit_s = timeout_s or self.timeout_s
        job = _Job(call)
        if lane.stuck:
            raise DeviceHung("an earlier call to the driver has not come back")
        # `asyncio.wait` on a wrapped future would do the same, at twice the cost: every poll comes through here.
        ended = Wakeup()
        job.future.add_done_callback(partial(_tell, asyncio.get_running_loop(), ended))
        lane.jobs.put(job)
        while True:
            try:
                await ended.wait(job.remaining_s(limit_s))
            except asyncio.CancelledError:
                job.future.cancel()
                raise
            if job.future.done():
                result: T = job.future.result()
                return result
            if job.hopeless(stuck=lane.stuck):
                job.future.cancel()
                raise DeviceHung("an earlier call to the driver has not come back")
            if job.remaining_s(limit_s) <= 0 and lane.give_up(job):
                raise DeviceHung(f"a call to the driver has not come back within {limit_s:g} s")

    def forget(self, device: str) -> None:
        """The device is not there any more: its idle threads may go. One that is stuck stays, so that there is never
        more than one of it.
        """
        for name in [name for name in self._lanes if name == device or name.endswith(f" {device}")]:
            if not self._lanes[name].stuck:
                self._lanes.pop(name).jobs.put(None)

    def close(self) -> None:
        """Let the idle threads go."""
        for lane in self._lanes.values():
            lane.jobs.put(None)
