"""How long a program waits for its first result: `aliquot run --remote` on a pool of this machine, and without it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from tests.client.real_pool import real_pool

PROGRAM = """
import sys
print("started", flush=True)
import torch
device = sys.argv[1]
print((torch.ones(4, 4, device=device) @ torch.ones(4, 4, device=device)).sum().item(), flush=True)
"""
REPLACED_S = 12.0
"""Until another process waits for a lease, with PyTorch imported."""


def starts(rounds: int = 3) -> dict[str, float]:
    """Milliseconds, medians: to the program's first line, to its first result, and that on this machine's processor."""
    with (
        real_pool(nodes=1, gpus=1, settings={"ALIQUOT_AGENT_HOSTING_SERVICES": "all"}) as pool,
        tempfile.TemporaryDirectory() as state,
    ):
        environment = {
            **os.environ,
            "ALIQUOT_COORDINATOR": pool.address,
            "ALIQUOT_TOKEN_FILE": str(pool.token_file),
            "XDG_STATE_HOME": state,
        }
        launcher = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", "0.25,4Gi", "--"]
        taken = []
        for _ in range(rounds):
            time.sleep(REPLACED_S)
            local = _lines([sys.executable, "-c", PROGRAM, "cpu"], environment)
            taken.append((*_lines([*launcher, sys.executable, "-c", PROGRAM, "cuda"], environment), local[1]))
    names = ("start_ms", "first_result_ms", "first_result_local_ms")
    return {name: round(statistics.median(times)) for name, times in zip(names, zip(*taken, strict=True), strict=True)}


def _lines(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """When the first two lines came, in milliseconds from the start."""
    began_s = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        assert running.stdout is not None
        came = []
        for _ in range(2):
            if not running.stdout.readline():
                raise SystemExit(f"{command[-1]}: the program has ended with {running.wait()} before its result")
            came.append((time.perf_counter() - began_s) * 1e3)
    return came[0], came[1]
