"""Programs of the attempts, in Python: each takes what it can, prints one line of JSON, and holds on."""

from __future__ import annotations

_HEAD = """
import ctypes, json, os, sys, time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from aliquot.common.cuda import Driver, DriverError
from bench.lib.cuda_ways import WAYS
MIB = 1 << 20
LIMIT = 4096 * MIB
def take(driver, piece=64 * MIB, most=6144 * MIB, way="malloc"):
    held = 0
    try:
        while held + piece <= most:
            WAYS[way](driver, piece)
            held += piece
    except DriverError as error:
        return {"error": error.code, "held_bytes": held}
    return {"error": 0, "held_bytes": held}
def say(answer):
    print(json.dumps(answer | {"pid": os.getpid()}), flush=True)
def hold():
    sys.stdin.read()
"""

FORK = (
    _HEAD
    + """
driver = Driver()
WAYS["malloc"](driver, 1024 * MIB)
def child():
    own = Driver()
    answer = take(own)
    return answer
read, write = os.pipe()
if os.fork() == 0:
    try:
        os.write(write, json.dumps(child()).encode() + b"\\n")
        os.close(write)
        time.sleep(60)
    finally:
        os._exit(0)
os.close(write)
line = os.fdopen(read).readline()
say(json.loads(line) if line else {"error": -1})
hold()
"""
)

GRANDCHILD = (
    _HEAD
    + """
import subprocess
program = '''
import subprocess, sys
inner = subprocess.Popen([sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", str(6 << 30), "--hold"],
                         stdout=subprocess.PIPE, text=True)
for line in inner.stdout:
    print(line, end="", flush=True)
'''
outer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
for line in outer.stdout:
    if line.startswith("{"):
        print(line, end="", flush=True)
hold()
"""
)

EXEC = (
    _HEAD
    + """
if len(sys.argv) < 3:
    driver = Driver()
    take(driver, most=2048 * MIB)
    os.execv(sys.executable, [sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", str(6 << 30), "--hold"])
"""
)

THREADS = (
    _HEAD
    + """
import threading
driver = Driver()
answers = []
start = threading.Barrier(8)
def race():
    driver.call("cuCtxSetCurrent", driver.context)
    start.wait()
    answers.append(take(driver, piece=2 * MIB))
racers = [threading.Thread(target=race) for _ in range(8)]
for racer in racers: racer.start()
for racer in racers: racer.join()
free = driver.memory_info()[0]
say({"error": 2 if all(a["error"] == 2 for a in answers) and free < 2 * MIB else -1,
     "held_bytes": sum(a["held_bytes"] for a in answers), "free": free})
hold()
"""
)

DOUBLE_FREE = (
    _HEAD
    + """
driver = Driver()
pointer = c_uint64()
driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(1024 * MIB))
first = driver.code_of("cuMemFree_v2", pointer)
second = driver.code_of("cuMemFree_v2", pointer)
assert first == 0 and second != 0, (first, second)
say(take(driver))
hold()
"""
)

FOREIGN_FREE = (
    _HEAD
    + """
driver = Driver()
assert driver.code_of("cuMemFree_v2", c_uint64(0xdead0000)) != 0
assert driver.code_of("cuMemFreeAsync", c_uint64(0xdead0000), c_void_p(0)) != 0
say(take(driver))
hold()
"""
)

POOL_CACHE = (
    _HEAD
    + """
driver = Driver()
pool = c_void_p()
driver.call("cuDeviceGetDefaultMemPool", byref(pool), c_int(0))
driver.call("cuMemPoolSetAttribute", pool, c_int(4), byref(c_uint64(2**64 - 1)))
pointer = c_uint64()
driver.call("cuMemAllocAsync", byref(pointer), c_size_t(2048 * MIB), c_void_p(0))
driver.call("cuMemFreeAsync", pointer, c_void_p(0))
driver.synchronize()
say(take(driver))
hold()
"""
)

CONTEXTS = (
    _HEAD
    + """
driver = Driver()
contexts = []
answer = {"error": 0, "held_bytes": 0}
for _ in range(64):
    context = c_void_p()
    code = driver.code_of("cuCtxCreate_v2", byref(context), c_uint(0), c_int(0))
    if code:
        answer["error"] = code
        break
    contexts.append(context)
say(answer)
hold()
"""
)

_IPC_HEAD = (
    _HEAD
    + """
driver = Driver()
pointer, handle = c_uint64(), (ctypes.c_ubyte * 64)()
driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(2048 * MIB))
driver.call("cuIpcGetMemHandle", byref(handle), pointer)
say({"handle": bytes(handle).hex()})
"""
)

IPC_OWNER = f"{_IPC_HEAD}hold()\n"

IPC_IMPORTER = (
    _HEAD
    + """
class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_ubyte * 64)]
driver = Driver()
handle = Handle.from_buffer_copy(bytes.fromhex(sys.argv[1]))
pointer = c_uint64()
code = driver.code_of("cuIpcOpenMemHandle_v2", byref(pointer), handle, c_uint(1))
if "--then-take" in sys.argv:
    say({"import_error": code})
    sys.stdin.readline()
    time.sleep(1)
    say(take(driver, piece=16 * MIB))
else:
    say(take(driver) | {"import_error": code})
hold()
"""
)

FORGE_ACCOUNT = (
    _HEAD
    + """
from pathlib import Path
from aliquot.agent.enforce import preload_files as files
driver = Driver()
before = take(driver, most=3584 * MIB)["held_bytes"]
path = Path(sys.argv[1]) / "account"
held = files._AccountFile.held.offset
with path.open("r+b") as account:
    account.seek(held)
    account.write(bytes(path.stat().st_size - held))
# All that it held: it may have been ended before the driver can be asked.
after = take(driver, most=2048 * MIB)
say(after | {"held_bytes": before + after["held_bytes"]})
hold()
"""
)

FILL_SLOTS = (
    _HEAD
    + """
from pathlib import Path
from aliquot.agent.enforce import preload_files as files
from aliquot.agent.processes.proc import key_of
me = key_of(os.getppid())
namespace = int(os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]"))
path = Path(sys.argv[1]) / "account"
def fill(pid):
    data = bytearray(path.read_bytes())
    account = files._AccountFile.from_buffer(data)
    for slot in account.slots:
        slot.pid, slot.start_ticks, slot.pid_namespace = pid, me.start_ticks, namespace
    start = files._AccountFile.slots.offset
    del account, slot
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data[start:])
fill(me.pid)
try:
    answer = take(Driver())
except DriverError as error:
    answer = {"error": error.code, "held_bytes": 0}
fill(0)
say(answer)
hold()
"""
)

# A node of an impossible size, which must not make what was charged before forgotten: the sums are 64 bits wide.
GRAPH_OVERFLOW = (
    _HEAD
    + """
from bench.lib.cuda_ways import AllocationNode, Location, PoolProperties
driver = Driver()
graph, node, executable = c_void_p(), c_void_p(), c_void_p()
driver.call("cuGraphCreate", byref(graph), c_uint(0))
def add(size):
    wanted = AllocationNode(pool=PoolProperties(type=1, location=Location(1, 0)), access_count=0, bytes=size)
    return driver.code_of("cuGraphAddMemAllocNode", byref(node), graph, c_void_p(0), c_size_t(0), byref(wanted))
held, error = 0, 0
while held < 6144 * MIB and not error:
    error = add(512 * MIB)
    if not error:
        held += 512 * MIB
        assert add(2**64 - held) != 0
driver.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
error = driver.code_of("cuGraphLaunch", executable, c_void_p(0)) or error  # some refuse only then
driver.synchronize()
say({"error": error, "held_bytes": held})
hold()
"""
)

# What is freed on a stream is held until the stream gets there.
FREED_ON_BUSY_STREAM = (
    _HEAD
    + """
KERNEL = b".version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .entry spin(.param .u64 ns) { ret; }\\n"
driver = Driver()
module, kernel, stream = c_void_p(), c_void_p(), c_void_p()
driver.call("cuModuleLoadData", byref(module), ctypes.c_char_p(KERNEL))
driver.call("cuModuleGetFunction", byref(kernel), module, ctypes.c_char_p(b"spin"))
driver.call("cuStreamCreate", byref(stream), c_uint(1))
long = c_uint64(2_000_000_000)
arguments = (c_void_p * 1)(ctypes.addressof(long))
pointer = c_uint64()
most = {"error": 0, "held_bytes": 0}
driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(3072 * MIB))
driver.call("cuLaunchKernel", kernel, *[c_uint(1)] * 6, c_uint(0), stream, arguments, c_void_p(0))
driver.call("cuMemFreeAsync", pointer, stream)
say(take(driver))
hold()
"""
)

# The same in a capture, where nothing is freed at all.
FREED_IN_CAPTURE = (
    _HEAD
    + """
driver = Driver()
stream, graph, pointer = c_void_p(), c_void_p(), c_uint64()
driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(3072 * MIB))
driver.call("cuStreamCreate", byref(stream), c_uint(1))
driver.call("cuStreamBeginCapture_v2", stream, c_int(2))
driver.code_of("cuMemFreeAsync", pointer, stream)
driver.call("cuStreamEndCapture", stream, byref(graph))
say(take(driver))
hold()
"""
)

# A descriptor holds memory whose handle and mappings are gone.
EXPORTED = (
    _HEAD
    + """
from bench.lib.cuda_ways import AllocationProperties, Location
driver = Driver()
held, error, descriptors = 0, 0, []
while held < 6144 * MIB:
    handle, descriptor = c_uint64(), c_int()
    wanted = AllocationProperties(type=1, handle_types=1, location=Location(1, 0))
    error = driver.code_of("cuMemCreate", byref(handle), c_size_t(512 * MIB), byref(wanted), c_uint64(0))
    if error:
        break
    driver.call("cuMemExportToShareableHandle", byref(descriptor), handle, c_int(1), c_uint64(0))
    driver.call("cuMemRelease", handle)
    descriptors.append(descriptor.value)
    held += 512 * MIB
# What is closed is there again.
for descriptor in descriptors:
    os.close(descriptor)
again = take(driver)
say(again if error == 2 and again["held_bytes"] >= held else {"error": error or -1, "held_bytes": held})
hold()
"""
)

# Captured on the default stream of a thread, by the variants that mean it where no stream is named.
CAPTURED_BY_THREAD = (
    _HEAD
    + """
driver = Driver()
held, error, kept = 0, 0, []
while held < 6144 * MIB and not error:
    graph, executable, pointer = c_void_p(), c_void_p(), c_uint64()
    driver.call("cuStreamBeginCapture_v2_ptsz", c_void_p(0), c_int(2))
    error = driver.code_of("cuMemAllocAsync_ptsz", byref(pointer), c_size_t(512 * MIB), c_void_p(0))
    driver.call("cuStreamEndCapture_ptsz", c_void_p(0), byref(graph))
    driver.call("cuGraphInstantiateWithFlags", byref(executable), graph, c_uint64(0))
    error = error or driver.code_of("cuGraphLaunch", executable, c_void_p(0))
    driver.synchronize()
    held += 0 if error else 512 * MIB
say({"error": error, "held_bytes": held})
hold()
"""
)

# Two contexts; the heap that was promised to the first is still promised when the second ends.
HEAP_AND_CONTEXTS = (
    _HEAD
    + """
driver = Driver()
context = c_void_p()
driver.call("cuCtxSetLimit", c_int(2), c_size_t(1024 * MIB))
driver.call("cuCtxCreate_v2", byref(context), c_uint(0), c_int(0))
driver.call("cuCtxDestroy_v2", context)
driver.call("cuCtxSetCurrent", driver.context)
say(take(driver))
hold()
"""
)

# Places in device memory that are newer than CUDA 13.0: a part of a device.
IN_A_PART_OF_THE_DEVICE = (
    _HEAD
    + """
from bench.lib.cuda_ways import AllocationProperties, Location
driver = Driver()
held, error = 0, 0
while held < 6144 * MIB and not error:
    handle = c_uint64()
    wanted = AllocationProperties(type=1, location=Location(6, 0))
    error = driver.code_of("cuMemCreate", byref(handle), c_size_t(512 * MIB), byref(wanted), c_uint64(0))
    held += 0 if error else 512 * MIB
say({"error": error, "held_bytes": held})
hold()
"""
)

IPC_FREED_BY_OWNER = (
    _IPC_HEAD
    + """
sys.stdin.readline()
driver.call("cuMemFree_v2", pointer)
say(take(driver))
hold()
"""
)

SET_LIMIT = """
import sys, pynvml
pynvml.nvmlInit()
limits = pynvml.c_nvmlSetMemoryLimits_v1_t(sys.argv[2].encode(), 0, int(sys.argv[3]))
pynvml.nvmlDeviceSetMemoryLimits_v1(pynvml.nvmlDeviceGetHandleByUUID(sys.argv[1]), limits)
"""
"""Of a cgroup on a device, as root."""
