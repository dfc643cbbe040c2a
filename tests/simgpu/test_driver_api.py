"""The CUDA driver around memory: devices, contexts, lookup by name, streams, kernels, copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.polling import eventually
from tests.simgpu.conftest import MIB, Machine

NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, UNKNOWN = 3, 100, 101, 201, 999


def test_without_a_scenario_there_is_no_device(machine: Machine) -> None:
    child = machine.child(ALIQUOT_SIMGPU="")
    assert child.eval("cu.call('cuInit', 0)") == NO_DEVICE
    assert child.eval("cu.malloc(4096)[0]") == NOT_INITIALIZED
    other = machine.child(ALIQUOT_SIMGPU="/etc/passwd")
    assert other.eval("cu.call('cuInit', 0)") == NO_DEVICE


def test_calls_want_initialisation_and_a_context(machine: Machine) -> None:
    job = machine.child()
    assert job.eval("cu.malloc(4096)[0]") == NOT_INITIALIZED
    assert job.eval("cu.call('cuInit', 0)") == 0
    assert job.eval("cu.malloc(4096)[0]") == INVALID_CONTEXT
    assert job.eval("cu.out('cuDevicePrimaryCtxRetain', 7)[0]") == INVALID_DEVICE


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1, 2]),
        ("1", [1]),
        ("2,0", [2, 0]),
        ("0,9,1", [0]),
        ("1,1", None),
        ("", None),
        ("-1", None),
        ("{uuid1},{uuid0}", [1, 0]),
        ("{prefix2}", [2]),
        ("GPU-", None),
    ],
)
def test_visible_devices_are_honoured(
    make_machine: Callable[..., Machine], visible: str | None, expected: list[int] | None
) -> None:
    machine = make_machine("A100-40", "A100-40", "T4")
    uuids = [device.uuid for device in machine.scenario.devices()]
    variables = {}
    if visible is not None:
        names = {f"uuid{i}": uuid for i, uuid in enumerate(uuids)}
        variables["CUDA_VISIBLE_DEVICES"] = visible.format(**names, prefix2=uuids[2][:10])
    job = machine.child(**variables)
    if expected is None:
        assert job.eval("cu.call('cuInit', 0)") == NO_DEVICE
        return
    assert job.eval("cu.call('cuInit', 0)") == 0
    job.exec("import uuid")
    found = job.eval(
        "[str(uuid.UUID(bytes=b.raw)) for i in range(cu.out('cuDeviceGetCount')[1]) "
        "for b in [ctypes.create_string_buffer(16)] if cu.call('cuDeviceGetUuid_v2', b, i) == 0]"
    )
    assert [f"GPU-{item}" for item in found] == [uuids[i] for i in expected]


def test_a_lost_device_fails_its_processes(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    machine.scenario.lose(0)
    assert job.eval("cu.malloc(4096)[0]") == UNKNOWN
    machine.scenario.restore(0)
    assert job.eval("cu.malloc(4096)[0]") == 0


def test_exclusive_mode_admits_one_process(machine: Machine) -> None:
    machine.scenario.set(0, compute_mode=3)
    one, two = machine.child(), machine.child()
    assert one.eval("cu.context()") == 0
    assert two.eval("cu.context()") == 46
    one.kill()
    assert two.eval("cu.context()") == 0
    machine.scenario.set(1, compute_mode=2)
    assert two.eval("cu.context(1)") == 46


def test_contexts_stack_per_thread(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, primary = job.eval("cu.out('cuCtxGetCurrent')")
    _, other = job.eval("cu.out('cuCtxCreate_v2', 0, 1)")
    assert job.eval("cu.out('cuCtxGetDevice')") == [0, 1]
    assert job.eval("cu.out('cuCtxPopCurrent_v2')") == [0, other]
    assert job.eval("cu.out('cuCtxGetCurrent')") == [0, primary]
    job.exec("import threading; seen = []")
    job.exec("t = threading.Thread(target=lambda: seen.append(cu.out('cuCtxGetCurrent'))); t.start(); t.join()")
    assert job.eval("seen") == [[0, 0]]
    assert job.eval(f"cu.call('cuCtxDestroy_v2', ctypes.c_void_p({other}))") == 0
    assert job.eval(f"cu.call('cuCtxSetCurrent', ctypes.c_void_p({other}))") == 709


@pytest.mark.parametrize(
    ("name", "version", "found", "status"),
    [
        ("cuMemAlloc", 12000, True, 0),
        ("cuMemAlloc", 2000, False, 2),
        ("cuMemAllocAsync", 11020, True, 0),
        ("cuMemAllocAsync", 11010, False, 2),
        ("cuCtxCreate", 13000, True, 0),
        ("cuGetProcAddress", 12000, True, 0),
        ("cuNoSuchThing", 12000, False, 1),
    ],
)
def test_functions_are_found_by_name_and_version(
    machine: Machine, name: str, version: int, found: bool, status: int
) -> None:
    child = machine.child()
    child.eval("cu.call('cuInit', 0)")
    assert child.eval(f"cu.proc('{name}', {version})") == [0, found, status]


def test_a_version_newer_than_the_driver_is_refused(machine: Machine) -> None:
    child = machine.child()
    child.eval("cu.call('cuInit', 0)")
    assert child.eval("cu.proc('cuInit', 99000)[0]") == 1


def test_the_versioned_function_is_the_exported_one(machine: Machine) -> None:
    child = machine.child()
    child.eval("cu.call('cuInit', 0)")
    child.exec(
        """
def address(name, version, flags=0):
    function = ctypes.c_void_p()
    cu.lib.cuGetProcAddress_v2(name.encode(), ctypes.byref(function), version, ctypes.c_uint64(flags), None)
    return function.value
exported = lambda name: ctypes.cast(getattr(cu.lib, name), ctypes.c_void_p).value
"""
    )
    assert child.eval("address('cuMemAlloc', 12000) == exported('cuMemAlloc_v2')")
    assert child.eval("address('cuCtxCreate', 4000) == exported('cuCtxCreate_v2')")
    assert child.eval("address('cuCtxCreate', 12080) == exported('cuCtxCreate_v4')")
    assert child.eval("address('cuLaunchKernel', 12000, 2) == exported('cuLaunchKernel_ptsz')")


def test_errors_have_names(machine: Machine) -> None:
    child = machine.child()
    child.exec("name = ctypes.c_char_p()")
    assert child.eval("cu.call('cuGetErrorName', 2, ctypes.byref(name))") == 0
    assert child.eval("name.value") == "CUDA_ERROR_OUT_OF_MEMORY"
    assert child.eval("cu.call('cuGetErrorName', 12345, ctypes.byref(name))") == 1


def test_copies_check_their_pointers(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, pointer = job.eval("cu.malloc(4096)")
    job.exec("host = ctypes.create_string_buffer(b'x' * 4096, 4096)")
    copy_in = "cu.call('cuMemcpyHtoD_v2', ctypes.c_uint64({}), host, ctypes.c_size_t({}))"
    assert job.eval(copy_in.format(pointer, 4096)) == 0
    assert job.eval(copy_in.format(pointer + 1, 4096)) == 1
    assert job.eval(copy_in.format(12345, 1)) == 1
    assert job.eval(f"cu.call('cuMemcpyDtoH_v2', host, ctypes.c_uint64({pointer}), ctypes.c_size_t(4096))") == 0
    assert job.eval("host.raw == bytes(4096)")


def test_backed_memory_holds_what_was_written(machine: Machine) -> None:
    job = machine.child(ALIQUOT_SIMGPU_BACKED="1")
    job.eval("cu.context()")
    _, pointer = job.eval("cu.malloc(4096)")
    job.exec("host = ctypes.create_string_buffer(b'abc', 4096)")
    job.eval(f"cu.call('cuMemcpyHtoD_v2', ctypes.c_uint64({pointer}), host, ctypes.c_size_t(4096))")
    job.exec("back = ctypes.create_string_buffer(3)")
    job.eval(f"cu.call('cuMemcpyDtoH_v2', back, ctypes.c_uint64({pointer}), ctypes.c_size_t(3))")
    assert job.eval("back.raw") == "abc"


def test_kernels_keep_the_device_busy_and_processes_share_it(machine: Machine) -> None:
    """Two processes that each ask for more than half of the device get all of it together, and wait for each other."""
    jobs = [machine.child(), machine.child()]
    for job in jobs:
        job.exec(
            """
import time
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda
cuda = Cuda()
spin = cuda.load_kernel(SPIN_KERNEL, "spin")
def work(until):
    while time.monotonic() < until:
        for _ in range(10):
            cuda.launch(spin, 2_000_000)
        cuda.synchronize()
"""
        )
        job.start("work(time.monotonic() + 3)")
    nvml = machine.nvml
    rates = "n.nvmlDeviceGetUtilizationRates(h[0])"
    eventually(lambda: nvml.eval(rates)["gpu"] >= 80)
    samples = nvml.eval("n.nvmlDeviceGetProcessUtilization(h[0], 0)")
    assert {sample["pid"] for sample in samples} == {job.pid for job in jobs}
    for job in jobs:
        job.finish()
    eventually(lambda: nvml.eval(rates)["gpu"] == 0)
    launches = [process.launches for process in machine.scenario.device(0).processes]
    assert all(count >= 10 for count in launches)


def test_events_measure_simulated_time(machine: Machine) -> None:
    job = machine.child()
    job.exec(
        """
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda
cuda = Cuda()
spin = cuda.load_kernel(SPIN_KERNEL, "spin")
start, end = (cu.out("cuEventCreate", 0)[1] for _ in range(2))
cu.call("cuEventRecord", ctypes.c_void_p(start), None)
cuda.launch(spin, 30_000_000)
cu.call("cuEventRecord", ctypes.c_void_p(end), None)
busy = cu.call("cuEventQuery", ctypes.c_void_p(end))
cu.call("cuEventSynchronize", ctypes.c_void_p(end))
elapsed = ctypes.c_float()
cu.call("cuEventElapsedTime", ctypes.byref(elapsed), ctypes.c_void_p(start), ctypes.c_void_p(end))
"""
    )
    assert job.eval("busy") == 600
    assert job.eval("elapsed.value") >= 30


def test_the_cost_of_a_context_can_be_set(machine: Machine) -> None:
    machine.scenario.set(0, context_bytes=100 * MIB)
    job = machine.child()
    job.eval("cu.context()")
    assert machine.used() == 100 * MIB
