"""A disk that is full, breaks, is slow, hangs, or gives back other bytes than it was given, under a real coordinator
process with an agent and a launcher: nothing is granted that is not durable, health says why, what runs goes on, and
it recovers by itself wherever that is possible, or says exactly what to do where it is not.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aliquot.cli.main import build_parser, commands
from aliquot.v1 import agent_pb2, leases_pb2, leases_pb2_grpc, types_pb2
from tests.coordinator.pool import Agent, agents, allocation, eventually, reason_of, retry_after_ms, sqlite
from tests.coordinator.process import Ended, Running, serving, start
from tests.identity import insecure_channel

pytestmark = pytest.mark.timeout(180)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
STOP = agent_pb2.DESIRED_STATE_STOP


@dataclass
class Disk:
    """What the journal's disk does."""

    library: Path
    says: Path
    journal: Path

    @property
    def env(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "DISK_PATH": self.journal.name, "DISK_SAYS": str(self.says)}

    def does(self, what: str) -> None:
        """From now on: `full`, `broken`, `slow MILLISECONDS`, or nothing out of the ordinary."""
        fresh = self.says.with_suffix(".new")
        fresh.write_text(what)
        fresh.replace(self.says)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("disk") / "disk.so"
    source = Path(__file__).with_name("disk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-Wall", "-o", built, source, "-ldl"], check=True)
    return built


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> Disk:
    disk = Disk(library, tmp_path / "says", tmp_path / "journal.db")
    disk.does("")
    return disk


class Scene:
    """A coordinator on that disk, one node with an agent, and a lease that runs there."""

    def __init__(self, process: Running, channel: grpc.aio.Channel, agent: Agent) -> None:
        self.process, self.agent = process, agent
        self.leases = leases_pb2_grpc.LeaseServiceStub(channel)
        self._health: Any = health_pb2_grpc.HealthStub(channel)
        self.running = types_pb2.Lease()

    async def begin(self) -> None:
        self.running = await self.ask("running", wait_until=leases_pb2.WAIT_UNTIL_ACTIVE)
        assert self.running.state == types_pb2.LEASE_STATE_ACTIVE

    async def ask(self, key: str, **fields: int) -> types_pb2.Lease:
        request = allocation("0.05,1Gi", idempotency_key=key, detached=True, **fields)
        answer = await self.leases.Allocate(request, timeout=60)
        lease: types_pb2.Lease = answer.lease
        return lease

    async def grants_are(self, status: int) -> bool:
        answer = await self._health.Check(health_pb2.HealthCheckRequest(service="aliquot.grants"))
        return bool(answer.status == status)

    async def readiness(self) -> tuple[int, str]:
        return await asyncio.to_thread(_get, f"http://{self.process.metrics}/readyz")

    async def still_runs(self) -> None:
        """Nobody told the agent to stop anything, and its session never ended."""
        assert not any(wanted.state == STOP for desired in self.agent.desired for wanted in desired.slices)
        assert self.agent.ended is None
        lease = await self.leases.Get(leases_pb2.GetRequest(lease_id=self.running.lease_id))
        assert lease.state == types_pb2.LEASE_STATE_ACTIVE


def _get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextlib.asynccontextmanager
async def scene(disk: Disk) -> AsyncIterator[Scene]:
    async with serving("--journal", sqlite(disk.journal), "--log-level", "error", env=disk.env) as process:
        agent = Agent(process.address, "n1")
        async with agents(agent), insecure_channel(process.address) as channel:
            await eventually(lambda: bool(agent.desired), "the node is ready")
            scene = Scene(process, channel, agent)
            await scene.begin()
            try:
                yield scene
            finally:
                disk.does("")


@pytest.mark.parametrize(("what", "said"), [("full", "full"), ("broken", "I/O error")])
async def test_grants_stop_and_say_why_and_go_on_by_themselves(disk: Disk, what: str, said: str) -> None:
    async with scene(disk) as at:
        disk.does(what)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await at.ask("refused")
        assert reason_of(refusal.value) == "JOURNAL_UNAVAILABLE"
        assert said in (refusal.value.details() or "")
        assert retry_after_ms(refusal.value) > 0
        await eventually(lambda: at.grants_are(NOT_SERVING), "health says that nothing is granted")
        code, text = await at.readiness()
        assert code == 503
        assert said in text
        await at.still_runs()
        disk.does("")
        await eventually(lambda: at.grants_are(SERVING), "granting goes on by itself")
        assert (await at.ask("refused")).state == types_pb2.LEASE_STATE_GRANTED
        await at.still_runs()


async def test_a_slow_disk_grants_slowly_and_ends_nothing(disk: Disk) -> None:
    async with scene(disk) as at:
        disk.does("slow 700")
        granted = await asyncio.gather(*(at.ask(f"slow-{number}") for number in range(8)))
        assert len({lease.lease_id for lease in granted}) == 8, (
            "commits are shared, so eight take no eight times as long"
        )
        assert await at.grants_are(SERVING)
        await at.still_runs()


async def test_a_disk_that_hangs_is_no_longer_ready_and_loses_nothing(disk: Disk) -> None:
    async with scene(disk) as at:
        disk.does("slow 3600000")
        waiting = asyncio.create_task(at.ask("hung"))
        await eventually(lambda: at.grants_are(NOT_SERVING), "no error tells, but health does")
        code, text = await at.readiness()
        assert code == 503
        assert "takes longer" in text
        assert not waiting.done(), "nobody is told what is not durable"
        await at.still_runs()
        disk.does("")
        lease = await waiting
        assert lease.state == types_pb2.LEASE_STATE_GRANTED
        await eventually(lambda: at.grants_are(SERVING), "granting goes on by itself")
        assert (await at.ask("hung")).lease_id == lease.lease_id
        await at.still_runs()


async def test_damage_in_the_middle_stops_the_start_and_the_instructions_work(disk: Disk, tmp_path: Path) -> None:
    async with scene(disk) as at:
        for number in range(12):
            await at.ask(f"k{number}")
    with contextlib.closing(sqlite3.connect(disk.journal, isolation_level=None)) as connection:
        (seq,) = connection.execute("SELECT last_seq FROM groups ORDER BY last_seq LIMIT 1 OFFSET 8").fetchone()
        connection.execute("UPDATE groups SET payload = zeroblob(length(payload)) WHERE last_seq = ?", (seq,))
    before = disk.journal.read_bytes()
    refused = await start("--listen", "127.0.0.1:0", "--metrics-port", "-1", "--journal", sqlite(disk.journal))
    assert isinstance(refused, Ended)
    assert refused.code == 1
    assert f"{seq}" in refused.said, "it names the record"
    assert "aliquot journal repair" in refused.said, "and the command that helps"
    assert disk.journal.read_bytes() == before, "and leaves the evidence alone"
    repaired = tmp_path / "repaired.db"
    parsed = build_parser(commands(["journal"])).parse_args(["journal", "repair", str(disk.journal), str(repaired)])
    assert parsed.run(parsed) == 0
    async with serving("--journal", sqlite(repaired), "--log-level", "error") as process:
        agent = Agent(process.address, "n1")
        agent.reservations = dict(at.agent.reservations)
        async with agents(agent), insecure_channel(process.address) as channel:
            await eventually(lambda: bool(agent.desired), "the node is ready")
            after = Scene(process, channel, agent)
            first = await after.ask("running")
            assert first.lease_id == at.running.lease_id, "what came before the damage is known"
            held = {report.slice_id for report in agent.reservations.values()}
            fresh = await after.ask("fresh")
            assert not held & {piece.slice_id for piece in fresh.slices}
