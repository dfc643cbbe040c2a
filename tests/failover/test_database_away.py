"""The database itself goes away and comes back while launchers are at work: all wait, nobody is told what is not so."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
import urllib.request

import grpc.aio
import psycopg
import pytest

from aliquot.client import AsyncPool, WaitUntil
from aliquot.v1 import pool_pb2, pool_pb2_grpc
from tests.coordinator.pool import eventually
from tests.failover import server
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, Replica, cluster, granted_after, load, refusal
from tests.failover.test_takeover import declare
from tests.identity import insecure_channel

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


async def nobody_grants(several: Cluster) -> bool:
    """Whether no coordinator says that it grants."""
    for replica in several.replicas:
        async with insecure_channel(replica.address) as channel:
            try:
                answer = await pool_pb2_grpc.PoolServiceStub(channel).GetStatus(pool_pb2.GetStatusRequest(), timeout=5)
            except grpc.aio.AioRpcError:
                continue  # it follows, or has ended
            if answer.granting:
                return False
    return True


async def test_grants_wait_for_the_database_and_go_on_when_it_is_back(own_server: server.Postgres) -> None:
    async with cluster(own_server.database("away"), 2) as several:
        await declare(several)
        async with load(several.addresses, 6) as log:
            await granted_after(log, time.monotonic())
            await asyncio.to_thread(own_server.stop)
            await eventually(lambda: nobody_grants(several), "nothing is granted without a database")
            await asyncio.sleep(4)  # longer than a leader row lasts
            for replica in several.replicas:
                said = await refusal(replica)
                assert said is not None
                assert said.stated_reason == "JOURNAL_UNAVAILABLE", said
                assert "PostgreSQL" in said.message
                assert said.retry_after_s
            answered = len(log.granted_at)
            assert all(replica.running for replica in several.replicas)
            await asyncio.to_thread(own_server.start_again)
            await granted_after(log, time.monotonic())
            assert len(log.granted_at) > answered
            assert all(replica.running for replica in several.replicas), "those who were there go on"
        findings = await asyncio.to_thread(audit, several.conninfo, log)
        assert findings.clean, findings
        assert findings.grants >= len(log.granted) > 0


async def test_a_coordinator_that_starts_without_its_database_waits_for_it(own_server: server.Postgres) -> None:
    async with cluster(own_server.database("late"), 0) as several:
        await asyncio.to_thread(own_server.stop)
        replica = Replica(several.conninfo, "--log-level", "error")
        several.replicas.append(replica)
        with socket.create_server(("127.0.0.1", own_server.port)) as instead:
            replica.start()
            for _ in range(3):  # it comes again
                hung_up, _ = await asyncio.to_thread(instead.accept)
                hung_up.close()
        await asyncio.to_thread(own_server.start_again)
        await asyncio.to_thread(replica.wait_until_ready)
        assert replica.role == "leader"
        await declare(several)


NO_ROOM = """
CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full'; END $$;
CREATE TRIGGER no_room BEFORE INSERT ON aliquot.groups FOR EACH STATEMENT EXECUTE FUNCTION no_room();
"""
ROOM = "DROP TRIGGER no_room ON aliquot.groups"


async def test_who_takes_over_and_cannot_write_yet_goes_on_until_it_can(own_server: server.Postgres) -> None:
    """The row is another's already when the first commit fails: it steps back, and stays."""
    async with cluster(own_server.database("full"), 2) as several:
        await declare(several)
        old = await several.leader()
        (new,) = [replica for replica in several.replicas if replica is not old]
        with psycopg.connect(several.conninfo, autocommit=True) as connection:
            connection.execute(NO_ROOM)
            _, epoch, _ = several.row()
            old.send(signal.SIGKILL)
            await asyncio.to_thread(old.ended)

            async def tried() -> bool:
                said = await refusal(new)
                return several.row()[1] > epoch + 1 and said is not None

            await eventually(tried, "it has begun to lead more than once, in vain")
            assert new.running
            connection.execute(ROOM)
        async with AsyncPool([new.address], tenant="team") as pool:
            lease = await pool.allocate("0.25,1Gi", until=WaitUntil.GRANTED, wait_s=60, detached=True)
            assert lease.slices


AN_HOUR_AHEAD = """
import time
right = time.time_ns
time.time_ns = lambda: right() + 3_600_000_000_000
from aliquot.coordinator.main import main
raise SystemExit(main())
"""


async def test_a_clock_that_is_an_hour_ahead_does_not_become_the_pools(own_server: server.Postgres) -> None:
    async with cluster(own_server.database("clocks"), 1) as several:
        await declare(several)
        right = await several.leader()
        _, epoch, _ = several.row()
        async with AsyncPool([right.address], tenant="team") as pool:
            lease = await pool.allocate("0.25,1Gi", until=WaitUntil.GRANTED, detached=True)
        wrong = Replica(several.conninfo, "--log-level", "error", "--metrics-port", "0", program=("-c", AN_HOUR_AHEAD))
        several.replicas.append(wrong)
        wrong.start()
        await asyncio.to_thread(wrong.wait_until_ready)
        ahead_s = await asyncio.to_thread(scraped, wrong, 'aliquot_clock_ahead_seconds{clock="machine",of="database"}')
        assert 3_590 < ahead_s < 3_610

        right.send(signal.SIGKILL)
        await asyncio.to_thread(right.ended)

        async def refuses() -> bool:
            said = await refusal(wrong)
            return said is not None and "ahead of the database's" in said.message

        await eventually(refuses, "it finds the seat free, and does not take it")
        assert several.row()[:2] == (right.address, epoch)
        right.start()
        await asyncio.to_thread(right.wait_until_ready)
        await several.leader()
        async with AsyncPool([right.address], tenant="team") as pool:
            await pool.release(lease.lease_id)
            ended = await pool.get(lease.lease_id)
        assert ended.ended_ms - ended.granted_ms < 3_600_000, "nobody is charged that hour"


def scraped(replica: Replica, series: str) -> float:
    with urllib.request.urlopen(f"http://{replica.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(series)))
