"""The examples do what they say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=90, check=False
    )


@pytest.mark.usefixtures("env")
def test_holding_a_part() -> None:
    done = example("hold_a_part.py", "0.25(A100),4Gi", "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES; exit 3")
    assert (done.returncode, done.stdout[:4]) == (3, "GPU-")
    assert "0.25 of A100-40 on node-" in done.stderr
    assert "would fit: allow A100-40" in example("hold_a_part.py", "1(H200)", "--", "true").stderr
    assert "usage" in example("hold_a_part.py").stderr


@pytest.mark.usefixtures("env")
def test_fanning_out_more_than_fits_at_once() -> None:
    done = example("fan_out.py", "12")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("is done") == 12


@pytest.mark.usefixtures("env")
def test_what_could_be_had() -> None:
    lines = example("free_parts.py").stdout.splitlines()
    assert len(lines) == 7
    assert lines[0].startswith("  0.1  on node-")
    assert "never" in lines[-1]


@pytest.mark.usefixtures("env")
def test_as_many_workers_as_there_is_room_for() -> None:
    done = example("elastic_workers.py", "14")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("workers: 1 on node-")
    assert lines[-1].startswith("workers: 3 on node-")
