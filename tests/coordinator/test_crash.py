"""kill -9 of a real coordinator at every write to its journal: what was answered is there, and nothing twice."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest

from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from aliquot.v1 import leases_pb2, leases_pb2_grpc, pool_pb2, pool_pb2_grpc, types_pb2
from tests.coordinator.pool import allocation, declared, eventually, running, settings_for, sqlite
from tests.coordinator.process import Ended, Running, serving, start
from tests.core import invariants
from tests.identity import insecure_channel

KEYS = ("a", "b", "c")


@dataclass
class Log:
    """What one launcher knows for certain, and what it does not know."""

    declared: bool = False
    granted: dict[str, types_pb2.Lease] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)


async def story(address: str, log: Log) -> None:
    """A little life. Raises when the coordinator dies."""
    async with insecure_channel(address) as channel:
        leases = leases_pb2_grpc.LeaseServiceStub(channel)
        nodes = pool_pb2_grpc.PoolServiceStub(channel)
        await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("n", 1)]))
        log.declared = True
        for key in KEYS:
            answer = await leases.Allocate(allocation("0.25", idempotency_key=key, detached=True))
            log.granted[key] = answer.lease
        await leases.Release(leases_pb2.ReleaseRequest(lease_id=log.granted["b"].lease_id))
        log.released.add("b")


async def verify(path: Path, log: Log) -> None:
    """What was answered before the crash is true after it, and asking again settles what was not answered."""
    async with running(settings_for(sqlite(path))) as pool:
        if log.declared:
            assert (await pool.node("n")).devices
        else:
            await pool.declare(1, prefix="n")
        for key in KEYS:
            answer = await pool.leases.Allocate(allocation("0.25", idempotency_key=key, detached=True))
            if key in log.granted:
                assert answer.replayed
                assert answer.lease.lease_id == log.granted[key].lease_id
                assert answer.lease.secret == log.granted[key].secret
                assert answer.lease.slices[0].device_uuid == log.granted[key].slices[0].device_uuid
            if key in log.released:
                assert answer.lease.state == types_pb2.LEASE_STATE_ENDED
        everything = await pool.leases.List(leases_pb2.ListRequest(states=types_pb2.LeaseState.values()))
        assert len(everything.leases) == len(KEYS)
    journal = SqliteJournal(path)
    journal.open()
    invariants.check(replay(journal).state)
    journal.close()


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("crash") / "crash.so"
    source = Path(__file__).with_name("crash.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library


async def crash(preload: Path, path: Path, at: int, how: str, **more: str) -> tuple[bool, Log]:
    """Run the story against a process that dies at that write; whether it did die. `more` is for its environment."""
    log = Log()
    env = {"LD_PRELOAD": str(preload), "CRASH_PATH": path.name, "CRASH_AT": str(at), "CRASH_HOW": how, **more}
    started = await start(
        "--listen", "127.0.0.1:0", "--metrics-port", "-1", "--log-level", "error", "--journal", sqlite(path), env=env
    )
    if isinstance(started, Ended):
        assert started.code == -9, started.said
        return True, log
    try:
        await story(started.address, log)
    except grpc.aio.AioRpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE, error
        return True, log
    finally:
        if started.process.returncode is None:
            started.process.kill()
        await started.end()
    return False, log


async def at_every(preload: Path, folder: Path, how: str, stride: int) -> int:
    at, crashes = 1, 0
    while True:
        path = folder / f"journal-{at}.db"
        died, log = await crash(preload, path, at, how)
        await verify(path, log)
        if not died:
            return crashes
        crashes += 1
        at += stride


async def test_killed_at_write_points(preload: Path, tmp_path: Path) -> None:
    """Every seventh write, torn in the middle; all of them are looked at by the slow test."""
    assert await at_every(preload, tmp_path, "torn", 7) >= 5


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["before", "torn", "after"])
async def test_killed_at_every_write_point(preload: Path, tmp_path: Path, how: str) -> None:
    assert await at_every(preload, tmp_path, how, 1) >= 25


async def test_killed_under_load_nothing_answered_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    answered: dict[str, str] = {}
    async with serving("--journal", sqlite(path), "--log-level", "error") as process:
        async with insecure_channel(process.address) as channel:
            nodes = pool_pb2_grpc.PoolServiceStub(channel)
            await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("n", 200)]))
            callers = [asyncio.create_task(_ask(channel, number, answered)) for number in range(16)]
            await eventually(lambda: len(answered) >= 300, "300 answers")
            process.process.kill()
            await asyncio.gather(*callers, return_exceptions=True)
        await process.end()
    async with running(settings_for(sqlite(path))) as pool:
        for key, lease_id in answered.items():
            answer = await pool.leases.Allocate(allocation("0.1", idempotency_key=key, detached=True))
            assert (answer.replayed, answer.lease.lease_id) == (True, lease_id)


async def _ask(channel: grpc.aio.Channel, number: int, answered: dict[str, str]) -> None:
    leases = leases_pb2_grpc.LeaseServiceStub(channel)
    for turn in range(10_000):
        key = f"{number}-{turn}"
        answer = await leases.Allocate(allocation("0.1", idempotency_key=key, detached=True))
        answered[key] = answer.lease.lease_id


async def test_sigterm_under_load_ends_in_order(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    answered: dict[str, str] = {}
    async with serving("--journal", sqlite(path)) as process:
        async with insecure_channel(process.address) as channel:
            nodes = pool_pb2_grpc.PoolServiceStub(channel)
            await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("n", 200)]))
            callers = [asyncio.create_task(_ask(channel, number, answered)) for number in range(8)]
            await eventually(lambda: len(answered) >= 100, "100 answers")
            process.process.terminate()
            await asyncio.gather(*callers, return_exceptions=True)
        ended = await process.end()
    assert isinstance(process, Running)
    assert ended.code == 0, ended.said
    assert "Traceback" not in ended.said
    journal = SqliteJournal(path)
    journal.open()
    state = replay(journal).state
    assert set(answered.values()) <= set(state.leases)
    invariants.check(state)
    journal.close()
