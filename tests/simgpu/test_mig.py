"""MIG: cutting a device, the limits of a cut, and processes on the parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aliquot.simgpu import MODELS, ScenarioError
from tests.simgpu.conftest import GIB, MIB, Machine

pytestmark = pytest.mark.root("to cut a card")

NOT_SUPPORTED, INVALID_ARGUMENT, NOT_FOUND, IN_USE, INSUFFICIENT_RESOURCES = 3, 2, 6, 19, 23
CONTEXT = 418 * MIB
ENABLE = "n.nvmlDeviceSetMigMode(h[0], 1)"
TOOLS = """
def profile(kind):
    return n.nvmlDeviceGetGpuInstanceProfileInfo(h[0], kind)

def placements(profile_id):
    count = ctypes.c_uint(16)
    found = (n.c_nvmlGpuInstancePlacement_t * 16)()
    n.nvmlDeviceGetGpuInstancePossiblePlacements(h[0], profile_id, found, ctypes.byref(count))
    return [(p.start, p.size) for p in found[:count.value]]

def cut(kind, start=None):
    info = profile(kind)
    if start is None:
        gi = n.nvmlDeviceCreateGpuInstance(h[0], info.id)
    else:
        size = placements(info.id)[0][1]
        place = ctypes.byref(n.c_nvmlGpuInstancePlacement_t(start, size))
        gi = n.nvmlDeviceCreateGpuInstanceWithPlacement(h[0], info.id, place)
    ci_kind = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4}[info.sliceCount]
    ci = n.nvmlGpuInstanceCreateComputeInstance(gi, n.nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, ci_kind, 0).id)
    return gi, ci

def mig(index):
    return n.nvmlDeviceGetMigDeviceHandleByIndex(h[0], index)

def uuids():
    found = []
    for index in range(n.nvmlDeviceGetMaxMigDeviceCount(h[0])):
        try:
            found.append(n.nvmlDeviceGetUUID(mig(index)))
        except n.NVMLError_NotFound:
            pass
    return found
"""


@pytest.fixture
def cuttable(make_machine: Callable[..., Machine]) -> Machine:
    """One A100 with MIG on."""
    machine = make_machine("A100-40")
    machine.nvml.exec(TOOLS)
    machine.nvml.eval(ENABLE)
    return machine


@pytest.mark.parametrize("key", ["A100-40", "A100-80", "H100-80", "H200"])
def test_the_geometry_is_the_one_of_the_model(make_machine: Callable[..., Machine], key: str) -> None:
    machine = make_machine(key)
    machine.nvml.exec(TOOLS)
    machine.nvml.eval(ENABLE)
    for wanted in MODELS[key].profiles:
        info = machine.nvml.eval(f"profile({wanted.kind})")
        assert (info["id"], info["sliceCount"], info["instanceCount"]) == (wanted.id, wanted.slices, wanted.count_max)
        assert info["memorySizeMB"] == wanted.memory_mib
        starts = machine.nvml.eval(f"placements({wanted.id})")
        assert starts == [[start, wanted.memory_slices] for start in wanted.starts]
        name = machine.nvml.eval(f"n.nvmlDeviceGetGpuInstanceProfileInfoV(h[0], {wanted.kind}).name")
        assert name == f"MIG {wanted.name}"
    assert machine.error("profile(5)") == NOT_SUPPORTED


def test_models_without_mig_say_so(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine("T4")
    assert machine.error("n.nvmlDeviceGetMigMode(h[0])") == NOT_SUPPORTED
    assert machine.error(ENABLE) == NOT_SUPPORTED
    with pytest.raises(ScenarioError, match="no MIG"):
        machine.scenario.set_mig_mode(0, enabled=True)


def test_the_mode_stays_pending_while_the_device_is_used(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine("A100-40")
    job = machine.child()
    job.eval("cu.context()")
    machine.nvml.exec("status = ctypes.c_int(); fn = n._nvmlGetFunctionPointer('nvmlDeviceSetMigMode')")
    assert machine.nvml.eval("fn(h[0], 1, ctypes.byref(status))") == 0
    assert machine.nvml.eval("status.value") == IN_USE
    assert machine.nvml.eval("n.nvmlDeviceGetMigMode(h[0])") == [0, 1]
    job.kill()
    machine.scenario.reset(0)
    assert machine.nvml.eval("n.nvmlDeviceGetMigMode(h[0])") == [1, 1]


def test_a_device_is_cut_and_put_together_again(cuttable: Machine) -> None:
    nvml = cuttable.nvml
    nvml.exec("a = cut(2, 0); b = cut(0, 4); c = cut(0, 6)")
    assert len(set(nvml.eval("uuids()"))) == 3
    assert nvml.eval("n.nvmlDeviceGetName(mig(0))") == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert nvml.eval("n.nvmlDeviceGetMemoryInfo(mig(0)).total") == 19968 * MIB
    attributes = nvml.eval("n.nvmlDeviceGetAttributes(mig(0))")
    assert (attributes["multiprocessorCount"], attributes["gpuInstanceSliceCount"]) == (42, 3)
    assert nvml.eval("[n.nvmlDeviceGetGpuInstanceId(mig(i)) for i in range(3)]") == [1, 2, 3]
    assert nvml.eval("[n.nvmlDeviceIsMigDeviceHandle(x).value for x in (mig(0), h[0])]") == [1, 0]
    parent = "n.nvmlDeviceGetUUID(n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(mig(2)))"
    assert nvml.eval(parent) == cuttable.scenario.device(0).uuid
    assert nvml.eval("n.nvmlGpuInstanceGetInfo(b[0]).placement.start") == 4
    assert cuttable.error("n.nvmlGpuInstanceDestroy(a[0])") == IN_USE
    nvml.exec("old = mig(0); n.nvmlComputeInstanceDestroy(a[1]); n.nvmlGpuInstanceDestroy(a[0])")
    assert len(nvml.eval("uuids()")) == 2
    assert cuttable.error("n.nvmlDeviceGetUUID(old)") == INVALID_ARGUMENT
    assert cuttable.error("n.nvmlGpuInstanceGetInfo(a[0])") == INVALID_ARGUMENT


def test_the_same_cut_has_the_same_names(cuttable: Machine) -> None:
    cuttable.nvml.exec("a = cut(2, 0)")
    before = cuttable.nvml.eval("uuids()")
    cuttable.nvml.exec("n.nvmlComputeInstanceDestroy(a[1]); n.nvmlGpuInstanceDestroy(a[0]); a = cut(2, 0)")
    assert cuttable.nvml.eval("uuids()") == before
    found = cuttable.nvml.eval(f"n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByUUID('{before[0]}'))")
    assert found.endswith("3g.20gb")


def test_instances_never_overlap(cuttable: Machine) -> None:
    nvml = cuttable.nvml
    nvml.exec("a = cut(2, 4)")
    assert cuttable.error("cut(3, 4)") == INSUFFICIENT_RESOURCES
    assert cuttable.error("cut(0, 5)") == INSUFFICIENT_RESOURCES
    assert cuttable.error("cut(0, 9)") == INVALID_ARGUMENT
    assert cuttable.error("cut(4)") == INSUFFICIENT_RESOURCES
    remaining = "n.nvmlDeviceGetGpuInstanceRemainingCapacity(h[0], profile({}).id)"
    assert [nvml.eval(remaining.format(kind)) for kind in (0, 1, 2, 3, 4)] == [4, 2, 1, 1, 0]
    nvml.exec("b = cut(3)")
    assert cuttable.error("cut(0)") == INSUFFICIENT_RESOURCES


def test_seven_small_ones_fill_a_device(cuttable: Machine) -> None:
    cuttable.nvml.exec("parts = [cut(0) for _ in range(7)]")
    assert len(set(cuttable.nvml.eval("uuids()"))) == 7
    assert cuttable.error("cut(0)") == INSUFFICIENT_RESOURCES


def test_compute_instances_share_the_memory_of_theirs(cuttable: Machine) -> None:
    nvml = cuttable.nvml
    nvml.exec("gi = n.nvmlDeviceCreateGpuInstance(h[0], profile(2).id)")
    nvml.exec("one, two = (n.nvmlGpuInstanceCreateComputeInstance(gi, 0) for _ in range(2))")
    assert nvml.eval("n.nvmlDeviceGetName(mig(1))") == "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"
    assert nvml.eval("n.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(gi, 0)") == 1
    assert cuttable.error("n.nvmlGpuInstanceCreateComputeInstance(gi, 2)") == INSUFFICIENT_RESOURCES
    uuids = nvml.eval("uuids()")
    jobs = [cuttable.child(CUDA_VISIBLE_DEVICES=uuid) for uuid in uuids]
    for job in jobs:
        assert job.eval("cu.context()") == 0
    _, free, total = jobs[0].eval("cu.info()")
    assert total == 19968 * MIB
    assert free == total - 2 * CONTEXT


def test_processes_live_within_their_instance(cuttable: Machine) -> None:
    cuttable.nvml.exec("a = cut(0, 0); b = cut(2, 4)")
    small, large = cuttable.nvml.eval("uuids()")
    one, two = cuttable.child(CUDA_VISIBLE_DEVICES=small), cuttable.child(CUDA_VISIBLE_DEVICES=large)
    assert one.eval("cu.context()") == 0
    assert two.eval("cu.context()") == 0
    assert one.eval("cu.out('cuDeviceGetCount')") == [0, 1]
    assert one.eval("cu.malloc(5 << 30)[0]") == 2
    assert one.eval("cu.malloc(4 << 30)[0]") == 0
    assert two.eval("cu.malloc(15 << 30)[0]") == 0
    rows = cuttable.nvml.eval("n.nvmlDeviceGetComputeRunningProcesses_v3(h[0])")
    found = {row["pid"]: (row["usedGpuMemory"], row["gpuInstanceId"], row["computeInstanceId"]) for row in rows}
    assert found == {one.pid: (CONTEXT + 4 * GIB, 1, 0), two.pid: (CONTEXT + 15 * GIB, 2, 0)}
    (row,) = cuttable.nvml.eval("n.nvmlDeviceGetComputeRunningProcesses_v3(mig(0))")
    assert row["pid"] == one.pid
    assert cuttable.nvml.eval("n.nvmlDeviceGetMemoryInfo(mig(0)).used") == CONTEXT + 4 * GIB
    assert cuttable.error("n.nvmlComputeInstanceDestroy(a[1])") == IN_USE
    one.kill()
    cuttable.nvml.exec("n.nvmlComputeInstanceDestroy(a[1])")


def test_a_cut_device_shows_its_first_part_by_default(cuttable: Machine) -> None:
    assert cuttable.child().eval("cu.call('cuInit', 0)") == 100
    cuttable.nvml.exec("a = cut(1, 0); b = cut(0, 4)")
    job = cuttable.child()
    assert job.eval("cu.context()") == 0
    assert job.eval("cu.info()[2]") == 9856 * MIB


def test_a_cut_device_has_no_load_of_its_own(cuttable: Machine) -> None:
    assert cuttable.error("n.nvmlDeviceGetUtilizationRates(h[0])") == NOT_SUPPORTED
    cuttable.nvml.exec("a = cut(0, 0)")
    assert cuttable.error("n.nvmlDeviceGetUtilizationRates(mig(0))") == NOT_SUPPORTED
    assert cuttable.error("n.nvmlDeviceGetPowerUsage(mig(0))") == NOT_SUPPORTED


GPM = """
import time

def sample(handle=None, gpu_instance=None):
    taken = n.nvmlGpmSampleAlloc()
    n.nvmlGpmSampleGet(h[0], taken) if gpu_instance is None else n.nvmlGpmMigSampleGet(h[0], gpu_instance, taken)
    return taken

def metrics(first, second, *ids):
    wanted = n.c_nvmlGpmMetricsGet_t()
    wanted.version, wanted.numMetrics, wanted.sample1, wanted.sample2 = 1, len(ids), first, second
    for place, number in enumerate(ids):
        wanted.metrics[place].metricId = number
    n.nvmlGpmMetricsGet(wanted)
    return [(m.nvmlReturn, m.value) for m in wanted.metrics[: len(ids)]]
"""


def test_performance_metrics_need_hopper_and_a_moment_between_samples(make_machine: Callable[..., Machine]) -> None:
    old, new = make_machine("A100-40"), make_machine("H100-80")
    assert old.nvml.eval("n.nvmlGpmQueryDeviceSupport(h[0]).isSupportedDevice") == 0
    assert new.nvml.eval("n.nvmlGpmQueryDeviceSupport(h[0]).isSupportedDevice") == 1
    old.nvml.exec(GPM)
    assert old.error("sample()") == NOT_SUPPORTED
    new.nvml.exec(GPM)
    new.scenario.set(0, gpu_percent=60, memory_percent=40)
    new.nvml.exec("one = sample(); time.sleep(0.15); two = sample()")
    (sm, sm_value), (dram, dram_value), (odd, _) = new.nvml.eval("metrics(one, two, 2, 10, 30)")
    assert (sm, sm_value, dram, dram_value, odd) == (0, 60, 0, 40, NOT_SUPPORTED)
    assert new.error("metrics(two, two, 2)") == INVALID_ARGUMENT


def test_instances_have_performance_metrics_of_their_own(make_machine: Callable[..., Machine]) -> None:
    machine = make_machine("H100-80")
    machine.nvml.exec(TOOLS + GPM)
    machine.nvml.eval(ENABLE)
    machine.nvml.exec("a = cut(2, 0)")
    job = machine.child(CUDA_VISIBLE_DEVICES=machine.nvml.eval("uuids()")[0])
    job.eval("cu.context()")
    machine.nvml.exec("one = sample(gpu_instance=1); time.sleep(0.15); two = sample(gpu_instance=1)")
    assert machine.nvml.eval("metrics(one, two, 2)") == [[0, 0]]
    assert machine.error("sample(gpu_instance=9)") == INVALID_ARGUMENT
