"""Pools of both twins, and a coordinator with a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import Pool, RetryPolicy
from tests.client.scripted_coordinator import ScriptedCoordinator
from tests.client.twins import Loop, blocking_async_pool

FAST = RetryPolicy(backoff_first_s=0.01, backoff_max_s=0.1)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """The tests' user has no settings and no agents."""
    for name in ("ALIQUOT_COORDINATOR", "ALIQUOT_TENANT", "ALIQUOT_CONFIG", "ALIQUOT_TOKEN", "ALIQUOT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ALIQUOT_AGENT_SOCKET", str(tmp_path / "no-agent.sock"))


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    server = ScriptedCoordinator()
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["threads", "asyncio"])
def connect(request: pytest.FixtureRequest, coordinator: ScriptedCoordinator) -> Iterator[Callable[..., Any]]:
    """Makes pools of the twin under test; both look blocking. They close while the coordinator still answers."""
    loop = Loop() if request.param == "asyncio" else None
    pools: list[Any] = []

    def make(*addresses: str, **options: Any) -> Any:
        options.setdefault("retry", FAST)
        options.setdefault("timeout_s", 10.0)
        pool = Pool(addresses, **options) if loop is None else blocking_async_pool(loop, addresses, **options)
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close()
    if loop is not None:
        loop.close()


@pytest.fixture
def pool(connect: Callable[..., Any], coordinator: ScriptedCoordinator) -> Any:
    return connect(coordinator.address, tenant="vision")


@pytest.fixture(params=["threads", "asyncio"])
def real(request: pytest.FixtureRequest, local: LocalPool) -> Iterator[Any]:
    """Either twin, with the local pool that the module has."""
    options: dict[str, Any] = {
        "tenant": "vision",
        "retry": FAST,
        "agent_sockets": [node.socket for node in local.nodes],
        "token_file": local.token_file,
    }
    if request.param == "threads":
        with Pool(local.address, **options) as pool:
            yield pool
        return
    loop = Loop()
    with blocking_async_pool(loop, local.address, **options) as pool:
        yield pool
    loop.close()
