"""The small program that tries a lease: by kernels of its own, and by PyTorch where it is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

from aliquot.client import Pool


@pytest.mark.parametrize("engine", ["cuda", "torch"])
def test_it_learns_and_saves(environment: dict[str, str], pool: Pool, engine: str) -> None:
    if engine == "torch" and find_spec("torch") is None:
        pytest.skip("PyTorch is not installed (make test TORCH=no)")
    serve = "cuda" if engine == "cuda" else "remote"
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", "0.25(A100),2Gi", "--serve", serve]
    program = [sys.executable, "-m", "aliquot.remote.trial", "--engine", engine, "--steps", "25"]
    done = subprocess.run(
        [*command, "--", *program],
        env=environment | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    losses = [line["loss"] for line in said if "loss" in line]
    assert (len(losses), said[0]["engine"], said[-1]["saved"]) == (25, engine, 25)
    assert losses[-1] < losses[0]
    assert len(said[-1]["learnt"]) == 2
