"""A real pool, and the command line run against it: in this process for speed, or as a program where that matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.cli.main import main
from tests.client.real_pool import real_pool
from tests.without_pytorch import without_pytorch

PROGRAM = [sys.executable, "-m", "aliquot.cli"]


@dataclass(frozen=True, slots=True)
class Result:
    """What a command said and ended with."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Its one JSON document."""
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        """Its error, as JSON."""
        return json.loads(self.err)["error"]


Cli = Callable[..., Result]


@pytest.fixture(scope="session")
def local() -> Iterator[LocalPool]:
    """Two nodes with two A100-40 each."""
    with real_pool() as pool:
        yield pool


@pytest.fixture
def env(local: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """The environment of a user of that pool."""
    stated = {
        "ALIQUOT_COORDINATOR": local.address,
        "ALIQUOT_AGENT_SOCKET": os.pathsep.join(str(node.socket) for node in local.nodes),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "ALIQUOT_TOKEN_FILE": str(local.token_file),
    }
    for name in (
        "ALIQUOT_TENANT",
        "ALIQUOT_CONFIG",
        "ALIQUOT_TOKEN",
        "ALIQUOT_LEASE_SECRET",
        "FORCE_COLOR",
        "NO_COLOR",
        "COLUMNS",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    return stated


@pytest.fixture
def cli(env: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command in this process."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        try:
            code = main(arguments)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def program(env: Mapping[str, str]) -> Cli:
    """Run a command as a program, to its end."""

    def run(*arguments: str, timeout_s: float = 60) -> Result:
        done = subprocess.run(
            [*PROGRAM, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture(name="without_pytorch")
def _without_pytorch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of `aliquot up` load no PyTorch."""
    monkeypatch.setenv("PYTHONPATH", without_pytorch(tmp_path))


@pytest.fixture(autouse=True)
def _tidy(request: pytest.FixtureRequest) -> Iterator[None]:
    """No lease outlives its test, if the test has the pool."""
    yield
    if "local" not in request.fixturenames:
        return
    from aliquot.client import Pool

    local: LocalPool = request.getfixturevalue("local")
    with Pool(local.address, token_file=local.token_file, agent_sockets=[]) as pool:
        for lease in list(pool.leases()):
            pool.release(lease.lease_id, wait_gone=True)
