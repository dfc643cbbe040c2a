"""Programs that people use, unchanged, on simulated GPUs; and the little training job that runs on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.polling import eventually
from tests.simgpu.conftest import GIB, MIB, Machine

CONTEXT = 418 * MIB


def run(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name(words[0])
    environment = {**os.environ, **machine.environment, "TERM": "dumb"}
    return subprocess.run([program, *words[1:]], check=True, capture_output=True, text=True, env=environment)


def burn(machine: Machine, *arguments: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "aliquot.simgpu.burn", *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **machine.environment})


def test_gpustat_sees_the_devices_and_who_is_on_them(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context()")
    job.eval("cu.malloc(4 << 30)")
    machine.scenario.set(1, gpu_percent=64)
    machine.scenario.set(1, temperature_c=71)
    report = json.loads(run(machine, "gpustat", "--json").stdout)
    first, second = report["gpus"]
    assert first["name"] == "NVIDIA A100-SXM4-40GB"
    assert first["uuid"] == machine.scenario.device(0).uuid
    assert first["memory.total"] == 40960
    assert first["memory.used"] == (CONTEXT + 4 * GIB) // MIB
    assert [(p["pid"], p["gpu_memory_usage"]) for p in first["processes"]] == [(job.pid, (CONTEXT + 4 * GIB) // MIB)]
    assert (second["utilization.gpu"], second["temperature.gpu"], second["processes"]) == (64, 71, [])


def test_nvitop_sees_the_devices_and_who_is_on_them(machine: Machine) -> None:
    job = machine.child()
    job.eval("cu.context(1)")
    job.eval("cu.malloc(4 << 30)")
    screen = run(machine, "nvitop", "-1").stdout
    assert screen.count("A100-SXM4-40GB") == 2
    assert "615.71.05" in screen
    assert str(job.pid) in screen
    assert f"{(CONTEXT + 4 * GIB) // MIB}MiB" in screen


def test_nvitop_survives_whatever_happens_to_the_hardware(machine: Machine) -> None:
    machine.scenario.add_foreign(0, GIB, memory_unknown=True)
    machine.scenario.lose(1)
    assert "A100-SXM4-40GB" in run(machine, "nvitop", "-1").stdout


def test_a_burning_job_holds_memory_and_keeps_the_device_busy(machine: Machine) -> None:
    with burn(machine, "--bytes", "4Gi", "--seconds", "60", "--percent", "60") as job:
        assert job.stdout is not None
        assert "holds 4Gi" in job.stdout.readline()
        ((pid, held),) = machine.processes().items()
        assert pid == job.pid
        assert held is not None
        assert 0 <= held - CONTEXT - 4 * GIB < MIB  # its kernel takes a little
        eventually(lambda: 40 <= machine.nvml.eval("n.nvmlDeviceGetUtilizationRates(h[0])")["gpu"] <= 70)
        job.terminate()
    eventually(lambda: machine.processes() == {})


def test_a_growing_job_ends_when_it_is_refused(machine: Machine) -> None:
    arguments = ("--bytes", "10Gi", "--grow", "20Gi", "--step-seconds", "0.01", "--seconds", "60", "--device", "1")
    with burn(machine, *arguments) as job:
        said, _ = job.communicate()
    assert job.returncode == 3
    assert [line.split(" ", 1)[1].split(" (")[0] for line in said.splitlines()[:2]] == ["holds 10Gi", "holds 30Gi"]
    assert "refused 20Gi while holding 30Gi" in said


def test_a_context_that_does_not_fit_is_memory_that_was_denied(machine: Machine) -> None:
    machine.scenario.set(0, context_bytes=1 << 40)
    with burn(machine, "--bytes", "1Gi") as job:
        assert job.wait(timeout=60) == 3


def test_a_job_without_a_device_says_so(machine: Machine) -> None:
    with burn(machine, "--bytes", "1Gi", "--device", "5") as job:
        job.communicate()
    assert job.returncode == 4
