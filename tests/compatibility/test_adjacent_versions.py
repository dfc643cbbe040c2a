"""The version before this one and this one in one pool: every pair really runs, and no lease is lost on the way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aliquot.agent.disk.membership import RECORD
from aliquot.client import (
    AsyncPool,
    DeviceDeclaration,
    Lease,
    LeaseState,
    NodeDeclaration,
    NodeState,
    Refused,
    RetryPolicy,
    SliceState,
    WaitUntil,
)
from aliquot.client.admin import MaintenanceWindow
from aliquot.coordinator.settings.config import LimitSettings
from aliquot.coordinator.writing.journal.sqlite import snapshot_folder_of
from tests.agent.harness import Node, closing, make_node
from tests.compatibility.adjacent import NOW, WITHOUT_MAINTENANCE, Unavailable, Version, previous, unpacked
from tests.coordinator.pool import eventually, running, settings_for, sqlite
from tests.coordinator.process import UNKNOWN_BEFORE, Ended, Running, start
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, Log, Replica, free_address, granted_after, load
from tests.failover.conftest import database, postgres  # noqa: F401 - fixtures
from tests.journal import saved

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="session")
def old(tmp_path_factory: pytest.TempPathFactory) -> Version:
    return _unpacked(previous, tmp_path_factory)


@pytest.fixture(scope="session")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """One that lacks something."""
    return _unpacked(lambda: WITHOUT_MAINTENANCE, tmp_path_factory)


def _unpacked(revision: Callable[[], str], folders: pytest.TempPathFactory) -> Version:
    """Once for all processes that run tests at the same time: they have the folder above in common."""
    own = folders.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    try:
        return unpacked(revision(), shared)
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from closing(make_node(tmp_path / "node"))


async def coordinator(version: Version, journal: str, listen: str = "127.0.0.1:0") -> Running | Ended:
    """Start that version's coordinator."""
    flags = ("--listen", listen, "--metrics-port", "-1", "--log-level", "error", "--journal", journal)
    return await start(*flags, env=version.environment, older=version.name == WITHOUT_MAINTENANCE)


@contextlib.asynccontextmanager
async def leading(version: Version, journal: str, listen: str = "127.0.0.1:0") -> AsyncIterator[Running]:
    """That version's coordinator, stopped in order at the end."""
    running = await coordinator(version, journal, listen)
    assert isinstance(running, Running), running
    try:
        yield running
    finally:
        if running.process.returncode is None:
            running.process.terminate()
        ended = await running.end()
    assert ended.code == 0, ended.said


async def agent(version: Version, node: Node, address: str) -> None:
    """Start that version's agent on the node, in the place of the one that was stopped."""
    if not (node.state_dir / RECORD).exists():
        await node.join(address)
    node.environment.update(version.environment)
    await asyncio.to_thread(node.start, address)


def sdk(*addresses: str) -> AsyncPool:
    return AsyncPool(list(addresses), tenant="team", timeout_s=60, retry=RetryPolicy(backoff_max_s=0.5))


async def ready(pool: AsyncPool, version: str = "") -> bool:
    """Whether the one node is there and takes leases."""
    nodes = [node async for node in pool.nodes()]
    return [node.state for node in nodes] == [NodeState.READY]


async def whole_life(pool: AsyncPool, node: Node) -> None:
    """Ask, run a process that holds what was asked for, see it, give it back."""
    await eventually(lambda: ready(pool), "the node is ready")
    lease = await pool.allocate("0.5,2Gi", until=WaitUntil.ACTIVE, wait_s=30, detached=True)
    assert lease.state is LeaseState.ACTIVE
    job = await run_in(node, lease)
    assert (await pool.explain("1")).fits_now
    await pool.release(lease.lease_id, wait_gone=True, timeout_s=60)
    assert await asyncio.to_thread(job.wait, 30) == -signal.SIGTERM
    assert (await pool.get(lease.lease_id)).state is LeaseState.ENDED


async def run_in(node: Node, lease: Lease) -> subprocess.Popen[bytes]:
    """A process of the lease, as its agent knows it."""
    packages = NOW.environment["PYTHONPATH"]
    job = await asyncio.to_thread(
        lambda: node.burn("1Gi", lease_id=lease.lease_id, secret=lease.secret, PYTHONPATH=packages)
    )
    await eventually(lambda: attached(node, lease), "the process is the lease's")
    return job


@pytest.mark.parametrize("newer", ["coordinator", "agent"])
async def test_agents_and_coordinators_of_both_versions_work_together(
    old: Version, node: Node, tmp_path: Path, newer: str
) -> None:
    of_coordinator, of_agent = (NOW, old) if newer == "coordinator" else (old, NOW)
    async with leading(of_coordinator, sqlite(tmp_path / "journal.db")) as running, sdk(running.address) as pool:
        await agent(of_agent, node, running.address)
        await whole_life(pool, node)


async def test_the_older_command_line_works_with_the_newer_coordinator(old: Version, tmp_path: Path) -> None:
    """And so does the SDK of that version, which it is written with."""
    async with leading(NOW, sqlite(tmp_path / "journal.db")) as running, sdk(running.address) as pool:
        await declare(pool)

        async def says(*words: str) -> str:
            said = await asyncio.to_thread(old.run, "--coordinator", running.address, *words)
            assert said.returncode == 0, said.stderr
            return said.stdout

        lease = json.loads(await says("alloc", "0.5", "--until", "granted", "--tenant", "team", "--json"))
        assert lease["lease_id"] in await says("ls", "--json")
        assert "fits" in await says("why", "0.5", "--tenant", "team")
        await says("release", lease["lease_id"])
        assert (await pool.get(lease["lease_id"])).state is LeaseState.ENDED


async def test_the_newer_sdk_says_so_where_the_older_coordinator_does_not_know_a_call(
    lacking: Version, tmp_path: Path
) -> None:
    async with leading(lacking, sqlite(tmp_path / "journal.db")) as running, sdk(running.address) as pool:
        await declare(pool)
        lease = await pool.allocate("0.5", until=WaitUntil.GRANTED, detached=True)
        assert (await pool.get(lease.lease_id)).granted
        assert [held.lease_id async for held in pool.leases()] == [lease.lease_id]
        with pytest.raises(Refused, match=r"doesn.t know") as refused:
            await pool.admin.declare_maintenance(MaintenanceWindow(name="w"))
        assert "older" in refused.value.hint


async def declare(pool: AsyncPool) -> None:
    devices = [DeviceDeclaration("A100-80")] * 8
    await pool.declare([NodeDeclaration(f"n{number}", devices, agentless=True) for number in range(2)])


async def test_a_pool_is_upgraded_in_place_and_what_runs_goes_on(old: Version, node: Node, tmp_path: Path) -> None:
    journal, listen = sqlite(tmp_path / "journal.db"), free_address()
    async with leading(old, journal, listen), sdk(listen) as pool:
        await agent(old, node, listen)
        await eventually(lambda: ready(pool), "the node is ready")
        running = await pool.allocate("0.5,2Gi", until=WaitUntil.ACTIVE, wait_s=30, detached=True)
        waiting = await pool.allocate("2", until=WaitUntil.GRANTED, wait_s=0, key="waits", detached=True)
        job = await run_in(node, running)
    async with leading(NOW, journal, listen), sdk(listen) as pool:
        await still(pool, node, running, job)
        assert (await pool.allocate("2", until=WaitUntil.GRANTED, wait_s=0, key="waits", detached=True)).lease_id == (
            waiting.lease_id
        ), "what was asked before the upgrade is not asked twice"
        assert await asyncio.to_thread(node.terminate) == 0
        await agent(NOW, node, listen)
        await still(pool, node, running, job)
        await pool.release(running.lease_id, wait_gone=True, timeout_s=60)
        assert await asyncio.to_thread(job.wait, 30) == -signal.SIGTERM
        granted = await eventually(lambda: active(pool, waiting), "who waited has its turn")
        await pool.release(granted.lease_id, wait_gone=True, timeout_s=60)


async def still(pool: AsyncPool, node: Node, lease: Lease, job: subprocess.Popen[bytes]) -> None:
    """The lease holds what it held, its process runs, and it is the lease's."""
    await eventually(lambda: ready(pool), "the node is ready")
    now = await eventually(lambda: active(pool, lease), "the lease is active")
    assert [part.slice_id for part in now.slices] == [part.slice_id for part in lease.slices]
    assert now.requeues == 0
    await eventually(lambda: attached(node, lease), "the process is the lease's")
    assert job.poll() is None


async def active(pool: AsyncPool, lease: Lease) -> Lease | None:
    """The lease, once it is."""
    now = await pool.get(lease.lease_id)
    parts = {part.state for part in now.slices}
    return now if now.state is LeaseState.ACTIVE and parts == {SliceState.ACTIVE} else None


async def attached(node: Node, lease: Lease) -> bool:
    """Whether the agent counts a process to the lease."""
    status = await asyncio.to_thread(node.status)
    return any(piece.lease_id == lease.lease_id and piece.pids for piece in status.slices)


async def test_going_back_is_refused_and_says_what_to_do(lacking: Version, tmp_path: Path) -> None:
    """The first start puts the pool's administrator down, which versions before can't keep."""
    journal = sqlite(tmp_path / "journal.db")
    async with leading(lacking, journal) as running, sdk(running.address) as pool:
        await declare(pool)
        lease = await pool.allocate("0.5", until=WaitUntil.GRANTED, detached=True)
    async with leading(NOW, journal) as running, sdk(running.address) as pool:
        assert (await pool.get(lease.lease_id)).granted
    refused = await coordinator(lacking, journal)
    assert isinstance(refused, Ended)
    assert refused.code != 0
    assert "start the version that wrote this journal, or a newer one" in refused.said
    assert "Traceback" not in refused.said
    async with leading(NOW, journal) as running, sdk(running.address) as pool:
        assert (await pool.get(lease.lease_id)).granted, "the refusal left the journal as it was"


@pytest.mark.parametrize("name", sorted(saved.OF_THE_RELEASE))
async def test_a_journal_of_the_version_before_is_served(tmp_path: Path, name: str) -> None:
    """As it was in the midst of things, when its snapshot was taken."""
    path = saved.unpack(name, tmp_path)
    (snapshot,) = snapshot_folder_of(path).iterdir()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM groups WHERE first_seq > ?", (int(snapshot.stem),))
    limits = LimitSettings(strict_tenants=False)  # the journal declares some tenants, and others asked as well
    async with running(settings_for(sqlite(path), limits=limits)) as now, sdk(now.address) as pool:
        leases = [lease async for lease in pool.leases()]
        assert {lease.state for lease in leases} >= {LeaseState.QUEUED, LeaseState.ACTIVE}
        for lease in leases:
            assert (await pool.get(lease.lease_id)).lease_id == lease.lease_id
            await pool.explain("1", tenant=lease.tenant)
        assert [node async for node in pool.nodes()]
        await declare(pool)
        fresh = await pool.allocate("0.5", until=WaitUntil.GRANTED, wait_s=0, detached=True)
        assert (await pool.get(fresh.lease_id)).lease_id not in {lease.lease_id for lease in leases}


def replica(conninfo: str, version: Version, address: str = "") -> Replica:
    """A replica of that version; of `env`, because an interpreter reads where its packages are from there."""
    forgotten = (
        [] if version.name != WITHOUT_MAINTENANCE else [word for name in UNKNOWN_BEFORE for word in ("-u", name)]
    )
    before = ["env", *forgotten, *(f"{name}={value}" for name, value in version.environment.items())]
    return Replica(conninfo, "--log-level", "error", address=address, before=before)


@pytest.mark.postgres
async def test_replicas_are_upgraded_one_after_the_other_under_load(old: Version, database: str) -> None:  # noqa: F811
    several = Cluster(database, 0)
    several.replicas = [replica(database, old), replica(database, old)]
    try:
        await asyncio.to_thread(several.start)
        async with sdk(*several.addresses) as pool:
            await declare(pool)
        async with load(several.addresses, 4) as log:
            leader = await several.leader()
            (standby,) = [other for other in several.replicas if other is not leader]
            await upgrade(several, standby, log)
            assert await several.leader() is leader, "an upgraded standby leaves the leader alone"
            _, epoch, _ = several.row()
            await upgrade(several, leader, log)
            assert (await several.leader(after_epoch=epoch)).address == standby.address
        findings = await asyncio.to_thread(audit, database, log)
    finally:
        await asyncio.to_thread(several.close)
    assert findings.clean, findings
    assert findings.grants >= len(log.granted) > 0
    assert not log.failed, log.failed


async def upgrade(several: Cluster, replica_: Replica, log: Log) -> None:
    """Stop one replica in order and start this version in its place."""
    replica_.send(signal.SIGTERM)
    assert await asyncio.to_thread(replica_.ended) == 0
    place = several.replicas.index(replica_)
    several.replicas[place] = replica(several.conninfo, NOW, replica_.address)
    several.replicas[place].start()
    await asyncio.to_thread(several.replicas[place].wait_until_ready)
    await granted_after(log, time.monotonic())
