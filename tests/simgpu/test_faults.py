"""Slow, hanging and failing calls, and the command line that makes them."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time

import pytest

from aliquot import simgpu
from tests.simgpu.conftest import MIB, ChildError, Machine

MEMORY = "n.nvmlDeviceGetMemoryInfo(h[{}], version=n.nvmlMemory_v2).used"


def test_a_slow_call_takes_its_time(machine: Machine) -> None:
    machine.nvml.eval(MEMORY.format(0))
    machine.scenario.set_latency("memory", 50_000_000, 0)
    before = time.monotonic()
    machine.nvml.eval(MEMORY.format(0))
    assert time.monotonic() - before >= 0.05
    (fault,) = machine.scenario.faults()
    assert fault == simgpu.Fault("memory", 0, 50_000_000, hang=False, error=0)
    machine.scenario.clear_faults()
    assert machine.scenario.faults() == ()


def test_slow_calls_of_one_process_wait_for_each_other(machine: Machine) -> None:
    machine.scenario.set_latency("memory", 30_000_000)
    machine.nvml.exec(
        """
import threading, time
threads = [threading.Thread(target=n.nvmlDeviceGetMemoryInfo, args=(h[i % 2],)) for i in range(4)]
start = time.monotonic()
[t.start() for t in threads]
[t.join() for t in threads]
took = time.monotonic() - start
"""
    )
    assert machine.nvml.eval("took >= 0.12")


def test_a_hanging_call_blocks_until_released(machine: Machine) -> None:
    machine.nvml.eval(MEMORY.format(0))
    other = machine.child()
    machine.scenario.hang("memory", 0)
    machine.nvml.start(MEMORY.format(0))
    other.exec("h = [n.nvmlDeviceGetHandleByIndex(i) for i in range(2)]")
    assert other.eval(MEMORY.format(1)) == 0
    assert other.eval("n.nvmlDeviceGetTemperatureV(h[0], 0)") > 0
    stdout = machine.nvml.process.stdout
    assert stdout is not None
    assert select.select([stdout], [], [], 0.2)[0] == []
    machine.scenario.unhang("memory", 0)
    assert machine.nvml.finish() == 0


def test_a_call_fails_as_told_by_symbol_class_or_everything(machine: Machine) -> None:
    machine.nvml.eval(MEMORY.format(0))
    machine.scenario.fail("nvmlDeviceGetMemoryInfo_v2", 15, 0)
    assert machine.error(MEMORY.format(0)) == 15
    assert machine.nvml.eval("n.nvmlDeviceGetMemoryInfo(h[0]).used") > 0
    assert machine.nvml.eval(MEMORY.format(1)) == 0
    machine.scenario.fail("temperature", 999)
    assert machine.error("n.nvmlDeviceGetTemperatureV(h[1], 0)") == 999
    machine.scenario.fail("*", 10)
    assert machine.error("n.nvmlDeviceGetCount()") == 10
    machine.scenario.clear_faults("*")
    assert machine.nvml.eval("n.nvmlDeviceGetCount()") == 2
    machine.scenario.clear_faults()
    assert machine.nvml.eval(MEMORY.format(0)) == 0


def test_initialisation_can_fail_too(machine: Machine) -> None:
    machine.scenario.fail("init", 9)
    with pytest.raises(ChildError):
        machine.child().eval("n.nvmlDeviceGetCount()")
    machine.scenario.fail("init", 0)
    assert machine.child().eval("n.nvmlDeviceGetCount()") == 2


def test_cuda_calls_fail_too(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    machine.scenario.fail("cuda_alloc", 2)
    assert job.eval("cu.malloc(1)[0]") == 2
    machine.scenario.clear_faults()
    assert job.eval("cu.malloc(1)[0]") == 0
    assert machine.used() == 418 * MIB + 512


def test_there_is_room_for_many_rules_but_not_for_any_number(machine: Machine) -> None:
    for number in range(64):
        machine.scenario.fail(f"call{number}", 1)
    with pytest.raises(simgpu.ScenarioError):
        machine.scenario.fail("one more", 1)
    machine.scenario.fail("call7", 0)
    machine.scenario.fail("one more", 1)
    assert len(machine.scenario.faults()) == 64


def control(machine: Machine, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "aliquot.simgpu", command, str(machine.scenario.path), *arguments]
    return subprocess.run(words, check=False, capture_output=True, text=True)


def test_the_command_line_changes_a_machine_under_its_users(machine: Machine) -> None:
    assert control(machine, "set", "0", "temperature", "77").returncode == 0
    assert machine.nvml.eval("n.nvmlDeviceGetTemperatureV(h[0], 0)") == 77
    shown = json.loads(control(machine, "foreign", "0", "--bytes", "2Gi", "--json").stdout)
    (process,) = shown["devices"][0]["processes"]
    assert machine.processes() == {process["pid"]: 2 << 30}
    control(machine, "foreign", "0", "--remove", "--pid", str(process["pid"]))
    assert machine.processes() == {}
    control(machine, "fail", "memory", "15", "--device", "1")
    assert machine.error(MEMORY.format(1)) == 15
    assert control(machine, "clear").returncode == 0
    assert machine.used(1) == 0
    control(machine, "lose", machine.scenario.device(1).uuid)
    assert machine.error(MEMORY.format(1)) == 15
    assert "LOST" in control(machine, "show").stdout
    control(machine, "restore", "1")
    control(machine, "set", "1", "mig", "1")
    assert machine.nvml.eval("n.nvmlDeviceGetMigMode(h[1])") == [1, 1]
    control(machine, "latencies")
    assert {fault.call for fault in machine.scenario.faults()} == set(simgpu.MEASURED_LATENCY_NS)


def test_the_command_line_explains_what_it_refuses(machine: Machine) -> None:
    answer = control(machine, "lose", "9")
    assert answer.returncode == 1
    assert "no device 9" in answer.stderr
    assert control(machine, "set", "0", "colour", "1").returncode == 2


def test_a_machine_made_by_the_command_line_is_used_through_its_environment(machine: Machine) -> None:
    path = machine.scenario.path.with_name("made")
    words = [sys.executable, "-m", "aliquot.simgpu"]
    subprocess.run([*words, "create", str(path), "--models", "t4,H200"], check=True, capture_output=True)
    exports = subprocess.run([*words, "env", str(path)], check=True, capture_output=True, text=True).stdout
    shell = f"{exports}\n{sys.executable} -c 'import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())'"
    assert subprocess.run(["sh", "-c", shell], check=True, capture_output=True, text=True).stdout.strip() == "2"
