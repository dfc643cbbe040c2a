"""A thread that waits for events of the driver, such as XIDs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import msgspec

from aliquot.agent.core.samples import DeviceEvent
from aliquot.agent.devices.base import DeviceBackend, DeviceError

log = logging.getLogger(__name__)

WAIT_MS = 500
RETRY_S = 5.0
MAX_PENDING = 1_000


class EventWatcher(msgspec.Struct, eq=False):
    """Hands events to a coroutine function in the event loop, with how often each has come since it was last taken: a
    storm of one event keeps no other from being heard. The thread is a daemon: a driver that does not come back from
    waiting must not keep the agent from ending.

    `tell` takes why events are not heard; empty: they are.
    """

    backend: DeviceBackend
    take: Callable[[DeviceEvent, int], Coroutine[Any, Any, None]]
    tell: Callable[[str], None] = lambda why_deaf: None
    _told: str | None = None
    _stopping: threading.Event = msgspec.field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _pending: dict[DeviceEvent, int] = {}
    _come: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _paused: threading.Event = msgspec.field(default_factory=threading.Event)
    _waiting: threading.Lock = msgspec.field(default_factory=threading.Lock)
    """Held while the thread is in the driver."""

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, args=(loop,), name="device events", daemon=True)
        self._thread.start()
        try:
            while True:
                await self._come.wait()
                self._come.clear()
                while self._pending:
                    event = next(iter(self._pending))
                    await self.take(event, self._pending.pop(event))
        finally:
            self._stopping.set()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """Within it the thread is not in the driver. Raises `DeviceError` where it does not come back from there."""
        self._paused.set()
        try:
            if not await asyncio.to_thread(self._waiting.acquire, timeout=2 * WAIT_MS / 1000 + 1):
                raise DeviceError("waiting for device events does not come back")
            try:
                yield
            finally:
                self._waiting.release()
        finally:
            self._paused.clear()

    async def gone(self) -> bool:
        """Whether the thread has left the driver. Waits for it a little longer than the driver may keep it."""
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, WAIT_MS / 1000 + 1)
        return self._thread is None or not self._thread.is_alive()

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            if self._paused.is_set():
                self._stopping.wait(0.05)
                continue
            try:
                with self._waiting:
                    events = () if self._paused.is_set() else self.backend.wait_events(WAIT_MS)
                    why_deaf = self.backend.deaf()
            except DeviceError as error:
                self._say(loop, error.message)
                self._stopping.wait(RETRY_S)
                continue
            self._say(loop, why_deaf)
            for event in events:
                if loop.is_closed():
                    return
                loop.call_soon_threadsafe(self._put, event)

    def _say(self, loop: asyncio.AbstractEventLoop, why_deaf: str) -> None:
        if why_deaf != self._told and not loop.is_closed():
            self._told = why_deaf
            loop.call_soon_threadsafe(self.tell, why_deaf)

    def _put(self, event: DeviceEvent) -> None:
        if event not in self._pending and len(self._pending) == MAX_PENDING:
            log.error("too many different device events at once: %s of %s was dropped", event, event.uuid)
            return
        self._pending[event] = self._pending.get(event, 0) + 1
        self._come.set()
