"""The CUDA driver through ctypes, for programs that try a device out: the real one, or the simulated one in the
environment of a scenario.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

from aliquot.common.errors import AliquotError

OUT_OF_MEMORY = 2
NOT_FOUND = 500


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


class Driver:
    """A primary context on one device of this process, current in the thread that made it."""

    def __init__(self, ordinal: int = 0, *, context: bool = True) -> None:
        """Raises `DriverMissing`, `DriverError`."""
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverMissing(f"no CUDA driver: {error}", hint="install NVIDIA's driver on this machine") from error
        self.ordinal = ordinal
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
            function = self._functions[name] = self.find(name)
        return int(function(*arguments))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes, as this process sees them."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def synchronize(self) -> None:
        """Wait for the device."""
        self.call("cuCtxSynchronize")

    def find(self, name: str) -> Callable[..., int]:
        """A function by its exported name. Raises `DriverError`."""
        try:
            found: Callable[..., int] = getattr(self.library, name)
        except AttributeError:
            raise DriverError(name, NOT_FOUND) from None
        return found
