"""What processes allocate through the CUDA driver is what NVML shows, for exactly as long as they hold it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.polling import eventually
from tests.simgpu.conftest import GIB, MIB, Machine

CONTEXT = 418 * MIB
OUT_OF_MEMORY = 2
INVALID_VALUE = 1


def test_an_idle_machine_holds_nothing(machine: Machine) -> None:
    assert machine.processes() == {}
    assert machine.used() == 0


def test_a_context_costs_memory_and_gives_it_back(machine: Machine) -> None:
    job = machine.child()
    assert job.eval("cu.context(1)") == 0
    assert machine.processes(0) == {}
    assert machine.processes(1) == {job.pid: CONTEXT}
    assert job.eval("cu.call('cuDevicePrimaryCtxRelease_v2', 1)") == 0
    assert machine.used(1) == 0


def test_further_contexts_cost_as_much_each(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    code, first = job.eval("cu.out('cuCtxCreate_v2', 0, 0)")
    assert code == 0
    code, _ = job.eval("cu.out('cuCtxCreate_v3', None, 0, 0, 0)")
    code, _ = job.eval("cu.out('cuCtxCreate_v4', None, 0, 0)")
    assert code == 0
    assert machine.used() == 4 * CONTEXT
    assert job.eval(f"cu.call('cuCtxDestroy_v2', ctypes.c_void_p({first}))") == 0
    assert machine.used() == 3 * CONTEXT


def test_every_kind_of_allocation_is_booked_and_given_back(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    for allocate, free, size in (
        ("cu.malloc(1 << 30)", "cu.free", GIB),
        ("cu.pitch(1000, 1000)[:2]", "cu.free", 1024 * 1000),
        ("cu.managed(1 << 28)", "cu.free", 256 * MIB),
        ("cu.malloc_async(1 << 28)", "cu.free", 256 * MIB),
        ("cu.array(1024, 1024)", "lambda a: cu.call('cuArrayDestroy', ctypes.c_void_p(a))", 4 * MIB),
        ("cu.array3d(64, 64, 64)", "lambda a: cu.call('cuArrayDestroy', ctypes.c_void_p(a))", MIB),
        ("cu.create(1 << 26)", "lambda h: cu.call('cuMemRelease', ctypes.c_uint64(h))", 64 * MIB),
    ):
        code, handle = job.eval(allocate)
        assert code == 0, allocate
        assert machine.used() == CONTEXT + size, allocate
        assert machine.processes() == {job.pid: CONTEXT + size}
        assert job.eval(f"({free})({handle})") == 0
        job.eval("cu.call('cuCtxSynchronize')")
        assert machine.used() == CONTEXT, allocate


def test_a_mipmapped_array_costs_all_its_levels(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    assert job.eval("cu.mipmap(1024, 1024, 3)[0]") == 0
    assert machine.used() == CONTEXT + (1024 * 1024 + 512 * 512 + 256 * 256) * 4


def test_a_context_takes_its_allocations_with_it(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, context = job.eval("cu.out('cuCtxCreate_v2', 0, 0)")
    code, pointer = job.eval("cu.malloc(1 << 30)")
    assert code == 0
    job.eval("cu.array(1024, 1024)")
    job.eval(f"cu.call('cuCtxDestroy_v2', ctypes.c_void_p({context}))")
    assert machine.used() == CONTEXT
    assert job.eval(f"cu.free({pointer})") == INVALID_VALUE


def test_freeing_twice_or_what_is_not_ours_is_refused(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, pointer = job.eval("cu.malloc(4096)")
    assert job.eval(f"cu.free({pointer} + 512)") == INVALID_VALUE
    assert job.eval(f"cu.free({pointer})") == 0
    assert job.eval(f"cu.free({pointer})") == INVALID_VALUE
    assert job.eval("cu.free(0x1234000)") == INVALID_VALUE
    assert job.eval("cu.free(0)") == 0
    assert machine.used() == CONTEXT


def test_no_more_than_the_device_has(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, free, total = job.eval("cu.info()")
    device = machine.scenario.device(0)
    assert total == device.total_bytes - device.reserved_bytes
    assert free == total - CONTEXT
    assert job.eval(f"cu.malloc({free} + 512)[0]") == OUT_OF_MEMORY
    code, pointer = job.eval(f"cu.malloc({free})")
    assert code == 0
    assert job.eval("cu.malloc(1)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.create(2 << 20)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.array(16, 16)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.malloc_async(1)[0]") == OUT_OF_MEMORY
    assert machine.scenario.device(0).free_bytes == 0
    assert job.eval(f"cu.free({pointer})") == 0
    assert job.eval(f"cu.malloc({free})[0]") == 0


def test_absurd_sizes_are_refused(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    assert job.eval("cu.malloc(2 ** 64 - 1)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.malloc(2 ** 63)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.pitch(2 ** 40, 2 ** 40)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.array3d(2 ** 40, 2 ** 40, 2 ** 40)[0]") == OUT_OF_MEMORY
    assert job.eval("cu.malloc(0)[0]") == INVALID_VALUE
    assert machine.used() == CONTEXT


def test_managed_memory_may_exceed_the_device_and_gives_way(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, free, _ = job.eval("cu.info()")
    assert job.eval(f"cu.managed(2 * {free})[0]") == 0
    assert machine.scenario.device(0).free_bytes == 0
    assert job.eval("cu.malloc(1 << 30)[0]") == 0
    assert machine.scenario.device(0).processes[0].managed_bytes == free - GIB


def test_limits_of_a_context_cost_memory(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    heap, stack = 2, 0
    assert job.eval(f"cu.call('cuCtxSetLimit', {heap}, ctypes.c_size_t(1 << 30))") == 0
    assert machine.used() == CONTEXT + GIB - 8 * MIB
    assert job.eval(f"cu.call('cuCtxSetLimit', {heap}, ctypes.c_size_t(8 << 20))") == 0
    assert machine.used() == CONTEXT
    assert job.eval(f"cu.call('cuCtxSetLimit', {stack}, ctypes.c_size_t(2048))") == 0
    assert machine.used() == CONTEXT + 1024 * 108 * 2048
    assert job.eval(f"cu.out('cuCtxGetLimit', {stack})") == [0, 2048]
    assert job.eval(f"cu.call('cuCtxSetLimit', {stack}, ctypes.c_size_t(1 << 30))") == OUT_OF_MEMORY


def test_a_module_costs_its_globals(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    image = (
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .global .align 4 .b8 table[104857600];\n"
        ".visible .entry work(.param .u64 p) { ret; }"
    )
    code, module = job.eval(f"cu.module({image!r})")
    assert code == 0
    assert 100 * MIB <= machine.used() - CONTEXT < 101 * MIB
    size = "ctypes.c_size_t()"
    job.exec(f"size = {size}")
    job.eval(f"cu.out('cuModuleGetGlobal_v2', ctypes.byref(size), ctypes.c_void_p({module}), b'table')")
    assert job.eval("size.value") == 100 * MIB
    assert job.eval(f"cu.out('cuModuleGetFunction', ctypes.c_void_p({module}), b'work')[0]") == 0
    assert job.eval(f"cu.out('cuModuleGetFunction', ctypes.c_void_p({module}), b'play')[0]") == 500
    assert job.eval(f"cu.call('cuModuleUnload', ctypes.c_void_p({module}))") == 0
    assert machine.used() == CONTEXT
    assert job.eval("cu.module('no image at all')[0]") == 200
    assert job.eval("cu.out('cuLibraryLoadData', " + repr(image.encode()) + ", None, None, 0, None, None, 0)[0]") == 0
    assert machine.used() > CONTEXT + 100 * MIB


def test_a_process_that_ends_leaves_nothing(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    job.eval("cu.malloc(1 << 30)")
    job.close()
    assert machine.scenario.device(0).processes == ()
    assert machine.used() == 0


def test_a_killed_process_is_reaped_even_before_anybody_waits_for_it(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    job.eval("cu.malloc(8 << 30)")
    job.eval("cu.malloc_async(8 << 30)")
    assert machine.used() == CONTEXT + 16 * GIB
    job.kill()
    assert machine.processes() == {}
    assert machine.used() == 0


def test_the_next_allocation_reaps_the_dead(machine: Machine) -> None:
    one, two = machine.child(), machine.child()
    one.eval("cu.context()")
    two.eval("cu.context()")
    assert one.eval("cu.malloc(30 << 30)[0]") == 0
    assert two.eval("cu.malloc(30 << 30)[0]") == OUT_OF_MEMORY
    one.kill()
    assert two.eval("cu.malloc(30 << 30)[0]") == 0


def test_exec_drops_what_the_program_before_held(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    job.eval("cu.malloc(1 << 30)")
    job.start("os.execvp('sleep', ['sleep', '60'])")
    eventually(lambda: machine.processes() == {})
    assert machine.used() == 0
    job.kill()


def test_a_forked_child_has_nothing_until_it_initialises(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, pointer = job.eval("cu.malloc(1 << 30)")
    job.exec(
        f"""
import json
r, w = os.pipe()
stay, leave = os.pipe()
if os.fork() == 0:
    os.close(leave)
    codes = [cu.malloc(4096)[0], cu.free({pointer}), cu.info()[0]]
    codes += [cu.context(), cu.free({pointer}), cu.malloc(1 << 28)[0]]
    os.write(w, json.dumps([codes, os.getpid()]).encode())
    os.read(stay, 1)
    os._exit(0)
"""
    )
    codes, pid = job.eval("json.loads(os.read(r, 1000))")
    assert codes == [3, 3, 3, 0, INVALID_VALUE, 0]
    assert machine.processes() == {job.pid: CONTEXT + GIB, pid: CONTEXT + 256 * MIB}
    assert job.eval(f"cu.free({pointer})") == 0
    job.exec("os.close(leave)")
    eventually(lambda: machine.processes() == {job.pid: CONTEXT})


def test_many_allocations_come_and_go(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    job.exec(
        """
import random
random.seed(7)
held, total = {}, 0
for step in range(6000):
    if held and random.random() < 0.5:
        pointer = random.choice(list(held))
        assert cu.free(pointer) == 0
        total -= held.pop(pointer)
    else:
        size = random.randrange(1, 3 << 20)
        code, pointer = cu.malloc(size)
        assert code == 0 and pointer not in held
        held[pointer] = (size + 511) // 512 * 512
        total += held[pointer]
ranges = sorted((p, p + s) for p, s in held.items())
assert all(a[1] <= b[0] for a, b in zip(ranges, ranges[1:]))
"""
    )
    assert machine.used() == CONTEXT + job.eval("total")
    job.exec("[cu.free(p) for p in held]")
    assert machine.used() == CONTEXT


@pytest.mark.parametrize("models", [("T4",), ("V100-32",), ("H100-80",), ("H200",)])
def test_other_models_have_their_own_memory(make_machine: Callable[..., Machine], models: tuple[str, ...]) -> None:
    machine = make_machine(*models)
    job = machine.child()
    assert job.eval("cu.context()") == 0
    device = machine.scenario.device(0)
    _, free, total = job.eval("cu.info()")
    assert total == device.total_bytes - device.reserved_bytes
    assert total - free == device.processes[0].context_bytes == machine.used()
