"""Leaders that the network parts from the database, from agents and launchers, or from everybody, under load.

Each coordinator is in a network namespace of its own, and packets are swallowed without a word. Whatever is cut,
nothing is lost and nothing granted twice, by the same audit as after kills.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from aliquot.client import AsyncPool, WaitUntil
from aliquot.coordinator.agents.authority import Authority
from tests.conftest import postgres_bin_dir
from tests.coordinator.pool import eventually
from tests.failover import server
from tests.failover.agents import Agent
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, Log, Replica, granted_after, load, refers, refusal
from tests.failover.namespaces import NETWORK, Namespace, namespaces, why_not

pytestmark = [pytest.mark.postgres, pytest.mark.root("to make network namespaces"), pytest.mark.timeout(300)]

PORT = 7070
_numbers = count(1)


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Namespace]]:
    if reason := why_not():
        pytest.skip(reason)
    with namespaces(2) as several:
        yield several


@pytest.fixture(scope="module")
def reachable(machines: list[Namespace]) -> Iterator[server.Postgres]:
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with server.running(bin_dir, network=NETWORK) as postgres:
        yield postgres


class Certified:
    """What coordinators on other machines show, and callers trust."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        authority = Authority(bytes(32))
        made = authority.serve_as(names, time.time_ns() // 1_000_000)
        self.ca = folder / "ca.pem"
        certificate, key = folder / "certificate.pem", folder / "key.pem"
        for file, content in ((self.ca, authority.pem), (certificate, made.chain_pem), (key, made.key_pem)):
            file.write_bytes(content)
        self.flags = ("--tls-cert", str(certificate), "--tls-key", str(key))


class Parted:
    """A cluster of which each coordinator is on a machine of its own, with agents and launchers on this one."""

    def __init__(self, postgres: server.Postgres, machines: list[Namespace], folder: Path) -> None:
        own = Certified(folder, [machine.address for machine in machines])
        conninfo = postgres.database(f"parted{next(_numbers)}")
        self.machines = machines
        self.cluster = Cluster(conninfo, 0)
        self.cluster.replicas = [
            Replica(
                conninfo.replace("127.0.0.1", machine.database),
                *("--log-level", "error", *own.flags),
                address=f"{machine.address}:{PORT}",
                before=machine.before,
            )
            for machine in machines
        ]
        self.agents = [Agent(self.cluster.addresses, number) for number in range(6)]
        for agent in self.agents:
            agent.ca_pem = own.ca.read_bytes()

    async def leader(self, after_epoch: int = 0) -> tuple[Replica, Namespace]:
        replica = await self.cluster.leader(after_epoch)
        return replica, self.machines[self.cluster.replicas.index(replica)]

    async def epoch(self) -> int:
        return (await asyncio.to_thread(self.cluster.row))[1]

    async def granted_on(self, log: Log) -> None:
        """Something is granted from now on."""
        await granted_after(log, time.monotonic())

    @contextlib.asynccontextmanager
    async def loaded(self) -> AsyncIterator[Log]:
        """Launchers at work. At the end nothing may have been lost or granted twice, by the journal, by them and by
        the agents.
        """
        async with load(self.cluster.addresses, 6) as log:
            await self.granted_on(log)
            yield log
        findings = await asyncio.to_thread(audit, self.cluster.conninfo, log)
        assert findings.clean, findings
        assert findings.grants >= len(log.granted) > 0
        assert not [text for agent in self.agents for text in agent.overcommitted]


@pytest.fixture
async def scene(
    reachable: server.Postgres, machines: list[Namespace], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Parted]:
    scene = Parted(reachable, machines, tmp_path)
    monkeypatch.setenv("ALIQUOT_CLIENT_TLS_CA_FILE", str(tmp_path / "ca.pem"))
    tasks: list[asyncio.Task[None]] = []
    try:
        await asyncio.to_thread(scene.cluster.start)
        tasks += [asyncio.create_task(agent.run()) for agent in scene.agents]
        yield scene
    finally:
        for machine in machines:
            machine.heal()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(scene.cluster.close)


async def test_a_leader_without_its_database_gives_way_and_goes_on_as_a_standby(scene: Parted) -> None:
    async with scene.loaded() as log:
        epoch = await scene.epoch()
        old, machine = await scene.leader()
        machine.cut(machine.database)
        new, _ = await scene.leader(after_epoch=epoch)
        assert new is not old
        await scene.granted_on(log)  # while the way is still cut
        said = await refusal(old)
        assert said is not None
        assert said.stated_reason == "JOURNAL_UNAVAILABLE", "it knows by its own clock that it leads no longer"
        machine.heal()
        await eventually(lambda: refers(old, new), "it follows the one that leads")
        assert old.running
        await scene.granted_on(log)


async def test_a_leader_that_nobody_reaches_grants_nothing_and_goes_on_when_the_way_is_back(scene: Parted) -> None:
    """It can renew its row, so it leads on; who would want it otherwise ends it. Nothing breaks meanwhile."""
    async with scene.loaded() as log:
        _, machine = await scene.leader()
        machine.cut(machine.callers)
        before = await asyncio.to_thread(scene.cluster.row)
        await asyncio.sleep(4)  # longer than a row lasts
        after = await asyncio.to_thread(scene.cluster.row)
        assert after[:2] == before[:2]
        machine.heal()
        await scene.granted_on(log)


async def test_a_leader_that_is_cut_off_from_everybody_is_replaced(scene: Parted) -> None:
    async with scene.loaded() as log:
        epoch = await scene.epoch()
        old, machine = await scene.leader()
        machine.cut(machine.database, machine.callers)
        new, _ = await scene.leader(after_epoch=epoch)
        assert new is not old
        async with AsyncPool([new.address], tenant="other") as pool:  # who has no connection that hangs
            lease = await pool.allocate("0.1,1Gi", until=WaitUntil.GRANTED, wait_s=60, detached=True)
            await pool.release(lease.lease_id)
        await scene.granted_on(log)  # those who had one as well, while the ways are still cut
        machine.heal()
        await eventually(lambda: refers(old, new), "it follows the one that leads")
        assert old.running
