"""A thread that reads the kernel's log for what the driver says there of its devices.

What was in the log before the agent's first start on this boot has been judged, or was cured by the restart, so it is
passed over. From then on the number of the last record that was heard is kept: an agent that starts again hears what
came while it was away, and nothing twice. Opened, `/dev/kmsg` is at its oldest record; it knows no `SEEK_CUR`
(EINVAL), and `SEEK_END` would not say at which number it is. So the past is read through, a record a read, until there
is none.

At most `LINES_A_SECOND` are read; beyond that records are lost, as they are where the kernel overwrites what nobody has
read yet (EPIPE), and the loss is counted. A log that can't be read is a sense that is deaf.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import re
import select
import stat
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.kernel_log import ALL_CARDS, parse, read_record
from aliquot.agent.core.samples import DeviceEvent

log = logging.getLogger(__name__)

LINES_A_SECOND = 10_000
WAIT_MS = 500
CHUNK_BYTES = 8_192
"""The kernel gives one record a read, which has at most so many; less room is EINVAL."""
MAX_PENDING = 1_000
PAST_MAX = 1_000_000
"""Records of the past that are read through without the bound of a second: more than any kernel keeps."""
RETRY_S = 30.0
_CONCERNS = re.compile(rb"NVRM: |nvidia|amdgpu |i915 |xe ")
"""Whether a closer look at a line is worth its time."""


class Mark(Protocol):
    """Where the number of the last record that was heard on this boot is kept."""

    def read(self) -> int | None:
        """None: nothing was heard on this boot yet."""

    def write(self, number: int) -> None:
        """Keep it. Raises `OSError`."""


class KernelLog(msgspec.Struct, eq=False):
    """Hands events to a coroutine function in the event loop, like `EventWatcher`. `device_at` names the card at a bus
    address, or nothing; events that concern no single card have the UUID `ALL_CARDS`. `tell` takes why the log can't be
    read; empty: it can.
    """

    path: Path
    device_at: Callable[[str], str]
    take: Callable[[DeviceEvent, int], Coroutine[Any, Any, None]]
    tell: Callable[[str], None] = lambda why: None
    mark: Mark | None = None
    _stopping: threading.Event = msgspec.field(default_factory=threading.Event)
    _pending: dict[tuple[str, DeviceEvent], int] = {}
    _kept: int | None = None
    """`heard_to` when the log was opened."""
    heard_to: int | None = None
    """The last record that was heard, or was passed over as the past."""
    _told: str | None = None
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)
    _come: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    lines: int = 0
    """Read so far."""
    lost: int = 0
    """How often lines were overwritten, or passed over, before they were read."""

    async def run(self) -> None:
        """Read until cancelled."""
        loop = asyncio.get_running_loop()
        kept = self.heard_to = self.mark.read() if self.mark is not None else None
        threading.Thread(target=self._read_for_ever, args=(loop,), name="kernel log", daemon=True).start()
        try:
            while True:
                await self._come.wait()
                self._come.clear()
                with self._lock:
                    pending, self._pending = self._pending, {}
                    heard_to = self.heard_to
                for (bus, event), times in pending.items():
                    uuid = bus if bus == ALL_CARDS else self.device_at(bus)
                    if uuid:
                        await self.take(replace(event, uuid=uuid), times)
                    else:
                        log.warning("the kernel's log tells %s of %s, where no card of this agent is", event, bus)
                if heard_to is not None and heard_to != kept:  # only now: what was not taken is heard again
                    kept = heard_to
                    await asyncio.to_thread(self._keep, heard_to)
        finally:
            self._stopping.set()

    def _keep(self, number: int) -> None:
        if self.mark is not None:
            with contextlib.suppress(OSError):  # then a few records are heard twice
                self.mark.write(number)

    def _read_for_ever(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            try:
                self._read(loop)
            except OSError as error:
                self._say(loop, f"{self.path} can't be read: {error.strerror or error}")
                self._stopping.wait(RETRY_S)

    def _say(self, loop: asyncio.AbstractEventLoop, why_deaf: str) -> None:
        if why_deaf != self._told:
            self._told = why_deaf
            _soon(loop, self.tell, why_deaf)

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Until it is to stop. Raises OSError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            kernels_own = stat.S_ISCHR(os.fstat(descriptor).st_mode)
            if kernels_own:
                self._kept = self.heard_to
            else:
                _skip_past(descriptor)
            self._follow(descriptor, loop, numbered=kernels_own)
        finally:
            os.close(descriptor)

    def _follow(self, descriptor: int, loop: asyncio.AbstractEventLoop, *, numbered: bool) -> None:
        """`numbered`: it begins with the past, and each record has a number of its own."""
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        second, this_second, rest = 0, 0, b""
        past = numbered
        while not self._stopping.is_set():
            now = int(time.monotonic())
            if now != second:
                second, this_second = now, 0
            if this_second >= (PAST_MAX if past else LINES_A_SECOND):
                past = False
                self.lost += 1
                self._stopping.wait(second + 1 - time.monotonic())
                continue
            try:
                chunk = os.read(descriptor, CHUNK_BYTES)
            except BlockingIOError:
                if past:
                    past = False
                    _soon(loop, self._come.set)  # the past is passed over: that is worth being kept
                self._say(loop, "")
                poll.poll(WAIT_MS)
                continue
            except BrokenPipeError:  # what was next has been overwritten; the next read goes on after it
                self.lost += 1
                continue
            if not past:
                self._say(loop, "")
            if not chunk:
                self._stopping.wait(WAIT_MS / 1000)
                continue
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[:CHUNK_BYTES]
            self.lines += len(lines)
            this_second += len(lines)
            if past:
                lines = [line for line in lines if self._is_new(line)]
            self._note(lines, loop, numbered=numbered)

    def _is_new(self, line: bytes) -> bool:
        """Whether a record of the past came after the last that was heard. Without one, all of the past is known."""
        record = read_record(line.decode(errors="replace"))
        if record is None:
            return False  # a record's dictionary, which says nothing that is wanted
        if self._kept is None:
            self.heard_to = record.number
            return False
        return record.number > self._kept

    def _note(self, lines: list[bytes], loop: asyncio.AbstractEventLoop, *, numbered: bool) -> None:
        found = [
            (event, text)
            for line in lines
            if _CONCERNS.search(line) and (event := parse(text := line.decode(errors="replace")))
        ]
        if not found:
            return
        with self._lock:
            for event, text in found:
                if event in self._pending or len(self._pending) < MAX_PENDING:
                    self._pending[event] = self._pending.get(event, 0) + 1
                record = read_record(text) if numbered else None
                if record is not None:
                    self.heard_to = record.number
        _soon(loop, self._come.set)


def _skip_past(descriptor: int) -> None:
    """Of a file in place of the kernel's device. Raises OSError."""
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError as error:
        if error.errno != errno.ESPIPE:  # a pipe has no past
            raise


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(call, *arguments)
