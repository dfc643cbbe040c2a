"""A short attack on each engine; a long one is `make fuzz-remote`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.simgpu.conftest import libraries

__all__ = ["libraries"]

FRAMES = 4000


@pytest.mark.parametrize("engine", ["torch", "cuda"])
def test_nothing_is_found(engine: str, libraries: Path) -> None:
    if engine == "torch" and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (make test TORCH=no)")
    command = [sys.executable, "-m", "tests.remote_fuzz", "--engine", engine, "--frames", str(FRAMES), "--seed", "14"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=200, check=False)
    result = json.loads(done.stdout)
    assert (done.returncode, result["findings"], result["frames"]) == (0, [], FRAMES), done.stderr
    assert result["faults"] > FRAMES // 20, "much of it was refused"
