"""Calls into a driver that may hang for ever, made so that the agent never does.

Every call runs in a worker thread and is waited for at most `timeout_s` from when it began. When it does not
come back, its device is *held*: no further call is made for it until the lost one returns, its thread is left
behind, and another worker serves the other devices. So at most one thread hangs per device, whatever the
driver does, and one bad device does not blind the agent to the others. (Where the driver's own lock is stuck,
each device hangs once, and all are held.)
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aliquot.agent.devices.base import DeviceError

T = TypeVar("T")


class DeviceHung(DeviceError):
    """A call into the driver has not come back in time, or one before it has not."""

    reason = "DEVICE_HUNG"


@dataclass(slots=True)
class _Job:
    device: str
    call: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)
    begun_s: float | None = None
    returned: bool = False
    """The call has come back, though its future may not be set yet."""


class DeviceGuard:
    """Runs blocking calls for devices. Use from one event loop."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._held: dict[str, _Job] = {}
        self._left_behind: set[threading.Thread] = set()
        self._worker = self._start()

    @property
    def held(self) -> frozenset[str]:
        """Devices with a call that has not come back."""
        with self._lock:
            return frozenset(self._held)

    async def run(self, device: str, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """The result of a blocking call for a device. Raises `DeviceHung`, or what the call raised."""
        if device in self.held:
            raise DeviceHung("an earlier call to the driver has not come back")
        job = _Job(device, call)
        self._jobs.put(job)
        future = asyncio.wrap_future(job.future)
        limit_s = timeout_s or self.timeout_s
        while not future.done():
            await asyncio.wait({future}, timeout=_remaining_s(job, limit_s))
            if not future.done() and _remaining_s(job, limit_s) <= 0 and self._give_up(job):
                raise DeviceHung(f"a call to the driver has not come back within {limit_s:g} s")
        result: T = future.result()
        return result

    def close(self) -> None:
        """Let the idle worker go. One that hangs is a daemon and ends with the process."""
        self._jobs.put(None)

    def _start(self) -> threading.Thread:
        worker = threading.Thread(target=self._serve, name="devices", daemon=True)
        worker.start()
        return worker

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.begun_s = time.monotonic()
            if not job.future.set_running_or_notify_cancel():
                continue
            error: BaseException | None = None
            result: Any = None
            try:
                result = job.call()
            except BaseException as raised:  # noqa: BLE001  it belongs to who waits for the call
                error = raised
            replaced = self._returned(job)
            with contextlib.suppress(InvalidStateError):
                if error is None:
                    job.future.set_result(result)
                else:
                    job.future.set_exception(error)
            if replaced:
                return

    def _give_up(self, job: _Job) -> bool:
        """Leave the worker with its call behind; False when the call came back in the last moment."""
        with self._lock:
            if job.returned:
                return False
            self._held[job.device] = job
            self._left_behind.add(self._worker)
            self._worker = self._start()
            # Nobody will ask for the outcome: it must not be reported as an error that was overlooked.
            job.future = Future()
            return True

    def _returned(self, job: _Job) -> bool:
        """The call came back. True when another worker has taken this one's place."""
        with self._lock:
            job.returned = True
            if self._held.get(job.device) is job:
                del self._held[job.device]
            this = threading.current_thread()
            replaced = this in self._left_behind
            self._left_behind.discard(this)
            return replaced


def _remaining_s(job: _Job, limit_s: float) -> float:
    """How long a call may still take. One that waits behind others has all its time before it."""
    if job.begun_s is None:
        return limit_s
    return max(0.0, job.begun_s + limit_s - time.monotonic())
