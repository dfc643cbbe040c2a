"""The raw lane: one session's calls of CUDA's driver, done in order, each argument checked before the driver sees it.

After a call fails nothing more is done, except that what the client lets go is let go, until the client resumes: its
program has been told by then. What kernels read and write is not looked at: that is the process's own address space,
and other leases are other processes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Callable
from typing import Any

import msgspec

from aliquot.remote.core import driving, language
from aliquot.remote.core.accounting import Account, Budget, OutOfMemory
from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.driving import (
    CHUNK_HEADER,
    GRID_MAX,
    IMAGE_BYTES_MAX,
    IMAGE_HEADER,
    NAME_CHARS_MAX,
    NONE,
    WRITE_HEADER,
    Kind,
)
from aliquot.remote.core.images import check_image
from aliquot.remote.core.language import MessageError
from aliquot.remote.core.parameters import Layout
from aliquot.remote.core.regions import check_range, overlap
from aliquot.remote.server.libcuda import (
    BROKEN,
    NOT_READY,
    OUT_OF_MEMORY,
    DriverError,
    LibCuda,
    Parameters,
)
from aliquot.remote.server.things import Event, HandleError, Kernel, Memory, Stream, Things

_CHUNK_BYTES = FRAME_BYTES_MAX - 64
_ATTRIBUTES = {
    "max_threads_per_block": 1, "max_block_x": 2, "max_block_y": 3, "max_block_z": 4, "max_grid_x": 5,
    "max_grid_y": 6, "max_grid_z": 7, "max_shared_bytes_per_block": 8, "warp_size": 10, "clock_khz": 13,
    "multiprocessors": 16,
}  # fmt: skip
_CAPABILITY = 75, 76
_ATTRIBUTE_MAX = 4096
_FILLS = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}


class Broken(Exception):
    """The process can do nothing more on its device."""


def end_process() -> None:
    """Have the process ended, with a word to its clients; its agent starts another one."""
    os.kill(os.getpid(), signal.SIGTERM)


class DriverEngine:
    """The engine of one session. `cuda` makes the driver's functions; `broken` is called when the device is lost."""

    def __init__(
        self,
        answer: Callable[[bytes], None],
        ordinal: int,
        device_uuid: str,
        budget: Budget,
        cuda: Callable[[], LibCuda] = LibCuda,
        broken: Callable[[], None] = end_process,
    ) -> None:
        """Raises `OSError`, `DriverError` where the driver or the device can't be used."""
        self._answer = answer
        self._device_uuid = device_uuid
        self.account = Account(budget)
        """What the session holds."""
        self._broken = broken
        self._cuda = cuda()
        self._device = self._cuda.number("cuDeviceGet", ordinal)
        self._context = self._cuda.made("cuDevicePrimaryCtxRetain", self._device)
        self._things: Things | None = None
        self._parameters = Parameters()
        self._buffer = (ctypes.c_char * _CHUNK_BYTES)()
        self._images: dict[int, bytearray] = {}
        self._images_bytes = 0
        self._call = ""
        self._fault = self._faults = 0
        self._ops = self._waits = 0
        self._of_bytes: dict[int, Callable[[bytes], None]] = {
            Kind.WRITE: self._write,
            Kind.IMAGE: self._image,
        }
        """What is more bytes than message is read from the frame itself."""
        self._of_messages: dict[type[msgspec.Struct], Callable[[Any], None]] = {
            driving.Allocate: self._allocate,
            driving.Drop: self._drop,
            driving.Read: self._read,
            driving.Copy: self._copy,
            driving.Fill: self._fill,
            driving.Load: self._load,
            driving.Function: self._function,
            driving.Variable: self._variable,
            driving.Launch: self._launch,
            driving.Stream: self._stream,
            driving.Event: self._event,
            driving.Record: self._record,
            driving.Await: self._await,
            driving.Synchronize: self._synchronize,
            driving.Query: self._query,
            driving.Elapsed: self._elapsed,
            driving.Statistics: self._statistics,
            driving.Attribute: self._attribute,
        }

    def figures(self) -> dict[str, int]:
        """For the metrics of the lease."""
        return {"ops": self._ops, "waits": self._waits, "memory_bytes": self.account.used_bytes}

    # -- frames

    def handle(self, frame: bytes) -> None:
        """Do what a frame says. Errors of its content are answered; raises `Broken` where the device is lost."""
        of_bytes = self._of_bytes.get(frame[0]) if frame else None
        if of_bytes is not None and self._things is not None:
            self._try(Kind(frame[0]).name.lower(), of_bytes, frame)
            return
        try:
            message = driving.decode(frame)
        except MessageError as error:
            if self._things is None:
                self._refuse(str(error)[:500])
            else:
                self._fail(error, "")
            return
        do = self._of_messages.get(type(message))
        if self._things is None:
            self._open(message)
        elif isinstance(message, driving.Resume):
            if message.fault == self._fault:
                self._fault = 0
        elif do is not None:
            self._try(str(message.__struct_config__.tag), do, message)
        else:
            self._fail(MessageError("no such message"), "")

    def close(self) -> None:
        """Free everything."""
        if self._things is not None:
            self._things.close()
            self._things = None
        self._cuda.code("cuDevicePrimaryCtxRelease_v2", self._device)

    def _try(self, call: str, do: Callable[[Any], None], said: object) -> None:
        """`said`: a message, or the frame of what is none."""
        self._call = call
        try:
            if self._fault and not isinstance(said, driving.Drop):
                self._pass_over(said)
            else:
                do(said)
                self._ops += 1
        except DriverError as error:
            self._fail(error, self._call)
            self._pass_over(said)
            if error.code in BROKEN:
                self._broken()
                raise Broken(
                    f"{error.message}: this process can do nothing more on its device, and is started again"
                ) from error
        except (OutOfMemory, ValueError) as error:
            self._fail(error, self._call)
            self._pass_over(said)

    def _pass_over(self, said: object) -> None:
        """Who waits for an answer is told that there is none."""
        request = getattr(said, "request", None)
        if request is not None:
            self._send(driving.Reply(request, self._fault))

    def _fail(self, error: Exception, call: str) -> None:
        if self._fault:
            return
        self._faults += 1
        self._fault = self._faults
        code = error.code if isinstance(error, DriverError) else 0
        asked = error.asked_bytes if isinstance(error, OutOfMemory) else 0
        if isinstance(error, OutOfMemory) or code == OUT_OF_MEMORY:
            reason = "out_of_memory"
        elif isinstance(error, HandleError):
            reason = "handle"
        else:
            reason = "cuda" if code else "malformed"
        used, limit = self.account.budget.used_bytes, self.account.limit_bytes
        self._send(driving.Fault(self._fault, reason, str(error)[:2000], call, code, asked, used, limit))

    def _send(self, message: msgspec.Struct) -> None:
        self._answer(language.encode(message))

    # -- the session

    def _refuse(self, why: str) -> None:
        self._send(driving.Refused(why, driving.PROTOCOL))

    def _open(self, message: msgspec.Struct) -> None:
        if not isinstance(message, driving.Open):
            self._refuse("another message was expected")
            return
        if message.protocol != driving.PROTOCOL:
            said = f"the client speaks version {message.protocol} of the raw lane, this server {driving.PROTOCOL}"
            self._refuse(f"{said}: install the same version of aliquot on both ends")
            return
        cuda = self._cuda
        cuda.call("cuCtxSetCurrent", self._context)  # of this thread, which does all the rest
        self._things = Things(cuda, self.account)
        major, minor = (cuda.number("cuDeviceGetAttribute", number, self._device) for number in _CAPABILITY)
        self._send(
            driving.Welcome(
                driving.PROTOCOL,
                cuda.name(self._device),
                self._device_uuid,
                self.account.limit_bytes,
                (major, minor),
                cuda.number("cuDriverGetVersion"),
                {name: cuda.number("cuDeviceGetAttribute", at, self._device) for name, at in _ATTRIBUTES.items()},
            )
        )

    @property
    def _held(self) -> Things:
        assert self._things is not None
        return self._things

    def _statistics(self, message: driving.Statistics) -> None:
        account = self.account
        numbers = {
            "used_bytes": account.used_bytes,
            "peak_bytes": account.peak_bytes,
            "limit_bytes": account.limit_bytes,
            "part_used_bytes": account.budget.used_bytes,
            "allocations": self._held.count(Memory),
            "operations": self._ops,
        }
        self._send(driving.Reply(message.request, numbers=numbers))

    def _attribute(self, message: driving.Attribute) -> None:
        if not 0 < message.attribute < _ATTRIBUTE_MAX:
            raise MessageError(f"{message.attribute} is no attribute of a device")
        found = self._cuda.number("cuDeviceGetAttribute", message.attribute, self._device)
        self._send(driving.Reply(message.request, value=found))

    # -- memory

    def _allocate(self, message: driving.Allocate) -> None:
        self._held.allocate(message.handle, message.size)
        self._send(driving.Reply(message.request))

    def _drop(self, message: driving.Drop) -> None:
        self._images_bytes -= len(self._images.pop(message.handle, b""))
        self._held.drop(message.handle)

    def _write(self, frame: bytes) -> None:
        _, handle, on, offset = _unpacked(WRITE_HEADER, frame)
        stream = self._held.stream(on)
        size = len(frame) - WRITE_HEADER.size
        to = self._held.get(handle, Memory).at(offset, size)
        if size:
            self._cuda.call("cuMemcpyHtoDAsync_v2", to, _address(frame) + WRITE_HEADER.size, size, stream.own)
            stream.keep(frame, size, self._cuda)

    def _read(self, message: driving.Read) -> None:
        self._waits += 1
        stream = self._held.stream(message.stream)
        start = self._held.get(message.handle, Memory).at(message.offset, message.size)
        stream.wait(self._cuda)
        for offset in range(0, message.size, _CHUNK_BYTES):
            size = min(_CHUNK_BYTES, message.size - offset)
            self._cuda.call("cuMemcpyDtoHAsync_v2", self._buffer, start + offset, size, stream.own)
            self._cuda.call("cuStreamSynchronize", stream.own)
            self._answer(CHUNK_HEADER.pack(Kind.CHUNK, message.request, offset) + memoryview(self._buffer)[:size])
        self._send(driving.Reply(message.request))

    def _copy(self, message: driving.Copy) -> None:
        stream = self._held.stream(message.stream)
        to = self._held.get(message.to, Memory).at(message.to_offset, message.size)
        source = self._held.get(message.source, Memory).at(message.source_offset, message.size)
        if message.to == message.source and overlap(message.to_offset, message.source_offset, message.size):
            raise MessageError("source and target overlap")
        if message.size:
            self._cuda.call("cuMemcpyDtoDAsync_v2", to, source, message.size, stream.own)

    def _fill(self, message: driving.Fill) -> None:
        stream = self._held.stream(message.stream)
        memory = self._held.get(message.handle, Memory)
        unit, count = message.unit, message.count
        if unit not in _FILLS or not 0 <= message.value < 1 << 8 * unit or not 0 <= count <= 1 << 48:
            raise MessageError(f"{count} times {message.value} in {unit} bytes can't be filled in")
        to = memory.at(message.offset, unit * count)
        if to % unit:
            raise MessageError(f"offset {message.offset} is no multiple of {unit}")
        if count:
            self._cuda.call(_FILLS[unit], to, message.value, count, stream.own)

    # -- modules and kernels

    def _image(self, frame: bytes) -> None:
        _, handle = _unpacked(IMAGE_HEADER, frame)
        size = len(frame) - IMAGE_HEADER.size
        if self._images_bytes + size > IMAGE_BYTES_MAX:
            raise MessageError(f"images may have {IMAGE_BYTES_MAX} bytes together")
        if len(self._images) >= driving.MODULES_MAX and handle not in self._images:
            raise MessageError(f"{driving.MODULES_MAX} images have begun")
        self._images.setdefault(handle, bytearray()).extend(memoryview(frame)[IMAGE_HEADER.size :])
        self._images_bytes += size

    def _load(self, message: driving.Load) -> None:
        image = bytes(self._images.pop(message.handle, b""))
        self._images_bytes -= len(image)
        if len(image) < 8:
            raise MessageError(f"{len(image)} bytes are no image: PTX, a cubin or a fat binary is needed")
        check_image(image)
        self._held.load(message.handle, image)
        self._send(driving.Reply(message.request))

    def _function(self, message: driving.Function) -> None:
        self._call = f"function {_name(message.name)}"
        self._held.function(message.handle, message.module, message.name, Layout(message.parameters))
        self._send(driving.Reply(message.request))

    def _variable(self, message: driving.Variable) -> None:
        self._call = f"variable {_name(message.name)}"
        size = self._held.variable(message.handle, message.module, message.name)
        self._send(driving.Reply(message.request, value=size))

    def _launch(self, message: driving.Launch) -> None:
        kernel = self._held.get(message.function, Kernel)
        self._call = f"launch {kernel.name[:200]}"
        stream = self._held.stream(message.stream)
        for number in (*message.grid, *message.block, message.shared_bytes + 1):
            if not 0 < number <= GRID_MAX:
                raise MessageError(f"a launch of {message.grid} blocks of {message.block} threads is out of bounds")
        self._parameters.put(kernel.layout.pack(message.values, self._pointer))
        self._cuda.launch(kernel.own, message.grid, message.block, message.shared_bytes, stream.own, self._parameters)

    def _pointer(self, handle: int, offset: int) -> int:
        """The address of a byte that there is; of no handle, a null pointer."""
        if handle == NONE and offset == 0:
            return 0
        memory = self._held.get(handle, Memory)
        check_range(offset, 1 if memory.size else 0, memory.size)
        return memory.address + offset

    # -- streams and events

    def _stream(self, message: driving.Stream) -> None:
        self._held.make_stream(message.handle, message.priority)

    def _event(self, message: driving.Event) -> None:
        self._held.make_event(message.handle, timed=message.timed)

    def _record(self, message: driving.Record) -> None:
        event = self._held.get(message.event, Event)
        self._cuda.call("cuEventRecord", event.own, self._held.stream(message.stream).own)
        event.recorded = True

    def _await(self, message: driving.Await) -> None:
        event = self._held.get(message.event, Event)
        self._cuda.call("cuStreamWaitEvent", self._held.stream(message.stream).own, event.own, 0)

    def _synchronize(self, message: driving.Synchronize) -> None:
        self._waits += 1
        for thing in self._meant(message.handle):
            if isinstance(thing, Stream):
                thing.wait(self._cuda)
            else:
                self._cuda.call("cuEventSynchronize", thing.own)
        self._send(driving.Reply(message.request))

    def _query(self, message: driving.Query) -> None:
        done = 1
        for thing in self._meant(message.handle):
            name = "cuStreamQuery" if isinstance(thing, Stream) else "cuEventQuery"
            code = self._cuda.code(name, thing.own)
            if code == NOT_READY:
                done = 0
            elif code:
                raise DriverError(name, code, self._cuda.said(code))
        self._send(driving.Reply(message.request, value=done))

    def _meant(self, handle: int) -> list[Stream | Event]:
        if handle == NONE:
            return list(self._held.streams())
        try:
            return [self._held.get(handle, Stream)]
        except HandleError:
            return [self._held.get(handle, Event)]

    def _elapsed(self, message: driving.Elapsed) -> None:
        self._waits += 1
        start, end = (self._held.get(handle, Event) for handle in (message.start, message.end))
        if not (start.recorded and end.recorded):
            raise MessageError("an event was not recorded")
        self._cuda.call("cuEventSynchronize", end.own)
        found = ctypes.c_float()
        self._cuda.call("cuEventElapsedTime", ctypes.byref(found), start.own, end.own)
        self._send(driving.Reply(message.request, value=round(found.value * 1e6)))


def _unpacked(header: struct.Struct, frame: bytes) -> tuple[int, ...]:
    if len(frame) < header.size:
        raise MessageError("a frame ends within its head")
    return header.unpack_from(frame)


def _address(frame: bytes) -> int:
    address = ctypes.cast(ctypes.c_char_p(frame), ctypes.c_void_p).value
    assert address is not None
    return address


def _name(name: str) -> str:
    if not name or len(name) > NAME_CHARS_MAX or "\0" in name:
        raise MessageError("a name has 1 to 4096 characters")
    return name[:200]
