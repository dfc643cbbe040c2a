"""The few CUDA driver calls that the test programs need, through ctypes.

Works on whichever libcuda.so.1 the loader finds: the simulated one in an `environment()`, a real one elsewhere.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from aliquot.simgpu.errors import CudaError, SimGpuError

OUT_OF_MEMORY = 2

SPIN_KERNEL = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry spin(.param .u64 nanoseconds) { ret; }
"""
"""A module with one kernel that keeps the simulated device busy for as long as its argument says."""

KNOWN_KERNELS = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry saxpy(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 count) { ret; }
.visible .entry dot(.param .u64 out, .param .u64 x, .param .u64 y, .param .u32 count) { ret; }
.visible .entry record(
    .param .u64 to, .param .u8 small, .param .u16 short, .param .s32 whole, .param .f64 real,
    .param .align 4 .b8 pair[12]) { ret; }
.visible .entry spin(.param .u64 nanoseconds) { ret; }
"""
"""Kernels that the simulated driver knows by name and computes where memory is backed (native/cuda/kernels.c):
`y += a * x`, `out[0] = sum(x * y)`, and one that writes its own parameters to where the first one points.
"""


class Cuda:
    """A context on one device of the process. Raises CudaError for any call that fails."""

    def __init__(self, ordinal: int = 0) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise SimGpuError(f"no CUDA driver: {error}", hint="run this in the environment of a scenario") from error
        self._call("cuInit", c_uint(0))
        self._context = c_void_p()
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), c_int(ordinal))
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, size_bytes: int) -> int:
        """Device memory; the pointer as a number."""
        pointer = c_uint64()
        self._call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Gives memory back that `allocate` returned."""
        self._call("cuMemFree_v2", c_uint64(pointer))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes, as this process sees them."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def load_kernel(self, image: bytes, name: str) -> c_void_p:
        """Loads a module and returns the kernel of that name."""
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), c_char_p(image))
        self._call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        return function

    def launch(self, function: c_void_p, argument: int) -> None:
        """Starts a kernel of one 64-bit argument on the default stream."""
        value = c_uint64(argument)
        arguments = (c_void_p * 1)(ctypes.cast(byref(value), c_void_p))
        one = c_uint(1)
        self._call("cuLaunchKernel", function, one, one, one, one, one, one, c_uint(0), None, arguments, None)

    def synchronize(self) -> None:
        """Waits for all kernels of the context."""
        self._call("cuCtxSynchronize")

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise CudaError(name, code)
