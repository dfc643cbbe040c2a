"""Streams and events of a device elsewhere."""

from __future__ import annotations

from aliquot.remote.core import driving
from aliquot.remote.cuda.held import Dropped
from aliquot.remote.cuda.link import Link


class _Awaited(Dropped):
    __slots__ = ()

    def synchronize(self) -> None:
        """Wait until it is done."""
        self._link.ask(lambda request: driving.Synchronize(request, self.handle))

    def done(self) -> bool:
        """Whether it is, without waiting for it."""
        return bool(self._link.ask(lambda request: driving.Query(request, self.handle)).value)


class Event(_Awaited):
    """A moment in a stream. `Device.event` makes one."""

    __slots__ = ()

    def __init__(self, link: Link, *, timed: bool) -> None:
        super().__init__(link, link.handle())
        link.say(driving.Event(self.handle, timed))

    def record(self, stream: Stream | None = None) -> None:
        """It is when what the stream was told so far is done."""
        self._link.say(driving.Record(self.handle, handle_of(stream)))

    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds of the device's time from this to a later event; waits for that."""
        return self._link.ask(lambda request: driving.Elapsed(request, self.handle, end.handle)).value / 1e6


class Stream(_Awaited):
    """A queue of work on the device, beside others. `Device.stream` makes one."""

    __slots__ = ()

    def __init__(self, link: Link, priority: int) -> None:
        super().__init__(link, link.handle())
        link.say(driving.Stream(self.handle, priority))

    def wait(self, event: Event) -> None:
        """What is queued from now on begins after the event."""
        self._link.say(driving.Await(self.handle, event.handle))


def handle_of(stream: Stream | None) -> int:
    """The handle that stands for a stream; None: the session's own."""
    return driving.NONE if stream is None else stream.handle
