"""What test programs do with CUDA's driver: the simulated one in an `environment()`, a real one elsewhere."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char_p, c_size_t, c_uint, c_uint64, c_void_p

from aliquot.common.cuda import Driver

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


class Cuda(Driver):
    """Memory and kernels of a context on one device of the process."""

    def allocate(self, size_bytes: int) -> int:
        """Device memory; the pointer as a number."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size_bytes))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Gives memory back that `allocate` returned."""
        self.call("cuMemFree_v2", c_uint64(pointer))

    def load_kernel(self, image: bytes, name: str) -> c_void_p:
        """Loads a module and returns the kernel of that name."""
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), c_char_p(image))
        self.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        return function

    def launch(self, function: c_void_p, argument: int) -> None:
        """Starts a kernel of one 64-bit argument on the default stream."""
        value = c_uint64(argument)
        arguments = (c_void_p * 1)(ctypes.cast(byref(value), c_void_p))
        one = c_uint(1)
        self.call("cuLaunchKernel", function, one, one, one, one, one, one, c_uint(0), None, arguments, None)
