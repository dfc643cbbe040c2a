"""Processes as NVML lists them: foreign ones, unknown memory, versions, names, load."""

from __future__ import annotations

import subprocess

from aliquot.simgpu import FIRST_SYNTHETIC_PID
from tests.polling import eventually
from tests.simgpu.conftest import GIB, MIB, Machine

CONTEXT = 418 * MIB
NOT_AVAILABLE = 2**64 - 1
NOT_FOUND = 6


def test_foreign_processes_come_and_go(machine: Machine) -> None:
    pid = machine.scenario.add_foreign(0, 2 * GIB, name="miner")
    assert pid > FIRST_SYNTHETIC_PID
    assert machine.processes() == {pid: 2 * GIB}
    assert machine.nvml.eval(f"n.nvmlSystemGetProcessName({pid})") == "miner"
    assert machine.scenario.set_foreign_memory(0, pid, GIB)
    assert machine.processes() == {pid: GIB}
    assert machine.scenario.remove_foreign(0, pid)
    assert not machine.scenario.remove_foreign(0, pid)
    assert machine.used() == 0


def test_a_foreign_process_with_a_real_pid_ends_with_it(machine: Machine) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        machine.scenario.add_foreign(0, GIB, pid=process.pid)
        assert machine.processes() == {process.pid: GIB}
        assert machine.nvml.eval(f"n.nvmlSystemGetProcessName({process.pid})").endswith("/sleep")
        process.kill()
    eventually(lambda: machine.processes() == {})
    assert machine.used() == 0


def test_foreign_memory_leaves_less_for_others(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    _, free, _ = job.eval("cu.info()")
    machine.scenario.add_foreign(0, free - GIB)
    assert job.eval("cu.malloc(1 << 30)[0]") == 0
    assert job.eval("cu.malloc(1)[0]") == 2


def test_unknown_memory_is_none_and_still_taken(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    hidden = machine.scenario.add_foreign(0, GIB, memory_unknown=True)
    assert machine.processes() == {job.pid: CONTEXT, hidden: None}
    assert machine.used() == CONTEXT + GIB
    assert machine.scenario.set_memory_unknown(0, job.pid, unknown=True)
    assert machine.processes() == {job.pid: None, hidden: None}
    assert machine.scenario.set_memory_unknown(0, job.pid, unknown=False)
    machine.scenario.set(0, processes_memory_unknown=1)
    assert set(machine.processes().values()) == {None}
    machine.scenario.set(0, processes_memory_unknown=0)
    assert machine.processes()[job.pid] == CONTEXT


def test_graphics_processes_are_listed_apart(machine: Machine) -> None:
    pid = machine.scenario.add_foreign(0, GIB, graphics=True)
    assert machine.processes() == {}
    rows = machine.nvml.eval("n.nvmlDeviceGetGraphicsRunningProcesses_v3(h[0])")
    assert [(row["pid"], row["usedGpuMemory"]) for row in rows] == [(pid, GIB)]
    assert machine.nvml.eval("n.nvmlDeviceGetMPSComputeRunningProcesses_v3(h[0])") == []


def test_all_versions_of_the_list_agree(machine: Machine) -> None:
    pids = {machine.scenario.add_foreign(0, (i + 1) * MIB) for i in range(20)}
    for version in ("_v2", "_v3"):
        rows = machine.nvml.eval(f"n.nvmlDeviceGetComputeRunningProcesses{version}(h[0])")
        assert {row["pid"] for row in rows} == pids
        assert {row["gpuInstanceId"] for row in rows} == {0xFFFFFFFF}
    machine.nvml.exec(
        """
class V1(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("memory", ctypes.c_ulonglong)]
lib = ctypes.CDLL("libnvidia-ml.so.1")
count = ctypes.c_uint(3)
rows = (V1 * 20)()
small = lib.nvmlDeviceGetComputeRunningProcesses(h[0], ctypes.byref(count), rows)
needed = count.value
enough = lib.nvmlDeviceGetComputeRunningProcesses(h[0], ctypes.byref(count), rows)
"""
    )
    assert machine.nvml.eval("[small, needed, enough, count.value]") == [7, 20, 0, 20]
    assert set(machine.nvml.eval("[row.pid for row in rows]")) == pids


def test_the_detailed_list_has_all_kinds(machine: Machine) -> None:
    compute = machine.scenario.add_foreign(0, GIB)
    graphics = machine.scenario.add_foreign(0, GIB, graphics=True)
    rows = machine.nvml.eval("n.nvmlDeviceGetRunningProcessDetailList(h[0], n.nvmlProcessDetailList_v1, 3)")
    found = rows if isinstance(rows, list) else rows["procArray"]
    assert {row["pid"] for row in found} == {compute, graphics}


def test_load_per_process(machine: Machine) -> None:
    assert machine.error("n.nvmlDeviceGetProcessUtilization(h[0], 0)") == NOT_FOUND
    pid = machine.scenario.add_foreign(0, GIB, sm_percent=40)
    machine.scenario.add_foreign(0, GIB)
    (sample,) = machine.nvml.eval("n.nvmlDeviceGetProcessUtilization(h[0], 0)")
    assert (sample["pid"], sample["smUtil"]) == (pid, 40)
    machine.scenario.set_mig_mode(0, enabled=True)
    assert machine.error("n.nvmlDeviceGetProcessUtilization(h[0], 0)") == 3


def test_a_device_takes_as_many_processes_as_it_has_room_for(machine: Machine) -> None:
    for _ in range(256):
        machine.scenario.add_foreign(0, MIB)
    job = machine.child()
    assert job.eval("cu.context()") == 2
    assert len(machine.processes()) == 256
