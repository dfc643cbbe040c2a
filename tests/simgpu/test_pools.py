"""Stream-ordered memory, virtual memory and graphs: what they book, and when they give it back."""

from __future__ import annotations

from tests.simgpu.conftest import GIB, MIB, Machine

CONTEXT = 418 * MIB
OUT_OF_MEMORY = 2
INVALID_VALUE = 1
ILLEGAL_STATE, CAPTURE_UNSUPPORTED = 401, 900
RELEASE_THRESHOLD, RESERVED, USED = 4, 5, 7


def test_a_pool_keeps_freed_memory_until_work_is_synchronised(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, pointer = job.eval("cu.malloc_async(1 << 30)")
    assert job.eval(f"cu.free_async({pointer})") == 0
    assert machine.used() == CONTEXT + GIB
    assert job.eval("cu.malloc_async(1 << 30)[0]") == 0
    assert machine.used() == CONTEXT + GIB
    _, pool = job.eval("cu.out('cuDeviceGetDefaultMemPool', 0)")
    assert job.eval(f"cu.pool_attribute({pool}, {RESERVED})") == GIB
    assert job.eval(f"cu.pool_attribute({pool}, {USED})") == GIB


def test_a_release_threshold_keeps_memory_over_synchronisation(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    code, pool = job.eval("cu.pool()")
    assert code == 0
    job.exec("keep = ctypes.c_uint64(1 << 28)")
    threshold = f"'cuMemPoolSetAttribute', ctypes.c_void_p({pool}), {RELEASE_THRESHOLD}, ctypes.byref(keep)"
    assert job.eval(f"cu.call({threshold})") == 0
    _, pointer = job.eval(f"cu.from_pool({pool}, 1 << 30)")
    job.eval(f"cu.free_async({pointer})")
    job.eval("cu.call('cuCtxSynchronize')")
    assert machine.used() == CONTEXT + 256 * MIB
    assert job.eval(f"cu.call('cuMemPoolTrimTo', ctypes.c_void_p({pool}), ctypes.c_size_t(0))") == 0
    assert machine.used() == CONTEXT


def test_a_pool_gives_way_when_the_device_runs_short(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, free, _ = job.eval("cu.info()")
    _, pointer = job.eval(f"cu.malloc_async({free})")
    job.eval(f"cu.free_async({pointer})")
    assert job.eval(f"cu.malloc({free})[0]") == 0
    assert machine.scenario.device(0).free_bytes == 0


def test_a_pool_has_its_own_limit_and_outlives_its_destruction(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, pool = job.eval("cu.pool(1 << 30)")
    code, pointer = job.eval(f"cu.from_pool({pool}, 1 << 30)")
    assert code == 0
    assert job.eval(f"cu.from_pool({pool}, 512)[0]") == OUT_OF_MEMORY
    assert job.eval(f"cu.call('cuMemPoolDestroy', ctypes.c_void_p({pool}))") == 0
    assert job.eval(f"cu.from_pool({pool}, 512)[0]") == INVALID_VALUE
    assert machine.used() == CONTEXT + GIB
    assert job.eval(f"cu.free_async({pointer})") == 0
    assert machine.used() == CONTEXT


def test_physical_memory_lives_while_it_is_held_or_mapped(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    size = 64 * MIB
    _, handle = job.eval(f"cu.create({size})")
    _, start = job.eval(f"cu.reserve({2 * size})")
    assert machine.used() == CONTEXT + size
    assert job.eval(f"cu.map({start}, {size}, {handle})") == 0
    assert job.eval(f"cu.map({start}, {size}, {handle})") == 208
    assert job.eval(f"cu.map({start + size}, {size}, {handle})") == 0
    assert job.eval(f"cu.call('cuMemRelease', ctypes.c_uint64({handle}))") == 0
    assert machine.used() == CONTEXT + size
    _, again = job.eval(f"cu.out('cuMemRetainAllocationHandle', ctypes.c_void_p({start} + 4096))")
    assert again == handle
    assert job.eval(f"cu.call('cuMemUnmap', ctypes.c_uint64({start}), ctypes.c_size_t({2 * size}))") == 0
    assert machine.used() == CONTEXT + size
    assert job.eval(f"cu.call('cuMemRelease', ctypes.c_uint64({handle}))") == 0
    assert machine.used() == CONTEXT
    assert job.eval(f"cu.call('cuMemAddressFree', ctypes.c_uint64({start}), ctypes.c_size_t({2 * size}))") == 0


def test_mappings_need_a_reservation_and_whole_granules(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, handle = job.eval("cu.create(4 << 20)")
    assert job.eval("cu.create(4096)[0]") == INVALID_VALUE
    assert job.eval(f"cu.map(0x7f0000000000, 4 << 20, {handle})") == INVALID_VALUE
    _, start = job.eval("cu.reserve(4 << 20)")
    assert job.eval(f"cu.map({start}, 8 << 20, {handle})") == INVALID_VALUE
    assert job.eval(f"cu.map({start}, 4096, {handle})") == INVALID_VALUE
    assert job.eval(f"cu.map({start}, 4 << 20, {handle} + 8)") == INVALID_VALUE


def test_a_graph_allocates_when_it_runs_and_keeps_its_memory_until_trimmed(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    code, executable, _ = job.eval("cu.graph(('alloc', 1 << 30), ('free', 0))")
    assert code == 0
    assert machine.used() == CONTEXT
    for _ in range(3):
        assert job.eval(f"cu.call('cuGraphLaunch', ctypes.c_void_p({executable}), None)") == 0
        assert machine.used() == CONTEXT + GIB
    job.eval("cu.call('cuCtxSynchronize')")
    assert machine.used() == CONTEXT + GIB
    assert job.eval("cu.call('cuDeviceGraphMemTrim', 0)") == 0
    assert machine.used() == CONTEXT


def test_a_graph_that_frees_nothing_leaves_it_to_the_program(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, executable, pointers = job.eval("cu.graph(('alloc', 1 << 30))")
    launch = f"cu.call('cuGraphLaunch', ctypes.c_void_p({executable}), None)"
    assert job.eval(launch) == 0
    assert job.eval(launch) == INVALID_VALUE
    assert job.eval(f"cu.free_async({pointers[0]})") == 0
    assert job.eval(launch) == 0
    assert machine.used() == CONTEXT + GIB


def test_a_graph_too_large_for_the_device_fails_at_launch(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, executable, _ = job.eval("cu.graph(('alloc', 30 << 30), ('alloc', 30 << 30))")
    assert job.eval(f"cu.call('cuGraphLaunch', ctypes.c_void_p({executable}), None)") == OUT_OF_MEMORY


def test_what_is_captured_from_a_stream_is_booked_when_its_graph_runs(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, stream = job.eval("cu.out('cuStreamCreate', 1)")
    job.exec(f"s = ctypes.c_void_p({stream}); g = ctypes.c_void_p(); size = ctypes.c_size_t(1 << 30)")
    end = "cu.call('cuStreamEndCapture', s, ctypes.byref(g))"
    begin = "cu.call('cuStreamBeginCapture_v2', s, 2)"
    assert job.eval("cu.call('cuStreamBeginCapture_v2', None, 2)") == CAPTURE_UNSUPPORTED
    assert job.eval(end) == ILLEGAL_STATE
    assert (job.eval(begin), job.eval(begin)) == (0, ILLEGAL_STATE)
    code, pointer = job.eval("cu.out('cuMemAllocAsync', size, s)")
    assert code == 0
    assert job.eval(f"cu.call('cuMemFreeAsync', ctypes.c_uint64({pointer}), s)") == 0
    assert job.eval("cu.call('cuStreamSynchronize', s)") == CAPTURE_UNSUPPORTED
    assert job.eval(end) == 0
    assert machine.used() == CONTEXT
    _, executable = job.eval("cu.out('cuGraphInstantiateWithFlags', g, ctypes.c_uint64(0))")
    assert job.eval(f"cu.call('cuGraphLaunch', ctypes.c_void_p({executable}), s)") == 0
    assert job.eval("cu.call('cuStreamSynchronize', s)") == 0
    assert machine.used() == CONTEXT + GIB
    assert job.eval("cu.call('cuDeviceGraphMemTrim', 0)") == 0
    assert machine.used() == CONTEXT
