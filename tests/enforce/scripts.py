"""Programs of the attempts, in Python: each takes what it can, prints one line of JSON, and holds on."""

from __future__ import annotations

_HEAD = """
import ctypes, json, os, sys, time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from aliquot.agent.doctor.cuda import Driver, DriverError
from aliquot.agent.doctor.ways import WAYS
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

IPC_OWNER = (
    _HEAD
    + """
driver = Driver()
pointer, handle = c_uint64(), (ctypes.c_ubyte * 64)()
driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(2048 * MIB))
driver.call("cuIpcGetMemHandle", byref(handle), pointer)
say({"handle": bytes(handle).hex()})
hold()
"""
)

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
take(driver, most=3584 * MIB)
path = Path(sys.argv[1]) / "account"
held = files._AccountFile.held.offset
with path.open("r+b") as account:
    account.seek(held)
    account.write(bytes(path.stat().st_size - held))
say(take(driver, most=2048 * MIB))
hold()
"""
)

FILL_SLOTS = (
    _HEAD
    + """
from pathlib import Path
from aliquot.agent.enforce import preload_files as files
from aliquot.agent.processes import key_of
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
