"""A thread that reads the kernel's log for what the driver says there of its devices.

It starts at the log's end: what was before the agent started has been judged, or was cured by the restart. It reads at
most `LINES_A_SECOND`; beyond that lines are lost, as they are where the kernel overwrites what nobody has read yet, and
the loss is counted. A log that can't be read is no fault: NVML is the other ear.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import select
import threading
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from aliquot.agent.core.kernel_log import parse
from aliquot.agent.core.samples import DeviceEvent

log = logging.getLogger(__name__)

LINES_A_SECOND = 10_000
WAIT_MS = 500
CHUNK_BYTES = 8_192
"""The kernel gives one record a read, which has at most so many."""
MAX_PENDING = 1_000
RETRY_S = 30.0


class KernelLog:
    """Hands events to a coroutine function in the event loop, like `EventWatcher`. `device_at` names the card at a bus
    address, or nothing.
    """

    def __init__(
        self,
        path: Path,
        device_at: Callable[[str], str],
        take: Callable[[DeviceEvent, int], Coroutine[Any, Any, None]],
    ) -> None:
        self._path = path
        self._device_at = device_at
        self._take = take
        self._stopping = threading.Event()
        self._pending: dict[tuple[str, DeviceEvent], int] = {}
        self._lock = threading.Lock()
        self._come = asyncio.Event()
        self.lines = 0
        """Read so far."""
        self.lost = 0
        """How often lines were overwritten, or passed over, before they were read."""

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._read_for_ever, args=(loop,), name="kernel log", daemon=True).start()
        try:
            while True:
                await self._come.wait()
                self._come.clear()
                with self._lock:
                    pending, self._pending = self._pending, {}
                for (bus, event), times in pending.items():
                    uuid = self._device_at(bus)
                    if uuid:
                        await self._take(replace(event, uuid=uuid), times)
        finally:
            self._stopping.set()

    def _read_for_ever(self, loop: asyncio.AbstractEventLoop) -> None:
        told = False
        while not self._stopping.is_set():
            try:
                self._read(loop)
            except OSError as error:
                if not told:
                    log.warning("NVML alone tells of XIDs, because the kernel's log is closed to this agent: %s", error)
                told = True
                self._stopping.wait(RETRY_S)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until it is to stop. Raises OSError."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if os.lseek(descriptor, 0, os.SEEK_CUR) == 0:
                os.lseek(descriptor, 0, os.SEEK_END)
        except OSError as error:
            if error.errno != errno.ESPIPE:  # a pipe has no past
                os.close(descriptor)
                raise
        try:
            self._follow(descriptor, loop)
        finally:
            os.close(descriptor)

    def _follow(self, descriptor: int, loop: asyncio.AbstractEventLoop) -> None:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        second, this_second, rest = 0, 0, b""
        while not self._stopping.is_set():
            now = int(time.monotonic())
            if now != second:
                second, this_second = now, 0
            if this_second >= LINES_A_SECOND:
                self.lost += 1
                self._stopping.wait(second + 1 - time.monotonic())
                continue
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                poll.poll(WAIT_MS)
                continue
            except BrokenPipeError:  # what was next has been overwritten; the next read goes on after it
                self.lost += 1
                continue
            if not chunk:
                self._stopping.wait(WAIT_MS / 1000)
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:CHUNK_BYTES]
            self.lines += len(lines)
            this_second += len(lines)
            self._note(lines, loop)

    def _note(self, lines: list[bytes], loop: asyncio.AbstractEventLoop) -> None:
        found = [event for line in lines if b"NVRM: Xid" in line and (event := parse(line.decode(errors="replace")))]
        if not found:
            return
        with self._lock:
            for event in found:
                if event in self._pending or len(self._pending) < MAX_PENDING:
                    self._pending[event] = self._pending.get(event, 0) + 1
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._come.set)
