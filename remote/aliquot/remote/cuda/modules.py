"""Modules and kernels on a device elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from aliquot.remote.core import driving
from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.driving import IMAGE_BYTES_MAX, IMAGE_HEADER, Kind
from aliquot.remote.core.parameters import Layout, Value
from aliquot.remote.cuda.held import Held
from aliquot.remote.cuda.link import Link
from aliquot.remote.cuda.memory import Memory, Pointer
from aliquot.remote.cuda.streams import Stream, handle_of

_CHUNK_BYTES = FRAME_BYTES_MAX - 64
Size = int | tuple[int, ...]
Argument = int | float | bytes | Memory | Pointer | None


class Module(Held):
    """PTX, a cubin or a fat binary, loaded. `Device.load` makes one. It stays loaded until it is closed: then its
    kernels and variables are gone.
    """

    def __init__(self, link: Link, image: bytes) -> None:
        if len(image) > IMAGE_BYTES_MAX:
            raise ValueError(f"an image of {len(image)} bytes; {IMAGE_BYTES_MAX} are allowed")
        super().__init__(link, link.handle())
        for start in range(0, len(image), _CHUNK_BYTES):
            part = image[start : start + _CHUNK_BYTES]
            link.send(IMAGE_HEADER.pack(Kind.IMAGE, self._handle) + part)
        link.ask(lambda request: driving.Load(request, self._handle))

    def function(self, name: str, parameters: Sequence[str]) -> Kernel:
        """A kernel of it, and what its parameters are: `u8` to `u64`, `i8` to `i64`, `f32`, `f64`, `pointer`, or
        `bytes:SIZE:ALIGNMENT` for a structure.

        Raises:
            ValueError: a layout that no kernel has.
            RemoteDriverError: there is no such kernel, or its parameters are others.
        """
        Layout(parameters)
        handle = self._link.handle()
        self._link.ask(lambda request: driving.Function(request, handle, self._handle, name, list(parameters)))
        return Kernel(self._link, handle, name, self)

    def variable(self, name: str) -> Memory:
        """A global variable of it as memory, which is gone with the module. Raises `RemoteDriverError`."""
        handle = self._link.handle()
        found = self._link.ask(lambda request: driving.Variable(request, handle, self._handle, name))
        return Memory(self._link, handle, found.value)


class Kernel:
    """A function of a module. `Module.function` makes one."""

    __slots__ = ("_handle", "_link", "module", "name")

    def __init__(self, link: Link, handle: int, name: str, module: Module) -> None:
        self._link = link
        self._handle = handle
        self.name = name
        self.module = module

    def launch(
        self, grid: Size, block: Size, arguments: Sequence[Argument], *, shared_bytes: int = 0,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """Queue a run on `grid` blocks of `block` threads, each a number or up to three. Memory, and a byte of it
        (`memory + 256`), stand for pointers, None for a null pointer.
        """
        values = [_value(each) for each in arguments]
        self._link.say(
            driving.Launch(self._handle, _three(grid), _three(block), values, shared_bytes, handle_of(stream))
        )


def _value(argument: Argument) -> Value:
    if isinstance(argument, Memory):
        return [argument.handle, 0]
    if isinstance(argument, Pointer):
        return [argument.memory.handle, argument.offset]
    return [driving.NONE, 0] if argument is None else argument


def _three(size: Size) -> tuple[int, int, int]:
    each = (size,) if isinstance(size, int) else tuple(size)
    if not 1 <= len(each) <= 3:
        raise ValueError(f"{each} are no one to three dimensions")
    x, y, z = (*each, 1, 1)[:3]
    return x, y, z
