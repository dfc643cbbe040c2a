"""The same seed gives the same run, whatever the order of sets and in whichever process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.running import Case, run_once

ROOT = Path(__file__).parents[2]
CASE = Case(7, "small")
PROGRAM = """
import sys
from tests.simulation.running import Case, run
result = run(Case.read(sys.argv[1]))
print(result.digest, result.events, result.steps)
"""
pytestmark = pytest.mark.no_cover


def _elsewhere(hash_seed: str) -> str:
    """What the run comes to in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(CASE)],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_processes_with_different_hash_seeds_run_the_same() -> None:
    another = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # by itself, Python draws one at random
    here = run_once(CASE)
    assert _elsewhere(another) == f"{here.digest} {here.events} {here.steps}"


def test_another_seed_runs_differently() -> None:
    assert run_once(Case(8, "small")).digest != run_once(CASE).digest
