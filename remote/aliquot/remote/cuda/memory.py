"""Device memory elsewhere: written, read, copied and filled."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.common.closing import Closing
from aliquot.remote.core import driving
from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.driving import WRITE_HEADER, Kind
from aliquot.remote.cuda.held import Dropped
from aliquot.remote.cuda.link import Link
from aliquot.remote.cuda.streams import Stream, handle_of

_CHUNK_BYTES = FRAME_BYTES_MAX - 64
Data = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Pointer:
    """A byte of an allocation, as an argument of a kernel."""

    memory: Memory
    offset: int = 0

    def __add__(self, more: int) -> Pointer:
        return Pointer(self.memory, self.offset + more)


class Memory(Dropped, Closing):
    """An allocation, freed when it is closed or nobody has it any more. `Device.allocate` makes one.

    All sizes and offsets are in bytes. What is queued is done in the order of its stream; None is the
    session's own. `read` waits; nothing else does.
    """

    __slots__ = ("size",)

    def __init__(self, link: Link, handle: int, size: int) -> None:
        super().__init__(link, handle)
        self.size = size
        """Bytes."""

    def __add__(self, offset: int) -> Pointer:
        return Pointer(self, offset)

    def write(self, data: Data, offset: int = 0, *, stream: Stream | None = None) -> None:
        """Queue bytes to be put there."""
        view = memoryview(data).cast("B")
        on = handle_of(stream)
        for start in range(0, len(view), _CHUNK_BYTES):
            part = view[start : start + _CHUNK_BYTES]
            self._link.send(WRITE_HEADER.pack(Kind.WRITE, self.handle, on, offset + start) + part)

    def read(self, offset: int = 0, size: int | None = None, *, stream: Stream | None = None) -> bytes:
        """Bytes from there, once what the stream was told before is done. None: all that follow."""
        size = self.size - offset if size is None else size
        found = bytearray(max(0, size))
        self._link.ask(lambda request: driving.Read(request, self.handle, offset, size, handle_of(stream)), found)
        return bytes(found)

    def copy_from(
        self, source: Memory, size: int | None = None, *, offset: int = 0, source_offset: int = 0,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """Queue a copy on the device. None: all that follow of the source. The ranges may not overlap."""
        size = source.size - source_offset if size is None else size
        self._link.say(
            driving.Copy(self.handle, offset, source.handle, source_offset, size, handle_of(stream)),
        )

    def fill(
        self, value: int, *, unit: int = 1, count: int | None = None, offset: int = 0, stream: Stream | None = None
    ) -> None:
        """Queue `count` times a value of `unit` bytes (1, 2 or 4); None: to the end."""
        count = (self.size - offset) // unit if count is None else count
        self._link.say(driving.Fill(self.handle, offset, value, unit, count, handle_of(stream)))
