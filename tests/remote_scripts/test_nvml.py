"""NVML and `nvidia-smi` in programs of `aliquot run --remote`: what they say is of the lease's parts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pynvml
import pytest

from aliquot.remote.launching import cuda_here
from aliquot.remote.native import LIBRARY
from aliquot.simgpu.libraries import library_directory
from tests.polling import eventually
from tests.remote_scripts.conftest import Run

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the C parts are not built (make native)")

GIB = 1 << 30
ASK = """
import json, sys, pynvml as nvml

def outcome(function, *arguments):
    try:
        return function(*arguments)
    except nvml.NVMLError as error:
        return type(error).__name__

def seen():
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [about(handle) for handle in handles]

def about(handle):
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    newer = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
    assert (memory.total, memory.used, memory.free) == (newer.total, newer.used, newer.free)
    assert memory.used + memory.free == memory.total
    uuid = nvml.nvmlDeviceGetUUID(handle)
    index = nvml.nvmlDeviceGetIndex(handle)
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(uuid)) == index
    rates = outcome(nvml.nvmlDeviceGetUtilizationRates, handle)
    return [index, nvml.nvmlDeviceGetName(handle), uuid, memory.total, memory.used, getattr(rates, "gpu", rates)]
"""


def part(number: int = 0, **changed: object) -> dict[str, Any]:
    about: dict[str, Any] = {"slice_id": f"l-1.1.{number}", "endpoint": "remote://there:1", "device_model": "A100-40"}
    about |= {"share_milli": 250, "memory_bytes": 4 * GIB, "used_bytes": 0, "busy_percent": None}
    return about | changed


def told(*parts: dict[str, Any], ending: str = "") -> str:
    odd: dict[str, Any] = {"note": 'a "note" of \\ nothing', "deep": [{"parts": []}, None, -1.5e3, True], "empty": {}}
    about = {"lease_id": "l-1", "lease_epoch": 1, "tenant": "research", "credential": "c", **odd}
    return json.dumps(about | {"parts": parts, "ending": ending, "detail": ""})


def asked(ticket: Path, script: str) -> Any:
    """What a program prints as JSON, where the ticket is this file."""
    # As on a machine with a card of its own, whose NVML stands behind.
    found = cuda_here({"LD_LIBRARY_PATH": str(library_directory())})["LD_LIBRARY_PATH"]
    environment = os.environ | {"LD_LIBRARY_PATH": found, "ALIQUOT_REMOTE_TICKET": str(ticket)}
    command = [sys.executable, "-c", ASK + script, str(ticket)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_part_is_a_device_with_the_memory_and_the_use_of_the_part(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket.json"
    ticket.write_text(told(part(0), part(1, used_bytes=GIB, busy_percent=25), part(2, used_bytes=9 * GIB)))
    found = asked(ticket, "nvml.nvmlInit(); print(json.dumps(seen()))")
    assert found == [
        [0, "A100-40", "l-1.1.0", 4 * GIB, 0, "NVMLError_NotSupported"],
        [1, "A100-40", "l-1.1.1", 4 * GIB, GIB, 25],
        [2, "A100-40", "l-1.1.2", 4 * GIB, 4 * GIB, "NVMLError_NotSupported"],
    ]


def test_what_is_the_cards_own_is_not_supported_and_no_name_is_missing(tmp_path: Path) -> None:
    """Pynvml takes a name that is missing for an old driver; callers handle NotSupported, as of cards that lack it."""
    ticket = tmp_path / "ticket.json"
    ticket.write_text(told(part()))
    names = re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', Path(pynvml.__file__).read_text())
    assert len(names) > 300
    missing, own = asked(
        ticket,
        f"""
nvml.nvmlInit()
missing = [name for name in {names} if outcome(nvml._nvmlGetFunctionPointer, name) == "NVMLError_FunctionNotFound"]
first = nvml.nvmlDeviceGetHandleByIndex(0)
print(json.dumps([missing, [
    outcome(nvml.nvmlDeviceGetTemperature, first, 0),
    outcome(nvml.nvmlDeviceGetPowerUsage, first),
    outcome(nvml.nvmlDeviceGetTotalEnergyConsumption, first),
    outcome(nvml.nvmlDeviceGetComputeRunningProcesses, first),
    outcome(nvml.nvmlDeviceGetPciInfo, first),
    outcome(nvml.nvmlDeviceSetPowerManagementLimit, first, 1),
    outcome(nvml.nvmlSystemGetCudaDriverVersion),
]]))
""",
    )
    assert missing == []
    assert set(own) == {"NVMLError_NotSupported"}


def test_it_answers_in_the_librarys_own_way(tmp_path: Path) -> None:
    ticket = tmp_path / "ticket.json"
    ticket.write_text(told(part()))
    found = asked(
        ticket,
        """
before = outcome(nvml.nvmlDeviceGetCount)
nvml.nvmlInit(); nvml.nvmlInit()
first = nvml.nvmlDeviceGetHandleByIndex(0)
found = [before, outcome(nvml.nvmlDeviceGetHandleByIndex, 1), outcome(nvml.nvmlDeviceGetHandleByUUID, "GPU-1")]
nvml.nvmlShutdown()
found += [nvml.nvmlDeviceGetCount(), nvml.nvmlSystemGetDriverVersion()]
nvml.nvmlShutdown()
found += [outcome(nvml.nvmlDeviceGetName, first), outcome(nvml.nvmlSystemGetDriverVersion)]
nvml.nvmlInit()
print(json.dumps([*found, nvml.nvmlDeviceGetName(first), str(nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST))]))
""",
    )
    uninitialised = "NVMLError_Uninitialized"
    assert found == [
        uninitialised, "NVMLError_InvalidArgument", "NVMLError_NotFound", 1, "aliquot", uninitialised, uninitialised,
        "A100-40", "GPU is lost",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (told(part(used_bytes=GIB)), GIB),
        (told(part(used_bytes=GIB), ending="PREEMPTED"), GIB),  # it is served until its grace is over
        (told(part(endpoint="")), 0),  # its serving process starts again
        (told(part(endpoint=""), ending="PREEMPTED"), "NVMLError_GpuIsLost"),
        (told(part(1)), "NVMLError_GpuIsLost"),  # another place has it
        (told(), "NVMLError_GpuIsLost"),
        (None, "NVMLError_GpuIsLost"),
    ],
)
def test_a_part_is_lost_once_the_lease_has_it_no_more(tmp_path: Path, now: str | None, outcome: object) -> None:
    ticket = tmp_path / "ticket.json"
    ticket.write_text(told(part()))
    script = f"""
import pathlib
nvml.nvmlInit()
first = nvml.nvmlDeviceGetHandleByIndex(0)
path, now = pathlib.Path(sys.argv[1]), {now!r}
path.write_text(now) if now is not None else path.unlink()
found = outcome(nvml.nvmlDeviceGetMemoryInfo, first)
print(json.dumps([nvml.nvmlDeviceGetCount(), getattr(found, "used", found)]))
"""
    assert asked(ticket, script) == [1, outcome]


def test_what_is_no_ticket_is_no_driver(tmp_path: Path) -> None:
    whole = told(part(), part(1))
    ticket = tmp_path / "ticket.json"
    ticket.write_text(whole)
    found = asked(
        ticket,
        f"""
import pathlib
path, whole = pathlib.Path(sys.argv[1]), {whole!r}
cut = [whole[:size] for size in range(len(whole))]
odd = ['[' * 100000, '{{"a":' * 100000, '{{"a":' + '[' * 100000, '{{"parts":[' + '{{}},' * 9 + '1]}}']
odd += ['{{"parts":{{}}}}', '{{"parts":[],"ending":7}}', '{{"parts":[{{"slice_id":"' + 'x' * 5000]
odd += ['{{"parts":[{{"memory_bytes":99999999999999999999}}]}}']
outcomes = []
for each in cut + odd:
    path.write_text(each)
    outcomes.append(outcome(nvml.nvmlInit))
print(json.dumps(sorted(set(outcomes))))
""",
    )
    assert found == ["NVMLError_DriverNotLoaded"]


TORCH = """
import torch
held = torch.ones(1 << 26, device="cuda")
assert held.sum().item() == 1 << 26
WANTED = [1 << 28]
"""
RAW = """
from aliquot import remote
from aliquot.remote import cuda
session = remote.connect()
devices = [cuda.open_device(session, index) for index in range(2)]
held = [device.allocate(size) for device, size in zip(devices, (1 << 28, 1 << 29))]
WANTED = [1 << 28, 1 << 29]
"""
WATCH = """
import time
nvml.nvmlInit()
while [True for *_, used, busy in seen() if not isinstance(busy, int)] or any(
    about[4] < wanted for about, wanted in zip(seen(), WANTED, strict=True)
):
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("lane", "gpu", "options"), [(TORCH, "0.25(A100),4Gi", ()), (RAW, "2x0.25(A100),4Gi", ("--serve", "cuda"))]
)
def test_a_program_sees_what_it_holds(run_remote: Run, lane: str, gpu: str, options: tuple[str, ...]) -> None:
    """By NVML, by the programs that use it, and by `nvidia-smi`."""
    show = """
import subprocess
query = "--query-gpu=index,uuid,memory.total,memory.used,memory.free,utilization.gpu,temperature.gpu"
smi = subprocess.check_output(["nvidia-smi", query, "--format=csv,noheader,nounits"], text=True)
gpustat = subprocess.check_output([sys.executable, "-m", "gpustat", "--json"], text=True)
print(json.dumps([seen(), smi.splitlines(), json.loads(gpustat)["gpus"]]))
"""
    done = run_remote("-c", ASK + lane + WATCH + show, gpu=gpu, options=options)
    assert done.returncode == 0, done.stderr
    seen, smi, gpustat = json.loads(done.stdout)
    assert len(seen) == (2 if options else 1)
    for index, (about, row, other) in enumerate(zip(seen, smi, gpustat, strict=True)):
        _, model, uuid, total, used, busy = about
        assert (model, total) == ("A100-40", 4 * GIB)
        # A driver's context is more than the program's own, and less than another part's.
        assert 1 << (28 + index) <= used < (1 << (28 + index)) + GIB
        mib = used >> 20
        assert row == f"{index}, {uuid}, 4096, {mib}, {4096 - mib}, {busy}, [N/A]"
        assert (other["uuid"], other["memory.used"], other["memory.total"]) == (uuid, mib, 4096)
        assert other["temperature.gpu"] is None


def test_pytorch_asks_it(run_remote: Run) -> None:
    ask = """
print(json.dumps([torch.cuda.utilization(), torch.cuda.device_memory_used()]))
for name in ("memory_usage", "temperature", "power_draw"):
    try:
        print(getattr(torch.cuda, name)())
    except RuntimeError as error:
        assert f"torch.cuda.{name} does not work on a remote GPU" in str(error)
"""
    done = run_remote("-c", ASK + TORCH + WATCH + ask)
    assert done.returncode == 0, done.stderr
    busy, used = json.loads(done.stdout)
    assert 0 <= busy <= 100
    assert used >= 1 << 28


def test_what_outlives_its_lease_has_lost_the_card(run_remote: Run, tmp_path: Path) -> None:
    found = tmp_path / "found"
    script = f"""
import os, pathlib, time
nvml.nvmlInit()
first = nvml.nvmlDeviceGetHandleByIndex(0)
ticket = pathlib.Path(os.environ["ALIQUOT_REMOTE_TICKET"])
if os.fork() == 0:
    os.setsid()
    while ticket.exists():
        time.sleep(0.1)
    outcomes = [outcome(nvml.nvmlDeviceGetMemoryInfo, first), outcome(nvml.nvmlShutdown), outcome(nvml.nvmlInit)]
    pathlib.Path({str(found)!r}).write_text(json.dumps(outcomes))
    os._exit(0)
"""
    # Its output is not ours: the run would wait for whoever has that open.
    quiet = "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(1, 2)\n"
    assert run_remote("-c", quiet + ASK + script).returncode == 0
    eventually(lambda: found.exists() and found.read_text())
    assert json.loads(found.read_text()) == ["NVMLError_GpuIsLost", None, "NVMLError_DriverNotLoaded"]
