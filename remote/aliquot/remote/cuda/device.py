"""A part of a GPU elsewhere, used by the calls of CUDA's driver."""

from __future__ import annotations

from aliquot.common.closing import Closing
from aliquot.remote.core import driving
from aliquot.remote.core.channel import Channel
from aliquot.remote.cuda.link import Link
from aliquot.remote.cuda.memory import Memory
from aliquot.remote.cuda.modules import Module
from aliquot.remote.cuda.streams import Event, Stream
from aliquot.remote.session import Session


class Device(Closing):
    """A session of the raw lane on one part. Any thread may use it. `open_device` makes one.

    What answers nothing is queued and runs ahead; when it fails, the next call that waits says so, by an error that
    names it, and nothing that was queued behind it was done.
    """

    def __init__(self, channel: Channel) -> None:
        """`channel` is one of an engine `cuda`. Raises `RemoteRefusedError`, `SessionError`."""
        self._link = Link(channel)
        about = self._link.welcome
        self.name = about.name
        self.uuid = about.device_uuid
        self.memory_bytes = about.memory_bytes
        """Of the part."""
        self.capability = about.capability
        """Major and minor."""
        self.driver_version = about.driver_version
        """As CUDA has it: 12040 for 12.4."""
        self.attributes = about.attributes
        """`max_threads_per_block`, `multiprocessors`, `warp_size`, …"""

    def allocate(self, size: int) -> Memory:
        """Memory of `size` bytes. Waits. Raises `RemoteMemoryError` where the part has not as much left."""
        handle = self._link.handle()
        self._link.ask(lambda request: driving.Allocate(request, handle, size))
        return Memory(self._link, handle, size)

    def load(self, image: bytes | str) -> Module:
        """A module of PTX, a cubin or a fat binary. Waits. Raises `RemoteDriverError`, `RemoteMemoryError`."""
        return Module(self._link, image.encode() if isinstance(image, str) else image)

    def stream(self, priority: int = 0) -> Stream:
        """A stream that waits for no other. A lower number is a higher priority."""
        return Stream(self._link, priority)

    def event(self, *, timed: bool = True) -> Event:
        """An event."""
        return Event(self._link, timed=timed)

    def synchronize(self) -> None:
        """Wait until all that this session has queued is done."""
        self._link.ask(driving.Synchronize)

    def attribute(self, number: int) -> int:
        """An attribute of the device, by CUDA's number for it."""
        return self._link.ask(lambda request: driving.Attribute(request, number)).value

    def statistics(self) -> dict[str, int]:
        """`used_bytes`, `peak_bytes`, `allocations` and `operations` of this session; `part_used_bytes` and
        `limit_bytes` of the part.
        """
        return self._link.ask(driving.Statistics).numbers

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the part."""
        numbers = self.statistics()
        return numbers["limit_bytes"] - numbers["part_used_bytes"], numbers["limit_bytes"]

    def close(self) -> None:
        """End the session: all that it has on the device is freed."""
        self._link.close()


def open_device(session: Session, index: int = 0) -> Device:
    """A device of a lease's part. Raises what `Session.open` does."""
    return Device(session.open(index, engine="cuda"))
