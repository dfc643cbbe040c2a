"""Windows through the real program: the command line, gRPC, metrics, a journal, and a process that is killed."""

from __future__ import annotations

import asyncio
import json
import signal
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aliquot.client import (
    AsyncPool,
    DeviceDeclaration,
    InvalidRequest,
    MaintenanceNotFound,
    MaintenancePhase,
    NameTaken,
    NodeChanged,
    NodeDeclaration,
    WaitUntil,
)
from aliquot.client.admin import MaintenanceWindow
from tests.command_line import cli
from tests.coordinator.pool import eventually, running, settings_for, sqlite
from tests.coordinator.process import serving

HOUR = timedelta(hours=1)


def at(after: timedelta) -> str:
    """A time on a clock in UTC, so much from now."""
    return (datetime.now(UTC) + after).strftime("%Y-%m-%dT%H:%M:%S")


async def add(address: str, name: str, begins: timedelta, lasts: timedelta, *more: str) -> dict[str, Any]:
    """A window by the command line; what it answers."""
    arguments = ("--start", at(begins), "--end", at(begins + lasts), *more)
    code, said, err = await cli(address, "maintenance", "add", name, *arguments, "--json")
    assert code == 0, err
    document: dict[str, Any] = json.loads(said)
    return document


async def declare(pool: AsyncPool, *names: str, devices: int = 1) -> None:
    """Nodes without agents."""
    await pool.declare(
        [NodeDeclaration(name, [DeviceDeclaration("A100-80")] * devices, agentless=True) for name in names]
    )


async def test_a_window_is_declared_listed_explained_and_withdrawn_by_the_command_line() -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        await declare(sdk, "n1")
        view = await add(pool.address, "switches", HOUR, HOUR, "--lead", "2h", "--node", "n1", "--reason", "new switch")
        assert view["phase"] == "CLOSING"
        assert view["node_ids"] == ["n1"]
        assert view["window"]["lead_s"] == 7200
        code, said, _ = await cli(pool.address, "maintenance", "ls")
        assert code == 0
        assert "switches" in said
        assert "closing" in said
        code, said, _ = await cli(pool.address, "maintenance", "ls", "--json")
        assert json.loads(said)["windows"][0]["window"]["reason"] == "new switch"
        code, said, _ = await cli(pool.address, "why", "1")
        assert "node n1: maintenance from" in said
        assert "(window switches: new switch)" in said
        code, said, _ = await cli(pool.address, "nodes")
        assert "closing for maintenance at" in said
        code, said, _ = await cli(pool.address, "why", "1", "--time-limit", "30m")
        assert "fits now" in said
        code, said, _ = await cli(pool.address, "maintenance", "rm", "switches")
        assert code == 0
        code, said, _ = await cli(pool.address, "why", "1")
        assert "fits now" in said
        code, _, said = await cli(pool.address, "maintenance", "rm", "switches")
        assert code != 0
        assert "maintenance ls" in said
        code, _, said = await cli(pool.address, "maintenance", "ls")
        assert "maintenance add" in said


async def test_the_sdk_raises_what_a_program_can_act_on() -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        await declare(sdk, "n1")
        window = MaintenanceWindow(name="w", start=at(HOUR), end=at(2 * HOUR), node_ids=("n1",))
        first = await sdk.admin.declare_maintenance(window)
        assert await sdk.admin.declare_maintenance(window) == first, "a call that is repeated is no second window"
        with pytest.raises(NameTaken):
            await sdk.admin.declare_maintenance(replace(window, reason="another"))
        with pytest.raises(InvalidRequest, match="Mars/Olympus"):
            await sdk.admin.declare_maintenance(replace(window, name="w2", zone="Mars/Olympus"))
        with pytest.raises(MaintenanceNotFound):
            await sdk.admin.end_maintenance("w2")
        (only,) = await sdk.admin.maintenance()
        assert only.window.name == "w"


async def test_a_window_empties_its_nodes_shows_it_and_ends_by_itself() -> None:
    async with running(settings_for(metrics_port=0)) as pool, AsyncPool(pool.address, tenant="team") as sdk:
        await declare(sdk, "n1", devices=2)
        going = await sdk.allocate("1", until=WaitUntil.GRANTED, detached=True)
        moving = await sdk.allocate("1", until=WaitUntil.GRANTED, detached=True, movable=True)
        await declare(sdk, "n2")
        seq = (await sdk.status()).seq
        await add(pool.address, "now", timedelta(seconds=-5), timedelta(seconds=15), "--node", "n1")
        going = await eventually(lambda: ended(sdk, going.lease_id), "the lease is told to go")
        assert going.end_reason == "DRAINED"
        assert "maintenance until" in going.end_detail
        moving = await sdk.get(moving.lease_id)
        assert [part.node_id for part in moving.slices if part.state not in ("GONE", "RELEASING")] == ["n2"]
        said = await asyncio.to_thread(fetch, pool.coordinator.metrics_address)
        assert 'aliquot_nodes_maintained{phase="OPEN"} 1.0' in said
        phases: list[MaintenancePhase | None] = []
        async with asyncio.timeout(60):
            async for event in sdk.watch(nodes=True, after_seq=seq):
                if isinstance(event, NodeChanged) and event.node.name == "n1":
                    closure = event.node.closure
                    phases.append(closure.phase if closure is not None else None)
                    if phases[-1] is None and MaintenancePhase.OPEN in phases:
                        break
        assert not await sdk.admin.maintenance()
        again = await sdk.allocate("1", until=WaitUntil.GRANTED, detached=True, node_ids=("n1",))
        assert again.granted


async def ended(sdk: AsyncPool, lease_id: str) -> Any:
    """The lease, once it has ended."""
    lease = await sdk.get(lease_id)
    return lease if lease.end_reason else None


def fetch(address: str) -> str:
    """What `/metrics` says."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        said: bytes = answer.read()
        return said.decode()


async def test_a_coordinator_that_is_killed_in_the_midst_of_a_window_goes_on_with_it(tmp_path: Path) -> None:
    journal = sqlite(tmp_path / "journal.db")
    async with serving("--journal", journal) as first:
        async with AsyncPool(first.address, tenant="team") as sdk:
            await declare(sdk, "n1", "n2")
            await sdk.cordon("n2", reason="by hand")
            await add(first.address, "long", -HOUR, 2 * HOUR, "--pool", "default")
        first.process.send_signal(signal.SIGKILL)
        await first.process.wait()
    async with serving("--journal", journal) as second, AsyncPool(second.address, tenant="team") as sdk:
        closure = (await sdk.node("n1")).closure
        assert closure is not None
        assert (closure.window, closure.phase) == ("long", MaintenancePhase.OPEN)
        waiting = await sdk.allocate("1", until=WaitUntil.GRANTED, wait_s=0, detached=True)
        assert not waiting.granted
        await sdk.admin.end_maintenance("long")
        granted = await eventually(lambda: held(sdk, waiting.lease_id), "it is granted once the window is gone")
        assert [part.node_name for part in granted.slices] == ["n1"]
        assert (await sdk.node("n2")).cordoned


async def held(sdk: AsyncPool, lease_id: str) -> Any:
    """The lease, once it holds something."""
    lease = await sdk.get(lease_id)
    return lease if lease.granted else None
