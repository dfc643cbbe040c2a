"""Device memory elsewhere: written, read, copied and filled, by ranges and by rows."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.common.closing import Closing
from aliquot.remote.core import driving
from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.driving import ROWS_HEADER, WRITE_HEADER, Kind
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

    All sizes, offsets and pitches are in bytes. What is queued is done in the order of its stream; None is the
    session's own. `read` and `read_rows` wait; nothing else does.
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

    def write_rows(self, data: Data, *, width: int, pitch: int, offset: int = 0, stream: Stream | None = None) -> None:
        """Queue rows of `width` bytes, one behind the other in `data`, to be put `pitch` bytes apart.

        Raises:
            ValueError: `data` is no whole number of rows.
        """
        view = memoryview(data).cast("B")
        if width <= 0 or len(view) % width:
            raise ValueError(f"{len(view)} bytes are no rows of {width} bytes")
        height = len(view) // width
        if width > _CHUNK_BYTES:
            for row in range(height):
                self.write(view[row * width : (row + 1) * width], offset + row * pitch, stream=stream)
            return
        rows = _CHUNK_BYTES // width
        for row in range(0, height, rows):
            head = ROWS_HEADER.pack(Kind.WRITE_ROWS, self.handle, handle_of(stream), offset + row * pitch, pitch, width)
            self._link.send(head + view[row * width : min(height, row + rows) * width])

    def read(self, offset: int = 0, size: int | None = None, *, stream: Stream | None = None) -> bytes:
        """Bytes from there, once what the stream was told before is done. None: all that follow."""
        size = self.size - offset if size is None else size
        found = bytearray(max(0, size))
        self._link.ask(lambda request: driving.Read(request, self.handle, offset, size, handle_of(stream)), found)
        return bytes(found)

    def read_rows(self, *, width: int, height: int, pitch: int, offset: int = 0, stream: Stream | None = None) -> bytes:
        """Rows from there, one behind the other."""
        if width > _CHUNK_BYTES:
            return b"".join(self.read(offset + row * pitch, width, stream=stream) for row in range(height))
        found = bytearray(max(0, width * height))
        self._link.ask(
            lambda request: driving.ReadRows(request, self.handle, offset, pitch, width, height, handle_of(stream)),
            found,
        )
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

    def copy_rows_from(
        self, source: Memory, *, width: int, height: int, pitch: int, source_pitch: int, offset: int = 0,
        source_offset: int = 0, stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """Queue a copy of rows on the device."""
        self._link.say(
            driving.CopyRows(
                self.handle, offset, pitch, source.handle, source_offset, source_pitch, width, height,
                handle_of(stream),
            )
        )  # fmt: skip

    def fill(
        self, value: int, *, unit: int = 1, count: int | None = None, offset: int = 0, stream: Stream | None = None
    ) -> None:
        """Queue `count` times a value of `unit` bytes (1, 2 or 4); None: to the end."""
        count = (self.size - offset) // unit if count is None else count
        self._link.say(driving.Fill(self.handle, offset, value, unit, count, handle_of(stream)))
