"""The stages of `run-hardware.sh`, as far as they go without a card: on simulated ones, PyTorch on the processor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from aliquot import simgpu
from tests.agent.harness import ROOT
from tests.enforce.world import mps_program
from tests.without_pytorch import without_pytorch

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
CHECKPOINTS = r"""
/* The driver's checkpoint calls, by stopping the program. */
#include <signal.h>
static int state;
int cuInit(unsigned flags) { return (int)flags; }
int cuCheckpointProcessGetState(int pid, int *found) { *found = state; return pid <= 0; }
int cuCheckpointProcessLock(int pid, unsigned *options) { state = 1; return *options == 0 || kill(pid, SIGSTOP); }
int cuCheckpointProcessCheckpoint(int pid) { state = 2; return pid <= 0; }
int cuCheckpointProcessRestore(int pid) { state = FORGETS ? 3 : 1; return pid <= 0 || FORGETS; }
int cuCheckpointProcessUnlock(int pid) { state = 0; return kill(pid, SIGCONT); }
"""


def run(
    tmp_path: Path, *arguments: str, libraries: str = "", programs: str = "", pytorch: bool = True
) -> list[dict[str, Any]]:
    """The lines of a run on a simulated card, in which temporary files are below `tmp_path`. `pytorch`: whether agents
    may serve it.
    """
    tmp_path.chmod(0o755)
    # A short name: sockets are made below, and theirs may have no more than 107 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="aq-") as scratch,
        simgpu.create(tmp_path / "gpus", ["H100-80"]) as scenario,
    ):
        variables = simgpu.environment(scenario.path)
        variables["LD_LIBRARY_PATH"] = f"{libraries}:{variables['LD_LIBRARY_PATH']}".strip(":")
        environment = os.environ | variables | {"TMPDIR": scratch, "PATH": f"{programs}:{os.environ['PATH']}"}
        if not pytorch:
            environment["PYTHONPATH"] = without_pytorch(tmp_path)
        command = [
            sys.executable,
            "-m",
            "bench.stages",
            "--rehearse",
            "--results",
            str(tmp_path / "results"),
            *arguments,
        ]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        assert not left_behind(scratch)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == int(any(line["status"] == "failed" for line in lines))
    assert (tmp_path / "results" / "results.jsonl").read_text() == done.stdout
    return lines


def checkpointing(tmp_path: Path, *, forgets: bool = False) -> str:
    """A folder with a driver that has the checkpoint calls."""
    folder = tmp_path / "driver"
    folder.mkdir()
    source = folder / "calls.c"
    source.write_text(CHECKPOINTS)
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    library = folder / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", f"-DFORGETS={forgets:d}", "-o", library, source], check=True)
    return str(folder)


def left_behind(folder: str) -> list[str]:
    """Command lines of processes that work on a folder below."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        found += [line] if folder in line else []
    return found


def test_stages_of_a_pool_run_on_a_simulated_card(tmp_path: Path) -> None:
    demo, poll, cuda = run(tmp_path, "demo", "poll", "cuda", pytorch=False)
    assert demo["status"] == "ok", demo
    assert len(demo["claims"]) == 8
    assert all(demo["claims"].values())
    assert poll["status"] == "ok", poll
    assert poll["polls_per_s"] > 0
    assert (cuda["status"], cuda["saved"]) == ("ok", 40), cuda


def test_what_looks_at_the_machine(tmp_path: Path) -> None:
    doctor, log, frameworks = run(tmp_path, "doctor", "kernel-log", "frameworks")
    assert doctor["status"] == "ok", doctor
    assert {each["subject"] for each in doctor["findings"]} >= {"driver", "GPU 0", "tier preload"}
    assert log["status"] in {"ok", "not run"}, log
    assert frameworks["status"] == "not run", "no PyTorch computes on a simulated card"
    assert "cupy" in frameworks["why"]


def test_a_stage_that_is_not_done_in_time_ends_with_all_that_it_started(tmp_path: Path) -> None:
    (line,) = run(tmp_path, "poll", "--seconds", "6", pytorch=False)
    assert (line["status"], line["why"]) == ("failed", "it was not done within 6 s")


def test_without_a_card_stages_say_so(tmp_path: Path) -> None:
    environment = {name: text for name, text in os.environ.items() if name not in {"LD_LIBRARY_PATH", "ALIQUOT_SIMGPU"}}
    command = [sys.executable, "-m", "bench.stages", "doctor", "demo", "poll", "cuda", "--results", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if any("there is no card that NVML can read" not in line.get("why", "") for line in lines):
        pytest.skip("this machine has a card")
    assert [line["status"] for line in lines] == ["not run"] * 4


@pytest.mark.slow
@needs_torch
def test_a_loop_goes_on_as_if_it_had_not_been_put_aside(tmp_path: Path) -> None:
    (line,) = run(tmp_path, "checkpoint", libraries=checkpointing(tmp_path))
    assert line["status"] == "ok", line
    assert line["losses_equal"]
    assert [line[f"after {call}"]["state"] for call in ("Lock", "Checkpoint", "Restore", "Unlock")] == [
        "locked",
        "checkpointed",
        "locked",
        "running",
    ]


@pytest.mark.slow
@needs_torch
def test_a_driver_that_can_not_bring_it_back_is_told(tmp_path: Path) -> None:
    (line,) = run(tmp_path, "checkpoint", libraries=checkpointing(tmp_path, forgets=True))
    assert (line["status"], line["why"]) == ("failed", "cuCheckpointProcessRestore answered 1")
    assert line["after Restore"]["state"] == "failed"


@pytest.mark.slow
@pytest.mark.timeout(600)
@needs_torch
def test_two_tenants_and_what_breaks_mps(tmp_path: Path) -> None:
    tenants, mps = run(tmp_path, "tenants", "mps", programs=str(mps_program(tmp_path)))
    assert tenants["status"] == "ok", tenants
    for tier in ("watchdog", "preload", "mps"):
        assert [each["tokens"] > 0 for each in tenants[tier]["both"]] == [True, True], tenants
    paced = [judged for name, judged in tenants.items() if "with a pace" in name]
    assert len(paced) == 4
    assert all(judged["used_pct"] > 0 for judged in paced), tenants
    assert mps["status"] == "ok", mps
    assert mps["a card out of sight named, too"]["held_bytes"] > 0
    assert mps["SIGKILL"]["unharmed"], mps


@pytest.mark.slow
@needs_torch
def test_a_step_here_and_elsewhere(tmp_path: Path) -> None:
    (line,) = run(tmp_path, "remote")
    assert line["status"] == "ok", line
    assert line["eager_loss_differs_by"] < 1e-4
    assert line["captured_loss_differs_by"] < 1e-4
