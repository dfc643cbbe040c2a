"""The database itself goes away and comes back while launchers are at work: all wait, nobody is told what is not so."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator

import grpc.aio
import pytest

from aliquot.v1 import pool_pb2, pool_pb2_grpc
from tests.conftest import postgres_bin_dir
from tests.coordinator.pool import eventually
from tests.failover import server
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, Replica, cluster, granted_after, load, refusal
from tests.failover.test_takeover import declare
from tests.identity import insecure_channel

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


@pytest.fixture
def own_server() -> Iterator[server.Postgres]:
    bin_dir = postgres_bin_dir()
    if bin_dir is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with server.running(bin_dir) as postgres:
        yield postgres


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
