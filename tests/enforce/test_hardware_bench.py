"""`bench/hardware.py` runs as far as a machine lets it: here on simulated GPUs, where frameworks are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot import simgpu
from tests.agent.harness import ROOT
from tests.enforce.world import mps_program

RUNS = """
import json, sys
from pathlib import Path
from bench.lib import hardware_slowdown as slowdown
from bench.lib.hardware_lease import Bench
slowdown.TRAINING = 'print(\\'{"step_us": 100.0}\\')'
slowdown.missing = lambda module: ""
print(json.dumps(slowdown.slowdown(Bench(Path(sys.argv[1]), 8 << 30))))
"""


def run(directory: Path, *command: str, path: str = "") -> dict[str, dict[str, object]]:
    directory.chmod(0o755)
    with simgpu.create(directory / "gpus", ["A100-80"]) as scenario:
        environment = os.environ | simgpu.environment(scenario.path) | {"PYTHONPATH": str(ROOT)}
        if path:
            environment["PATH"] = f"{path}:{environment['PATH']}"
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    found: dict[str, dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_what_is_missing_is_said_and_the_rest_runs(tmp_path: Path) -> None:
    sections = ("discovery", "several", "bare", "torch", "cupy", "mps", "slowdown")
    found = run(tmp_path, "bench/hardware.py", *(word for name in sections for word in ("--only", name)))
    assert not [name for name in sections if "failed" in found[name]]
    assert found["several"]["over"] is False
    for name, module in (("torch", "torch"), ("cupy", "cupy"), ("slowdown", "torch")):
        if "not run" in found[name]:
            assert str(found[name]["not run"]).startswith((f"{module} is not installed", f"{module} finds no card"))


@pytest.mark.root("to limit a cgroup")
def test_the_loop_runs_under_every_tier_that_can_be_had(tmp_path: Path) -> None:
    found = run(tmp_path, "-c", RUNS, str(tmp_path), path=str(mps_program(tmp_path)))
    for tier in ("preload", "watchdog", "driver", "mps"):
        if "not run" in found[tier]:
            assert "cgroup" in str(found[tier]["not run"])
        else:
            assert found[tier]["percent"] == 0.0, found[tier]
