"""Every way of taking device memory that a program has. Each way takes one piece and answers how to give it back.

    python -m bench.lib.cuda_ways --way async --lookup proc_address --piece 64Mi --most 6Gi

is `aliquot.agent.doctor.probe` by another way. How functions are looked up is one of the things to be tried, too: by
the dynamic linker, or through cuGetProcAddress.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p

from aliquot.agent.doctor import probe
from aliquot.agent.doctor.probe import Release, malloc
from aliquot.common.cuda import NOT_FOUND, Driver, DriverError

_DEVICE, _PINNED, _READ_WRITE, _FLOAT = 1, 1, 3, 0x20
_RELAXED_CAPTURE = 2
_HEAP_LIMIT = 2
_INTERFACE = 12000
"""The version asked of cuGetProcAddress: later ones give some names other parameters."""

EMPTY_KERNEL = b".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry nothing() { ret; }\n"


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


def _location(driver: Driver) -> Location:
    return Location(_DEVICE, driver.ordinal)


def pitch(driver: Driver, size_bytes: int) -> Release:
    """cuMemAllocPitch, with rows of 4 KiB."""
    pointer, row = c_uint64(), c_size_t()
    height = c_size_t(size_bytes // 4096)
    driver.call("cuMemAllocPitch_v2", byref(pointer), byref(row), c_size_t(4096), height, c_uint(16))
    return lambda: driver.call("cuMemFree_v2", pointer)


def managed(driver: Driver, size_bytes: int) -> Release:
    """CuMemAllocManaged."""
    pointer = c_uint64()
    driver.call("cuMemAllocManaged", byref(pointer), c_size_t(size_bytes), c_uint(1))
    return lambda: driver.call("cuMemFree_v2", pointer)


def vmm(driver: Driver, size_bytes: int) -> Release:
    """CuMemCreate and cuMemMap; the handle is given up at once, the mapping keeps the memory."""
    handle, address = c_uint64(), c_uint64()
    properties = AllocationProperties(type=_PINNED, location=_location(driver))
    driver.call("cuMemCreate", byref(handle), c_size_t(size_bytes), byref(properties), c_ulonglong(0))
    driver.call("cuMemAddressReserve", byref(address), c_size_t(size_bytes), c_size_t(0), c_uint64(0), c_ulonglong(0))
    driver.call("cuMemMap", address, c_size_t(size_bytes), c_size_t(0), handle, c_ulonglong(0))
    access = AccessDescription(_location(driver), _READ_WRITE)
    driver.call("cuMemSetAccess", address, c_size_t(size_bytes), byref(access), c_size_t(1))
    driver.call("cuMemRelease", handle)

    def release() -> None:
        driver.call("cuMemUnmap", address, c_size_t(size_bytes))
        driver.call("cuMemAddressFree", address, c_size_t(size_bytes))

    return release


def stream_ordered(driver: Driver, size_bytes: int) -> Release:
    """cuMemAllocAsync, from the device's pool."""
    pointer = c_uint64()
    driver.call("cuMemAllocAsync", byref(pointer), c_size_t(size_bytes), c_void_p(0))

    def release() -> None:
        driver.call("cuMemFreeAsync", pointer, c_void_p(0))
        driver.synchronize()

    return release


def own_pool(driver: Driver, size_bytes: int) -> Release:
    """cuMemAllocFromPoolAsync, from a pool made for it that never gives memory back by itself."""
    pool, pointer = c_void_p(), c_uint64()
    properties = PoolProperties(type=_PINNED, location=_location(driver))
    driver.call("cuMemPoolCreate", byref(pool), byref(properties))
    threshold = c_uint64(2**64 - 1)
    driver.call("cuMemPoolSetAttribute", pool, c_int(4), byref(threshold))
    code = driver.code_of("cuMemAllocFromPoolAsync", byref(pointer), c_size_t(size_bytes), pool, c_void_p(0))
    if code:
        driver.call("cuMemPoolDestroy", pool)
        raise DriverError("cuMemAllocFromPoolAsync", code)

    def release() -> None:
        driver.call("cuMemFreeAsync", pointer, c_void_p(0))
        driver.synchronize()
        driver.call("cuMemPoolDestroy", pool)

    return release


def pool_cache(driver: Driver, size_bytes: int) -> Release:
    """A pool's allocation that is freed at once, while the pool keeps the memory."""
    pool, pointer = c_void_p(), c_uint64()
    driver.call("cuDeviceGetDefaultMemPool", byref(pool), c_int(driver.ordinal))
    threshold = c_uint64(2**64 - 1)
    driver.call("cuMemPoolSetAttribute", pool, c_int(4), byref(threshold))
    driver.call("cuMemAllocAsync", byref(pointer), c_size_t(size_bytes), c_void_p(0))
    driver.call("cuMemFreeAsync", pointer, c_void_p(0))
    driver.synchronize()
    return lambda: driver.call("cuMemPoolTrimTo", pool, c_size_t(0))


def array(driver: Driver, size_bytes: int) -> Release:
    """cuArrayCreate: a two-dimensional array of floats."""
    handle = c_void_p()
    width = 8192
    description = ArrayDescription(width, max(1, size_bytes // (width * 4)), _FLOAT, 1)
    driver.call("cuArrayCreate_v2", byref(handle), byref(description))
    return lambda: driver.call("cuArrayDestroy", handle)


def array_3d(driver: Driver, size_bytes: int) -> Release:
    """cuArray3DCreate."""
    handle = c_void_p()
    side = 1024
    description = Array3dDescription(side, side, max(1, size_bytes // (side * side * 4)), _FLOAT, 1, 0)
    driver.call("cuArray3DCreate_v2", byref(handle), byref(description))
    return lambda: driver.call("cuArrayDestroy", handle)


def mipmap(driver: Driver, size_bytes: int) -> Release:
    """cuMipmappedArrayCreate, four levels."""
    handle = c_void_p()
    width = 8192
    height = max(8, size_bytes * 3 // 4 // (width * 4))
    description = Array3dDescription(width, height, 0, _FLOAT, 1, 0)
    driver.call("cuMipmappedArrayCreate", byref(handle), byref(description), c_uint(4))
    return lambda: driver.call("cuMipmappedArrayDestroy", handle)


def graph_node(driver: Driver, size_bytes: int) -> Release:
    """cuGraphAddMemAllocNode, instantiated and launched, so that its memory is held."""
    graph, node = c_void_p(), c_void_p()
    driver.call("cuGraphCreate", byref(graph), c_uint(0))
    wanted = AllocationNode(
        pool=PoolProperties(type=_PINNED, location=_location(driver)), access_count=0, bytes=size_bytes
    )
    try:
        driver.call("cuGraphAddMemAllocNode", byref(node), graph, c_void_p(0), c_size_t(0), byref(wanted))
        return _run_graph(driver, graph, c_uint64(wanted.pointer))
    except Exception:
        driver.code_of("cuGraphDestroy", graph)
        raise


def captured(driver: Driver, size_bytes: int) -> Release:
    """CuMemAllocAsync on a capturing stream: it becomes an allocation node."""
    stream, graph, pointer = c_void_p(), c_void_p(), c_uint64()
    driver.call("cuStreamCreate", byref(stream), c_uint(1))
    driver.call("cuStreamBeginCapture_v2", stream, c_int(_RELAXED_CAPTURE))
    try:
        driver.call("cuMemAllocAsync", byref(pointer), c_size_t(size_bytes), stream)
    finally:
        driver.code_of("cuStreamEndCapture", stream, byref(graph))
        driver.code_of("cuStreamDestroy_v2", stream)
    return _run_graph(driver, graph, pointer)


def _run_graph(driver: Driver, graph: c_void_p, pointer: c_uint64) -> Release:
    executable = c_void_p()
    driver.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_ulonglong(0))
    driver.call("cuGraphLaunch", executable, c_void_p(0))
    driver.synchronize()

    def release() -> None:
        driver.call("cuMemFree_v2", pointer)
        driver.call("cuGraphExecDestroy", executable)
        driver.call("cuGraphDestroy", graph)
        driver.call("cuDeviceGraphMemTrim", c_int(driver.ordinal))

    return release


def module(driver: Driver, size_bytes: int) -> Release:
    """CuModuleLoadData of code that declares a variable of that size."""
    loaded = c_void_p()
    # Programs have no larger variable than 2 GiB, so several are declared.
    variables = []
    left, number = size_bytes, 0
    while left > 0:
        part = min(left, 1 << 30)
        variables.append(f".visible .global .align 4 .b8 store{number}[{part}];")
        left -= part
        number += 1
    head, _, body = EMPTY_KERNEL.decode().partition(".visible .entry")
    image = f"{head}{chr(10).join(variables)}\n.visible .entry{body}".encode()
    driver.call("cuModuleLoadData", byref(loaded), c_char_p(image))
    return lambda: driver.call("cuModuleUnload", loaded)


def heap_limit(driver: Driver, size_bytes: int) -> Release:
    """cuCtxSetLimit: a larger heap for kernels."""
    present = c_size_t()
    driver.call("cuCtxGetLimit", byref(present), c_int(_HEAP_LIMIT))
    driver.call("cuCtxSetLimit", c_int(_HEAP_LIMIT), c_size_t(present.value + size_bytes))
    return lambda: driver.call("cuCtxSetLimit", c_int(_HEAP_LIMIT), present)


WAYS: dict[str, Callable[[Driver, int], Release]] = {
    "malloc": malloc,
    "pitch": pitch,
    "managed": managed,
    "vmm": vmm,
    "async": stream_ordered,
    "own_pool": own_pool,
    "pool_cache": pool_cache,
    "array": array,
    "array_3d": array_3d,
    "mipmap": mipmap,
    "graph_node": graph_node,
    "captured": captured,
    "module": module,
    "heap_limit": heap_limit,
}


class ByProcAddress(Driver):
    """Functions by cuGetProcAddress_v2, as CUDA's runtime finds them."""

    def find(self, name: str) -> Callable[..., int]:
        """See `Driver`."""
        base, separator, version = name.rpartition("_v")
        plain = base if separator and version.isdecimal() else name
        found, status = c_void_p(), c_int()
        code = self.library.cuGetProcAddress_v2(
            plain.encode(), byref(found), c_int(_INTERFACE), c_uint64(0), byref(status)
        )
        if code or not found.value:
            raise DriverError(f"cuGetProcAddress({plain})", code or NOT_FOUND)
        return ctypes.CFUNCTYPE(c_int)(found.value)


LOOKUPS = {"linker": Driver, "proc_address": ByProcAddress}


def main() -> int:
    """See `probe`."""
    parser = argparse.ArgumentParser(prog="python -m bench.lib.cuda_ways", add_help=False)
    parser.add_argument("--way", choices=sorted(WAYS), default="malloc")
    parser.add_argument("--lookup", choices=sorted(LOOKUPS), default="linker")
    options, others = parser.parse_known_args()
    return probe.main(others, WAYS[options.way], LOOKUPS[options.lookup])


if __name__ == "__main__":
    sys.exit(main())
