"""The CUDA driver through ctypes: as much as is needed to try every way of taking device memory.

How a function is looked up is a choice, because that is one of the things to be tried: by the dynamic linker,
or through cuGetProcAddress.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from aliquot.common.errors import AliquotError

OUT_OF_MEMORY = 2
NOT_FOUND = 500
_INTERFACE = 12000
"""The version asked of cuGetProcAddress: later ones give some names other parameters."""


class DriverError(AliquotError):
    """A call of the driver failed."""

    reason = "CUDA"

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} answered CUDA error {code}")
        self.call = call
        self.code = code


class DriverMissing(AliquotError):
    """There is no CUDA driver to be loaded."""

    reason = "CUDA_MISSING"


class Location(ctypes.Structure):
    """CUmemLocation; type 1 is a device."""

    _fields_ = (("type", c_int), ("id", c_int))


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp; type 1 is pinned device memory."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class AccessDescription(ctypes.Structure):
    """CUmemAccessDesc; flags 3 is reading and writing."""

    _fields_ = (("location", Location), ("flags", c_int))


class PoolProperties(ctypes.Structure):
    """CUmemPoolProps."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("maximum", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class AllocationNode(ctypes.Structure):
    """CUDA_MEM_ALLOC_NODE_PARAMS."""

    _fields_ = (
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("pointer", c_uint64),
    )


class ArrayDescription(ctypes.Structure):
    """CUDA_ARRAY_DESCRIPTOR; format 0x20 is float."""

    _fields_ = (("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint))


class Array3dDescription(ctypes.Structure):
    """CUDA_ARRAY3D_DESCRIPTOR."""

    _fields_ = (
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_uint),
        ("channels", c_uint),
        ("flags", c_uint),
    )


class Lookup(enum.Enum):
    """How functions are found."""

    LINKER = "linker"
    """dlsym on the library's handle."""
    PROC_ADDRESS = "proc_address"
    """cuGetProcAddress_v2, as CUDA's runtime does."""


class Driver:
    """A primary context on one device of this process, current in the thread that made it."""

    def __init__(self, ordinal: int = 0, lookup: Lookup = Lookup.LINKER, *, context: bool = True) -> None:
        """Raises `DriverMissing`, `DriverError`."""
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverMissing(f"no CUDA driver: {error}", hint="install NVIDIA's driver on this machine") from error
        self.ordinal = ordinal
        self._lookup = lookup
        self._functions: dict[str, Callable[..., int]] = {}
        self.call("cuInit", c_uint(0))
        self.context = c_void_p()
        if context:
            self.call("cuDevicePrimaryCtxRetain", byref(self.context), c_int(ordinal))
            self.call("cuCtxSetCurrent", self.context)

    def call(self, name: str, *arguments: object) -> None:
        """Call a function by its exported name. Raises `DriverError`."""
        code = self.code_of(name, *arguments)
        if code:
            raise DriverError(name, code)

    def code_of(self, name: str, *arguments: object) -> int:
        """The same, answering the error code."""
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = self._find(name)
        return int(function(*arguments))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes, as this process sees them."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Wait for the device."""
        self.call("cuCtxSynchronize")

    def _find(self, name: str) -> Callable[..., int]:
        if self._lookup is Lookup.LINKER:
            try:
                found_by_name: Callable[..., int] = getattr(self.library, name)
            except AttributeError:
                raise DriverError(name, NOT_FOUND) from None
            return found_by_name
        base, separator, version = name.rpartition("_v")
        plain = base if separator and version.isdecimal() else name
        found, status = c_void_p(), c_int()
        code = self.library.cuGetProcAddress_v2(
            plain.encode(), byref(found), c_int(_INTERFACE), c_uint64(0), byref(status)
        )
        if code or not found.value:
            raise DriverError(f"cuGetProcAddress({plain})", code or NOT_FOUND)
        return ctypes.CFUNCTYPE(c_int)(found.value)


__all__ = [
    "NOT_FOUND",
    "OUT_OF_MEMORY",
    "AccessDescription",
    "AllocationNode",
    "AllocationProperties",
    "Array3dDescription",
    "ArrayDescription",
    "Driver",
    "DriverError",
    "DriverMissing",
    "Location",
    "Lookup",
    "PoolProperties",
]
