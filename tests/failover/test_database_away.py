"""The database itself goes away and comes back while launchers are at work: all wait, nobody is told what is not so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import grpc.aio
import pytest

from aliquot.v1 import pool_pb2, pool_pb2_grpc
from tests.conftest import postgres_bin_dir
from tests.coordinator.pool import eventually
from tests.failover import server
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, cluster, granted_after, load
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
            answered = len(log.granted_at)
            await asyncio.to_thread(own_server.start_again)
            back = time.monotonic()
            for replica in several.replicas:
                if not replica.running:  # as its service manager does
                    replica.ended()
                    replica.start()
                    await asyncio.to_thread(replica.wait_until_ready)
            await granted_after(log, back)
            assert len(log.granted_at) > answered
        findings = await asyncio.to_thread(audit, several.conninfo, log)
        assert findings.clean, findings
        assert findings.grants >= len(log.granted) > 0
