"""One session with a server: what is issued is packed and sent ahead; what is asked for is waited for.

Nothing here knows tensors. The order of things is the order in which they are put into `pending`, by whatever thread.
Putting is one call of a list's method, so it needs no lock; only sending has one.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from contextvars import ContextVar
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import msgspec
import torch

from aliquot.remote.core import language, messages
from aliquot.remote.core.bounds import HANDLES_MAX, PROTOCOL
from aliquot.remote.core.channel import FRAME_BYTES_MAX, Channel
from aliquot.remote.core.messages import DATA_HEADER, Kind
from aliquot.remote.core.recording import Shape, shape_of
from aliquot.remote.core.words import TEMPLATES_FROM, pack
from aliquot.remote.errors import CaptureError, RemoteError, RemoteRefusedError
from aliquot.remote.operators import digest
from aliquot.remote.torch.errors import from_fault
from aliquot.remote.torch.undisturbed import UndisturbedLock, undisturbed

CHUNK_BYTES = FRAME_BYTES_MAX - 64

_WORDS_FIRST = 8 * 6
_WORDS_MOST = 128 * 6
"""Sent when so many words wait: few behind a wait, so that the server begins at once, then more at a time; never so
many that a server that is as fast as its client stands still until they are there."""

_MARK_EVERY = 96
"""Frames of operators between two marks. The client runs ahead of the last mark but one at most."""

_TORCH = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120
_OWN = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120

naming: ContextVar[bool] = ContextVar("naming", default=False)
"""Whether tensors are described to the compiler: by the name that PyTorch's C++ has for their device, whatever the
program calls it.
"""


@dataclass(slots=True)
class Counters:
    """What a session has done, as its client sees it."""

    operators: int = 0
    frames: int = 0
    waits: int = 0
    waited_s: float = 0.0
    held_s: float = 0.0
    """The program was so far ahead that it had to wait."""
    replays: int = 0
    """Captured steps that were run again."""
    sent_bytes: int = 0
    received_bytes: int = 0
    data_bytes: int = 0
    """Of tensors that were sent up."""
    templates: int = 0


class Session:
    """A session over one channel: one device of one lease."""

    def __init__(self, channel: Channel, index: int) -> None:
        """Open it.

        Raises:
            RemoteRefusedError: the ends don't fit together.
        """
        self.channel = channel
        self.index = index
        self.device = torch.device("aliquot", index)
        self.pending: list[int] = []
        self.free_handles: list[int] = []
        self.live_bytes = 0
        """Of the tensors that this process knows: the server holds as much at least."""
        self.threshold = _WORDS_FIRST
        self.counters = Counters()
        self.sites: list[tuple[CodeType, int] | None] = [None]
        self.site_numbers: dict[tuple[int, int], int] = {}
        self.passed_over: dict[int, CodeType] = {}
        """Code that is not the user's, by its `id`: what code is equal to is all that it consists of, so it is slow to
        look up. Those that have a site are kept by it."""
        self.last_site = 0
        self.places: dict[tuple[int, str], list[float]] = {}
        """Where the program has stood still: of a line and what it did there, how often and for how many seconds."""
        self.closed: BaseException | None = None
        self.recording: list[int] | None = None
        self.made: list[weakref.ref[Any]] = []
        self.shapes: dict[int, Shape] = {}
        self.evictions = 0
        self.mispredicted: set[str] = set()
        """Operators of which the server made other sizes than predicted: they are asked for from then on."""
        self.arrivals: dict[int, float] = {}
        """When answers came, of requests that were put here with 0."""
        self._recordings: set[int] = set()
        self._graphs = 0
        self.entries: dict[tuple[Any, ...], Any] = {}
        self.layouts: dict[Any, Any] = {}
        self.free_templates: list[int] = []
        self._templates = TEMPLATES_FROM - 1
        self._handles = 0
        self._requests = 0
        self._faults: dict[int, messages.Fault] = {}
        self._replies: dict[int, messages.Reply] = {}
        self._chunks: dict[int, bytearray] = {}
        self._unwanted: set[int] = set()
        self._receiving = False
        self._arrived = threading.Condition()
        self._sending = UndisturbedLock()
        self._mark = 0
        self._unmarked = 0
        _open.add(self)
        self.send(messages.Hello(PROTOCOL, str(torch.__version__), digest()))
        frame = channel.receive()
        welcome = messages.decode(frame)
        if isinstance(welcome, messages.Refused):
            raise RemoteRefusedError(welcome.reason)
        if not isinstance(welcome, messages.Welcome):
            raise RemoteError("the server does not answer as one of remote GPUs does")
        self.welcome = welcome
        self.limit_bytes = welcome.memory_bytes

    # ----------------------------------------------------------------------------------------------------- issuing

    def new_handle(self) -> int:
        """A handle that no allocation has.

        Raises:
            RemoteError: too many allocations live.
        """
        try:
            return self.free_handles.pop()
        except IndexError:
            self._handles += 1
            if self._handles >= HANDLES_MAX:
                raise RemoteError(f"more than {HANDLES_MAX} tensors live at once on {self.device}") from None
            return self._handles

    def define(self, template: messages.Template) -> None:
        """Tell the server what a number in the stream will stand for."""
        self.counters.templates += 1
        self.shapes[template.number] = shape_of(template)
        self.send(template)

    def new_template(self) -> int:
        """A number that no template has any more."""
        if self.free_templates:
            return self.free_templates.pop()
        self._templates += 1
        return self._templates

    def take_recording(self) -> int:
        """A number that no captured step has."""
        number = max(self._recordings, default=-1) + 1
        self._recordings.add(number)
        return number

    def drop_recording(self, number: int, handles: list[int]) -> None:
        """Forget a captured step, and what only it used."""
        self._recordings.discard(number)
        if self.closed is None:
            request = self.request()
            self.ask(messages.Record(request, number, b"", 2, []), request)
            self.free_handles.extend(handles)

    def take_graph(self, most: int) -> int:
        """A number that no graph has.

        Raises:
            RemoteError: there are too many.
        """
        self._graphs += 1
        if self._graphs > most:
            raise RemoteError(f"more than {most} graphs were compiled for one session")
        return self._graphs - 1

    def refuse_recording(self, what: str) -> CaptureError:
        """The error of a step that can't be captured, which names the line."""
        where = self.describe(self.site(sys._getframe(1)))
        return CaptureError(f"a captured step can't wait for the server or send to it, but {what}\n  at {where}")

    def site(self, frame: FrameType | None) -> int:
        """A number for the line of the user's program that a frame was called from."""
        numbers, passed_over = self.site_numbers, self.passed_over
        while frame is not None:
            code = frame.f_code
            if id(code) not in passed_over:
                key = (id(code), frame.f_lasti)
                number = numbers.get(key)
                if number is None and self._is_users(code):
                    number = numbers[key] = len(self.sites)
                    self.sites.append((code, frame.f_lasti))
                if number is not None:
                    self.last_site = number
                    return number
            frame = frame.f_back
        return self.last_site

    def _is_users(self, code: CodeType) -> bool:
        """Whether there is to be a site in it."""
        if code.co_filename.startswith((_TORCH, _OWN, "<frozen")):
            self.passed_over[id(code)] = code
            return False
        return len(self.sites) < 60000

    def describe(self, site: int) -> str:
        """File and line of a site; empty where it is not known."""
        found = self.locate(site)
        return f'File "{found[0]}", line {found[1]}, in {found[2]}' if found else ""

    def locate(self, site: int) -> tuple[str, int, str] | None:
        """File, line and function of a site; None where it is not known."""
        where = self.sites[site] if 0 <= site < len(self.sites) else None
        if where is None:
            return None
        code, last = where
        positions = list(code.co_positions())
        line = positions[last // 2][0] if last // 2 < len(positions) else None
        return code.co_filename, line or code.co_firstlineno, code.co_name

    def flush(self) -> None:
        """Send what is pending."""
        if self.closed is not None:
            raise self.closed
        with self._sending:
            count = len(self.pending)
            if not count:
                return
            words = self.pending[:count]
            del self.pending[:count]
            self.counters.frames += 1
            if self.recording is not None:
                self.recording.extend(words)
            width, data = pack(words)
            self.send_frame(b"\x02" + width + data)
            if self.threshold < _WORDS_MOST:
                self.threshold *= 2
            self._unmarked += 1
            mark = self._unmarked >= _MARK_EVERY and self.recording is None
        if mark:
            self._run_ahead()

    def _run_ahead(self) -> None:
        previous, self._unmarked = self._mark, 0
        self._mark = self.request()
        self.send(messages.Mark(self._mark))
        if previous:
            self.wait(previous, ahead=True)

    def send(self, message: msgspec.Struct) -> None:
        """Send a message, behind what was sent before."""
        self.send_frame(language.encode(message))

    def seed(self, seed: int) -> None:
        """Begin the random numbers there anew, behind everything that was issued before."""
        seed = int(seed)
        self.flush()
        self.send(messages.Seed(seed if seed < 1 << 63 else seed - (1 << 64)))

    def send_frame(self, frame: bytes) -> None:
        """Send a frame, behind what was sent before.

        Raises:
            RemoteError: it is too large. Only what must not be parted can be: an operator, a graph, a captured step.
        """
        if len(frame) > FRAME_BYTES_MAX:
            raise RemoteError(
                f"what is said at once may take {FRAME_BYTES_MAX} bytes, and this takes {len(frame)}: use fewer "
                "tensors in one call, capture a shorter step, or compile a smaller function"
            )
        with self._sending:
            self.counters.sent_bytes += len(frame)
            self.channel.send(frame)

    def send_data(self, handle: int, data: memoryview) -> None:
        """Fill an allocation from its beginning, behind everything that was issued before."""
        if self.recording is not None:
            raise self.refuse_recording("a tensor is sent up")
        with self._sending:
            self.flush()
            self.counters.data_bytes += len(data)
            for offset in range(0, len(data), CHUNK_BYTES):
                header = DATA_HEADER.pack(Kind.DATA, handle, offset)
                self.send_frame(header + data[offset : offset + CHUNK_BYTES])

    # ----------------------------------------------------------------------------------------------------- waiting

    def request(self) -> int:
        """A number for something that is asked for."""
        with self._arrived:
            self._requests += 1
            return self._requests

    def ask(
        self, message: msgspec.Struct, request: int, site: int = 0, what: str = ""
    ) -> tuple[messages.Reply, bytearray]:
        """Send everything pending and then a request; wait for its answer. `what`: the program does at `site`.

        Raises:
            RemoteError: the request, or something before it, failed.
        """
        self.begin(message)
        return self.wait(request, site=site, what=what)

    def begin(self, message: msgspec.Struct) -> None:
        """Send everything pending and then a request, whose answer somebody waits for later."""
        if self.recording is not None:
            raise self.refuse_recording("an element is waited for")
        with self._sending:
            self.flush()
            self.send(message)

    def forget(self, request: int) -> None:
        """Nobody will wait for the answer to a request."""
        with self._arrived:
            if self._replies.pop(request, None) is None:
                self._unwanted.add(request)
            self._chunks.pop(request, None)

    def wait(
        self, request: int, *, site: int = 0, what: str = "", ahead: bool = False
    ) -> tuple[messages.Reply, bytearray]:
        """Wait for the answer to a request that was sent. `ahead`: so as not to run further ahead.

        Raises:
            RemoteError: it, or something before it, failed.
        """
        began_s = 0.0 if request in self._replies else time.perf_counter()
        if began_s and not ahead:
            self.counters.waits += 1
            self.threshold = _WORDS_FIRST
        with undisturbed:
            reply = self._receive(request)
            data = self._chunks.pop(request, bytearray())
        if began_s:
            self._stood(time.perf_counter() - began_s, site, what, ahead)
        if reply.fault:
            self._raise(reply.fault)
        return reply, data

    def _receive(self, request: int) -> messages.Reply:
        """The answer to a request. One thread receives, for all that wait."""
        while True:
            with self._arrived:
                while request not in self._replies and self._receiving:
                    self._arrived.wait()
                reply = self._replies.pop(request, None)
                if reply is not None:
                    return reply
                self._receiving = True
            try:
                frame = self.channel.receive()
                self._take(frame)
            finally:
                with self._arrived:
                    self._receiving = False
                    self._arrived.notify_all()

    def _stood(self, seconds: float, site: int, what: str, ahead: bool) -> None:  # noqa: FBT001
        if ahead:
            self.counters.held_s += seconds
            return
        self.counters.waited_s += seconds
        place = self.places.setdefault((site, what), [0, 0.0])
        place[0] += 1
        place[1] += seconds

    def _take(self, frame: bytes) -> None:
        self.counters.received_bytes += len(frame)
        if frame[0] == Kind.CHUNK:
            _, request, _ = DATA_HEADER.unpack_from(frame)
            if request in self._unwanted:
                return
            self._chunks.setdefault(request, bytearray()).extend(memoryview(frame)[DATA_HEADER.size :])
            return
        message = messages.decode(frame)
        if isinstance(message, messages.Reply):
            with self._arrived:
                if message.request in self._unwanted:
                    self._unwanted.discard(message.request)
                    return
                self._replies[message.request] = message
                if message.request in self.arrivals:
                    self.arrivals[message.request] = time.perf_counter()
        elif isinstance(message, messages.Fault):
            self._faults[message.fault] = message

    def _raise(self, number: int) -> None:
        """Tell the program of a fault, and the server that it was told."""
        fault = self._faults.get(number)
        with self._sending:
            # What was issued until now was issued without knowing: the server drops it, but for what is freed.
            self.flush_dropped()
            self.send(messages.Resume(number))
        if fault is None:
            raise RemoteError("an operator failed on the server, which did not say why")
        if fault.reason == "mispredicted":
            self.mispredicted.add(fault.operator)
            self.evictions += 1
            self.entries.clear()
        raise from_fault(fault, self.describe(fault.site))

    def flush_dropped(self) -> None:
        """Send what is pending without waiting for anything."""
        unmarked, self._unmarked = self._unmarked, -(1 << 30)
        try:
            self.flush()
        finally:
            self._unmarked = unmarked

    def synchronize(self) -> None:
        """Wait until everything that was issued has been done.

        Raises:
            RemoteError: something failed.
        """
        request = self.request()
        self.ask(messages.Mark(request), request, self.site(sys._getframe(1)), "synchronize()")

    def overfull(self) -> None:
        """More lives than fits: the operator that was issued just now fails there, so that its line is the one to tell.

        Raises:
            RemoteError: it did.
        """
        if self.recording is None:
            self.synchronize()

    def statistics(self, *, timed: bool = False) -> dict[str, int]:
        """The session's numbers on the server: bytes used, at most, allowed, allocations, and microseconds it was busy;
        from the first time that they are asked for `timed`, also those within operators.
        """
        request = self.request()
        ask = messages.Mark(request, statistics=True, timed=timed)
        reply, _ = self.ask(ask, request, self.site(sys._getframe(1)), "memory statistics")
        return dict(reply.numbers)

    def close(self) -> None:
        """End the session. What lives of it can't be used any more."""
        if self.closed is None:
            self.closed = RemoteError(f"the session of {self.device} was closed")
            self.channel.close()


_open: weakref.WeakSet[Session] = weakref.WeakSet()


def _after_fork() -> None:
    """A child shares its parent's connection and must not speak on it: workers of a DataLoader stay on the CPU."""
    for session in list(_open):
        session.closed = RemoteError(
            f"{session.device} can't be used in a process that was forked: use it in the process that opened it"
        )


os.register_at_fork(after_in_child=_after_fork)


ATTACHED: list[Session | None] = []
"""The sessions of the devices `aliquot:0`, `aliquot:1` and so on; None where one was detached."""
