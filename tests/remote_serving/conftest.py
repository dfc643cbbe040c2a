"""A pool whose nodes serve leases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import Pool
from tests.client.real_pool import real_pool
from tests.remote_serving.nodes import install


@pytest.fixture(scope="session")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    """A node with two A100-40, simulated, on which aliquot's own service is installed."""
    settings = {
        "PYTHONPATH": str(install(tmp_path_factory.mktemp("engine"))),
        "ALIQUOT_AGENT_HOSTING_SERVICES": "all",
        "ALIQUOT_AGENT_POLL_HEALTH": "300ms",
    }
    with real_pool(nodes=1, gpus=2, settings=settings) as pool:
        yield pool


@pytest.fixture
def pool(local: LocalPool) -> Iterator[Pool]:
    with local.connect() as connected:
        yield connected


@pytest.fixture
def environment(local: LocalPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of a user of the pool."""
    stated = {
        "ALIQUOT_COORDINATOR": local.address,
        "ALIQUOT_TOKEN_FILE": str(local.token_file),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
    }
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    return dict(os.environ)
