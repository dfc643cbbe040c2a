"""A process on the simulated GPUs that does what a test tells it: see conftest.Child.

Reads one JSON line at a time ({"code": ..., "mode": "eval" | "exec"}) and answers one. The code sees `n` (the real
pynvml, initialised on first use), `cu` (raw CUDA driver calls, answering their code) and whatever earlier code left.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import sys
import traceback
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from types import ModuleType
from typing import Any


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class AllocationProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class PoolProperties(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", Location),
        ("win32", c_void_p),
        ("max_size", c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    ]


class GraphAllocation(ctypes.Structure):
    _fields_ = [
        ("pool", PoolProperties),
        ("access", c_void_p),
        ("access_count", c_size_t),
        ("bytes", c_size_t),
        ("pointer", c_uint64),
    ]


class ArrayDescriptor(ctypes.Structure):
    _fields_ = [("width", c_size_t), ("height", c_size_t), ("format", c_uint), ("channels", c_uint)]


class Array3dDescriptor(ctypes.Structure):
    _fields_ = [
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
        ("format", c_uint),
        ("channels", c_uint),
        ("flags", c_uint),
    ]


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


class Cu:
    """The driver's calls by name. Calls that make something answer (code, value)."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")

    def context(self, ordinal: int = 0) -> int:
        """Initialises and makes the primary context current; the first code that isn't 0."""
        context = c_void_p()
        code = self.call("cuInit", 0) or self.call("cuDevicePrimaryCtxRetain", byref(context), ordinal)
        return code or self.call("cuCtxSetCurrent", context)

    def out(self, name: str, *arguments: Any) -> tuple[int, int]:
        """A call whose first argument is where to put a 64-bit value."""
        value = c_uint64()
        code = getattr(self.lib, name)(byref(value), *arguments)
        return code, value.value

    def call(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.lib, name)(*arguments))

    def malloc(self, size: int) -> tuple[int, int]:
        return self.out("cuMemAlloc_v2", c_size_t(size))

    def free(self, pointer: int) -> int:
        return self.call("cuMemFree_v2", c_uint64(pointer))

    def managed(self, size: int) -> tuple[int, int]:
        return self.out("cuMemAllocManaged", c_size_t(size), 1)

    def pitch(self, width: int, height: int) -> tuple[int, int, int]:
        pitch = c_size_t()
        code, pointer = self.out("cuMemAllocPitch_v2", byref(pitch), c_size_t(width), c_size_t(height), 4)
        return code, pointer, pitch.value

    def malloc_async(self, size: int) -> tuple[int, int]:
        return self.out("cuMemAllocAsync", c_size_t(size), None)

    def free_async(self, pointer: int) -> int:
        return self.call("cuMemFreeAsync", c_uint64(pointer), None)

    def pool(self, most: int = 0) -> tuple[int, int]:
        properties = PoolProperties(type=1, location=Location(1, 0), max_size=most)
        return self.out("cuMemPoolCreate", byref(properties))

    def from_pool(self, pool: int, size: int) -> tuple[int, int]:
        return self.out("cuMemAllocFromPoolAsync", c_size_t(size), c_void_p(pool), None)

    def pool_attribute(self, pool: int, attribute: int) -> int:
        value = c_uint64()
        assert self.call("cuMemPoolGetAttribute", c_void_p(pool), attribute, byref(value)) == 0
        return value.value

    def create(self, size: int, handle_types: int = 1) -> tuple[int, int]:
        properties = AllocationProperties(type=1, handle_types=handle_types, location=Location(1, 0))
        return self.out("cuMemCreate", c_size_t(size), byref(properties), c_uint64(0))

    def reserve(self, size: int) -> tuple[int, int]:
        return self.out("cuMemAddressReserve", c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))

    def map(self, start: int, size: int, handle: int) -> int:
        return self.call("cuMemMap", c_uint64(start), c_size_t(size), c_size_t(0), c_uint64(handle), c_uint64(0))

    def array(self, width: int, height: int) -> tuple[int, int]:
        return self.out("cuArrayCreate_v2", byref(ArrayDescriptor(width, height, 0x20, 1)))

    def array3d(self, width: int, height: int, depth: int) -> tuple[int, int]:
        return self.out("cuArray3DCreate_v2", byref(Array3dDescriptor(width, height, depth, 0x20, 1, 0)))

    def mipmap(self, width: int, height: int, levels: int) -> tuple[int, int]:
        return self.out(
            "cuMipmappedArrayCreate", byref(Array3dDescriptor(width, height, 0, 0x20, 1, 0)), c_uint(levels)
        )

    def info(self) -> tuple[int, int, int]:
        free, total = c_size_t(), c_size_t()
        code = self.lib.cuMemGetInfo_v2(byref(free), byref(total))
        return code, free.value, total.value

    def module(self, image: str) -> tuple[int, int]:
        return self.out("cuModuleLoadData", c_char_p(image.encode()))

    def ipc_handle(self, pointer: int) -> tuple[int, str]:
        handle = IpcHandle()
        code = self.lib.cuIpcGetMemHandle(byref(handle), c_uint64(pointer))
        return code, bytes(handle).hex()

    def ipc_open(self, handle: str) -> tuple[int, int]:
        return self.out("cuIpcOpenMemHandle_v2", IpcHandle.from_buffer_copy(bytes.fromhex(handle)), c_uint(1))

    def export(self, handle: int) -> tuple[int, int]:
        fd = c_int(-1)
        return self.lib.cuMemExportToShareableHandle(byref(fd), c_uint64(handle), 1, c_uint64(0)), fd.value

    def import_fd(self, fd: int) -> tuple[int, int]:
        return self.out("cuMemImportFromShareableHandle", c_void_p(fd), 1)

    def graph(self, *steps: tuple[str, int]) -> tuple[int, int, list[int]]:
        """Instantiates a graph of ("alloc", bytes) and ("free", number of the allocation)."""
        code, graph = self.out("cuGraphCreate", 0)
        node, pointers = c_void_p(), []
        for kind, value in steps:
            if kind == "alloc":
                wanted = GraphAllocation(pool=PoolProperties(type=1, location=Location(1, 0)), bytes=value)
                code = code or self.lib.cuGraphAddMemAllocNode(byref(node), c_void_p(graph), None, 0, byref(wanted))
                pointers.append(wanted.pointer)
            else:
                pointer = c_uint64(pointers[value])
                code = code or self.lib.cuGraphAddMemFreeNode(byref(node), c_void_p(graph), None, 0, pointer)
        made, executable = self.out("cuGraphInstantiateWithFlags", c_void_p(graph), c_uint64(0))
        return code or made, executable, pointers

    def proc(self, name: str, version: int, flags: int = 0) -> tuple[int, bool, int]:
        function, status = c_void_p(), c_int(-1)
        code = self.lib.cuGetProcAddress_v2(name.encode(), byref(function), version, c_uint64(flags), byref(status))
        return code, bool(function.value), status.value


def main() -> None:
    """Serves until standard input ends."""
    scope: dict[str, Any] = {"ctypes": ctypes, "os": os}
    for line in sys.stdin:
        request = json.loads(line)
        answer: dict[str, Any]
        try:
            if "n" not in scope and "n." in request["code"]:
                scope["n"] = _nvml()
            if "cu" not in scope and "cu." in request["code"]:
                scope["cu"] = Cu()
            if request["mode"] == "exec":
                exec(request["code"], scope)
                answer = {"value": None}
            else:
                answer = {"value": eval(request["code"], scope)}
        except Exception as error:  # noqa: BLE001 - the test gets it
            number = getattr(error, "value", None)
            answer = {"error": type(error).__name__, "number": number, "trace": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer, default=_plain) + "\n")
        sys.stdout.flush()


def _nvml() -> ModuleType:
    pynvml = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    return pynvml


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ctypes.Structure):
        return {name[0]: getattr(value, name[0]) for name in value._fields_}
    return getattr(value, "__dict__", None) or repr(value)


if __name__ == "__main__":
    main()
