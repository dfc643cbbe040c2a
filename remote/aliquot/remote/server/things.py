"""What a session of the raw lane has made, by the client's handles: memory, modules, kernels, streams and events."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TypeVar

from aliquot.remote.core.accounting import Account
from aliquot.remote.core.driving import MODULES_MAX, NONE, STREAMS_MAX, THINGS_MAX
from aliquot.remote.core.parameters import Layout
from aliquot.remote.core.regions import check_range
from aliquot.remote.server.libcuda import NON_BLOCKING, WITHOUT_TIMING, DriverError, LibCuda

_KEPT_BYTES = 32 << 20
"""Of what was handed to the driver and may still be read by it, before its stream is waited for."""


class HandleError(ValueError):
    """A handle that names nothing, another kind of thing, or something that lives already."""


class Memory:
    """An allocation, or a module's variable."""

    __slots__ = ("address", "module", "size")

    def __init__(self, address: int, size: int, module: Module | None = None) -> None:
        self.address = address
        self.size = size
        self.module = module
        """Whose variable it is; None: it is an allocation, and charged."""

    def at(self, offset: int, size: int) -> int:
        """The address of a range. Raises `RegionError` unless it lies within."""
        check_range(offset, size, self.size)
        return self.address + offset


class Module:
    """A loaded module, and by their handles what goes with it."""

    __slots__ = ("charged_bytes", "own", "parts")

    def __init__(self, own: int, charged_bytes: int) -> None:
        self.own = own
        self.charged_bytes = charged_bytes
        self.parts: set[int] = set()


class Kernel:
    """A function of a module, and how its parameters lie."""

    __slots__ = ("layout", "module", "name", "own")

    def __init__(self, own: int, module: Module, name: str, layout: Layout) -> None:
        self.own = own
        self.module = module
        self.name = name
        self.layout = layout


class Stream:
    """A stream, and what the driver may still read."""

    __slots__ = ("_kept", "_kept_bytes", "own")

    def __init__(self, own: int) -> None:
        self.own = own
        self._kept: deque[object] = deque()
        self._kept_bytes = 0

    def keep(self, what: object, size: int, cuda: LibCuda) -> None:
        """Keep something until the stream was waited for, which is now where it is much."""
        self._kept.append(what)
        self._kept_bytes += size
        if self._kept_bytes > _KEPT_BYTES:
            self.wait(cuda)

    def wait(self, cuda: LibCuda) -> None:
        """Until all that it was told is done. Raises `DriverError`."""
        cuda.call("cuStreamSynchronize", self.own)
        self._kept.clear()
        self._kept_bytes = 0


class Event:
    """An event."""

    __slots__ = ("own", "recorded")

    def __init__(self, own: int) -> None:
        self.own = own
        self.recorded = False


Thing = Memory | Module | Kernel | Stream | Event
T = TypeVar("T", Memory, Module, Kernel, Stream, Event)
_NAMES = {Memory: "memory", Module: "a module", Kernel: "a kernel", Stream: "a stream", Event: "an event"}


class Things:
    """See the module's docstring. One thread uses it."""

    def __init__(self, cuda: LibCuda, account: Account) -> None:
        """Raises `DriverError`."""
        self.cuda = cuda
        self.account = account
        self._things: dict[int, Thing] = {}
        self._count = dict.fromkeys((Memory, Module, Kernel, Stream, Event), 0)
        self._own = Stream(cuda.made("cuStreamCreateWithPriority", NON_BLOCKING, 0))

    def get(self, handle: int, kind: type[T]) -> T:
        """The thing of a handle. Raises `HandleError`."""
        found = self._things.get(handle)
        if type(found) is not kind:
            raise HandleError(
                f"{handle} is no handle of {_NAMES[kind]}: it was let go, or never made after an earlier error"
            )
        return found

    def stream(self, handle: int) -> Stream:
        """The stream of a handle, or the session's own. Raises `HandleError`."""
        return self._own if handle == NONE else self.get(handle, Stream)

    def streams(self) -> list[Stream]:
        """All of them."""
        return [self._own, *(each for each in self._things.values() if isinstance(each, Stream))]

    def count(self, kind: type[Thing]) -> int:
        """How many there are."""
        return self._count[kind]

    # -- making

    def allocate(self, handle: int, size: int) -> None:
        """Memory, charged first. Raises `HandleError`, `OutOfMemory`, `DriverError`, `RegionError`."""
        self._check_free(handle)
        check_range(0, size, 1 << 48)
        self.account.charge(size)
        try:
            address = self.cuda.allocate(size) if size else 0
        except BaseException:
            self.account.refund(size)
            raise
        self._put(handle, Memory(address, size))

    def load(self, handle: int, image: bytes) -> None:
        """A module. Its image is charged. Raises as `allocate` does."""
        self._check_free(handle)
        if self._count[Module] >= MODULES_MAX:
            raise HandleError(f"the session has {MODULES_MAX} modules, and may not have more")
        self.account.charge(len(image))
        try:
            own = self.cuda.made("cuModuleLoadData", image)
        except BaseException:
            self.account.refund(len(image))
            raise
        self._put(handle, Module(own, len(image)))

    def function(self, handle: int, of: int, name: str, layout: Layout) -> None:
        """A kernel of a module, whose parameters are compared where the driver knows them. Raises `HandleError`,
        `DriverError`, `ValueError`.
        """
        self._check_free(handle)
        module = self.get(of, Module)
        own = self.cuda.made("cuModuleGetFunction", module.own, name.encode())
        with contextlib.suppress(DriverError):  # older drivers, and some images, don't say
            known: list[tuple[int, int]] = []
            while len(known) <= len(layout.places) and (place := self.cuda.parameter(own, len(known))) is not None:
                known.append(place)
            if tuple(known) != layout.places:
                declared = list(layout.places)
                raise ValueError(
                    f"{name[:100]} has parameters at (offset, size) {known}, those declared are at {declared}"
                )
        self._put(handle, Kernel(own, module, name, layout))
        module.parts.add(handle)

    def variable(self, handle: int, of: int, name: str) -> int:
        """A module's variable as memory; its size. Raises `HandleError`, `DriverError`."""
        self._check_free(handle)
        module = self.get(of, Module)
        address, size = self.cuda.variable(module.own, name)
        self._put(handle, Memory(address, size, module))
        module.parts.add(handle)
        return size

    def make_stream(self, handle: int, priority: int) -> None:
        """A stream that waits for no other. Raises `HandleError`, `DriverError`."""
        self._check_free(handle)
        if self._count[Stream] >= STREAMS_MAX:
            raise HandleError(f"the session has {STREAMS_MAX} streams, and may not have more")
        priority = max(-100, min(100, priority))
        self._put(handle, Stream(self.cuda.made("cuStreamCreateWithPriority", NON_BLOCKING, priority)))

    def make_event(self, handle: int, *, timed: bool) -> None:
        """An event. Raises `HandleError`, `DriverError`."""
        self._check_free(handle)
        self._put(handle, Event(self.cuda.made("cuEventCreate", 0 if timed else WITHOUT_TIMING)))

    def _check_free(self, handle: int) -> None:
        if not NONE < handle < 1 << 32 or handle in self._things:
            raise HandleError(f"handle {handle} can't be given to something new")
        if len(self._things) >= THINGS_MAX:
            raise HandleError(f"the session has {THINGS_MAX} things, and may not have more")

    def _put(self, handle: int, thing: Thing) -> None:
        self._things[handle] = thing
        self._count[type(thing)] += 1

    # -- letting go

    def drop(self, handle: int) -> None:
        """Let a thing go; one that there is not is none of our business. Raises `DriverError`, when it is gone here."""
        thing = self._things.pop(handle, None)
        if thing is None:
            return
        self._count[type(thing)] -= 1
        if isinstance(thing, (Kernel, Memory)) and thing.module is not None:
            thing.module.parts.discard(handle)
        elif isinstance(thing, Memory):
            self.account.refund(thing.size)
            if thing.address:
                self.cuda.call("cuMemFree_v2", thing.address)
        elif isinstance(thing, Module):
            for part in thing.parts:
                self._count[type(self._things.pop(part))] -= 1
            self.account.refund(thing.charged_bytes)
            for stream in self.streams():
                stream.wait(self.cuda)  # its kernels may still run
            self.cuda.call("cuModuleUnload", thing.own)
        elif isinstance(thing, Stream):
            thing.wait(self.cuda)
            self.cuda.call("cuStreamDestroy_v2", thing.own)
        elif isinstance(thing, Event):
            self.cuda.call("cuEventDestroy_v2", thing.own)

    def close(self) -> None:
        """Let everything go, whatever the driver says of it."""
        last = [handle for handle, thing in self._things.items() if isinstance(thing, (Module, Stream))]
        for handle in [*(handle for handle in self._things if handle not in set(last)), *last]:
            with contextlib.suppress(DriverError):
                self.drop(handle)
        with contextlib.suppress(DriverError):
            self.cuda.call("cuStreamDestroy_v2", self._own.own)
        self._things.clear()
