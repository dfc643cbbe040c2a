"""A pool with simulated GPUs, whose one node serves PyTorch; and programs that run here and there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import Pool
from tests.client.real_pool import real_pool

pytest.importorskip("torch", reason="PyTorch is not installed (make test TORCH=no)")

FOLDER = Path(__file__).parent / "programs"
RUNNING = Path(__file__).parent / "running.py"
SMALL = "0.25(A100),4Gi"

Run = Callable[..., subprocess.CompletedProcess[str]]
Both = Callable[[Sequence[str]], tuple[dict[str, str], dict[str, str]]]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalPool]:
    """A node with two A100-40, simulated."""
    settings = {"ALIQUOT_AGENT_HOSTING_SERVICES": "all", "ALIQUOT_AGENT_POLL_HEALTH": "300ms"}
    with real_pool(nodes=1, gpus=2, settings=settings) as pool:
        yield pool


@pytest.fixture
def pool(local: LocalPool) -> Iterator[Pool]:
    with local.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def environment(local: LocalPool, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a user of the pool."""
    folder = tmp_path_factory.mktemp("user")
    return {
        **os.environ,
        "ALIQUOT_COORDINATOR": local.address,
        "ALIQUOT_TOKEN_FILE": str(local.token_file),
        "XDG_STATE_HOME": str(folder / "state"),
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="module")
def run_remote(environment: dict[str, str]) -> Run:
    """`aliquot run --remote` of this Python with arguments."""

    def run(
        *arguments: str, gpu: str = SMALL, options: Sequence[str] = (), limit_s: float = 240, **more: str
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", gpu, *options, "--", sys.executable]
        return subprocess.run(
            [*command, *arguments], env=environment | more, capture_output=True, text=True, timeout=limit_s, check=False
        )

    return run


@pytest.fixture(scope="module")
def both(environment: dict[str, str], run_remote: Run, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """What programs print on the CPU here, and where `cuda` is a part elsewhere."""

    def run(names: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        folder = tmp_path_factory.mktemp("printed")
        arguments = [str(RUNNING), str(FOLDER)]
        here = subprocess.Popen([sys.executable, *arguments, str(folder / "here"), *names], env=environment)
        there = run_remote(*arguments, str(folder / "there"), *names)
        assert here.wait(240) == 0
        assert there.returncode == 0, there.stderr
        printed = [json.loads((folder / name).read_text()) for name in ("here", "there")]
        return printed[0], printed[1]

    return run
