"""CUDA's driver, by ctypes: the functions that the raw lane calls, with their types (decision 0059).

Only names and types of the driver's stable interface are used, so one build serves every driver from 11.2 on. Calls let
other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p

from aliquot.common.errors import AliquotError

OUT_OF_MEMORY = 2
NOT_READY = 600
NOT_SUPPORTED = 801
BROKEN = frozenset({214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
"""After these the process can do nothing more on the device, whatever it calls: it must be started again."""
NON_BLOCKING = 1
WITHOUT_TIMING = 2
_END, _BUFFER_POINTER, _BUFFER_SIZE = 0, 1, 2


class DriverError(AliquotError):
    """The driver refused a call. `code` is CUDA's."""

    reason = "CUDA"

    def __init__(self, call: str, code: int, said: str) -> None:
        super().__init__(f"{call}: {said} ({code})")
        self.call = call
        self.code = code


_TYPES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetName": (c_void_p, c_int, c_int),
    "cuDeviceGetUuid": (c_void_p, c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuDevicePrimaryCtxRelease_v2": (c_int,),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, ctypes.c_ubyte, c_size_t, c_void_p),
    "cuMemsetD16Async": (c_uint64, ctypes.c_ushort, c_size_t, c_void_p),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
    "cuModuleLoadData": (POINTER(c_void_p), c_char_p),
    "cuModuleUnload": (c_void_p,),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuModuleGetGlobal_v2": (POINTER(c_uint64), POINTER(c_size_t), c_void_p, c_char_p),
    "cuFuncGetParamInfo": (c_void_p, c_size_t, POINTER(c_size_t), POINTER(c_size_t)),
    "cuLaunchKernel": (
        c_void_p, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_void_p, c_void_p, c_void_p,
    ),
    "cuStreamCreateWithPriority": (POINTER(c_void_p), c_uint, c_int),
    "cuStreamDestroy_v2": (c_void_p,),
    "cuStreamSynchronize": (c_void_p,),
    "cuStreamQuery": (c_void_p,),
    "cuStreamWaitEvent": (c_void_p, c_void_p, c_uint),
    "cuEventCreate": (POINTER(c_void_p), c_uint),
    "cuEventDestroy_v2": (c_void_p,),
    "cuEventRecord": (c_void_p, c_void_p),
    "cuEventSynchronize": (c_void_p,),
    "cuEventQuery": (c_void_p,),
    "cuEventElapsedTime": (POINTER(c_float), c_void_p, c_void_p),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
}  # fmt: skip


class LibCuda:
    """The driver's functions. What they answer with an error becomes a `DriverError`."""

    def __init__(self) -> None:
        """Raises `OSError` where there is no driver, `DriverError` where it has no device."""
        self._library = ctypes.CDLL("libcuda.so.1")
        self._functions: dict[str, Callable[..., int]] = {}
        for name, types in _TYPES.items():
            function = getattr(self._library, name, None)
            if function is not None:
                function.argtypes = types
                function.restype = c_int
                self._functions[name] = function
        self.call("cuInit", 0)

    def code(self, name: str, *arguments: object) -> int:
        """Call a function; its code. One that this driver does not have is not supported."""
        function = self._functions.get(name)
        return NOT_SUPPORTED if function is None else int(function(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function. Raises `DriverError`."""
        code = self.code(name, *arguments)
        if code:
            raise DriverError(name, code, self.said(code))

    def said(self, code: int) -> str:
        """What the driver calls an error."""
        text = c_char_p()
        if self.code("cuGetErrorString", code, byref(text)) or not text.value:
            return "an error without a name"
        return text.value.decode(errors="replace")

    # -- the device

    def number(self, name: str, *arguments: object) -> int:
        """A whole number that a function gives by its first argument."""
        found = c_int()
        self.call(name, byref(found), *arguments)
        return found.value

    def name(self, device: int) -> str:
        """A device's."""
        found = (c_char * 256)()
        self.call("cuDeviceGetName", found, len(found), device)
        return found.value.decode(errors="replace")

    # -- handles

    def made(self, name: str, *arguments: object) -> int:
        """A handle that a function gives by its first argument."""
        found = c_void_p()
        self.call(name, byref(found), *arguments)
        return found.value or 0

    def allocate(self, size: int) -> int:
        """Device memory; its address."""
        found = c_uint64()
        self.call("cuMemAlloc_v2", byref(found), size)
        return found.value

    def variable(self, module: int, name: str) -> tuple[int, int]:
        """Address and size of a module's variable."""
        address, size = c_uint64(), c_size_t()
        self.call("cuModuleGetGlobal_v2", byref(address), byref(size), module, name.encode())
        return address.value, size.value

    def parameter(self, function: int, number: int) -> tuple[int, int] | None:
        """Offset and size of a kernel's parameter; None: it has no such one.

        Raises:
            DriverError: 801 where the driver can't tell.
        """
        offset, size = c_size_t(), c_size_t()
        code = self.code("cuFuncGetParamInfo", function, number, byref(offset), byref(size))
        if code == 1:  # an invalid value: the number
            return None
        if code:
            raise DriverError("cuFuncGetParamInfo", code, self.said(code))
        return offset.value, size.value

    # -- work

    def launch(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        stream: int,
        parameters: Parameters,
    ) -> None:
        """Run a kernel on parameters that were packed before."""
        each, extra = parameters.given()
        self.call("cuLaunchKernel", function, *grid, *block, shared_bytes, stream, each, extra)


class Parameters:
    """Memory that a kernel's parameters are handed over in, used again for each launch: the driver copies them.

    It is longer than any parameters, and zero behind them, so that a kernel whose parameters were declared too short
    reads nothing else of this process.
    """

    _BYTES = 32 << 10
    _POINTERS = 4096

    def __init__(self) -> None:
        self._packed = (c_char * self._BYTES)()
        self._size = c_size_t()
        self._extra = (c_void_p * 5)(
            _BUFFER_POINTER, ctypes.addressof(self._packed), _BUFFER_SIZE, ctypes.addressof(self._size), _END
        )
        self._none = (c_void_p * self._POINTERS)(*[ctypes.addressof(self._packed)] * self._POINTERS)

    def put(self, packed: bytearray) -> None:
        """These, and zeros behind them."""
        before = self._size.value
        ctypes.memmove(self._packed, bytes(packed), len(packed))
        if before > len(packed):
            ctypes.memset(ctypes.addressof(self._packed) + len(packed), 0, before - len(packed))
        self._size.value = len(packed)

    def given(self) -> tuple[object, object]:
        """The last two arguments of a launch."""
        return (None, self._extra) if self._size.value else (self._none, None)
