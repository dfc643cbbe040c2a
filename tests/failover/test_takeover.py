"""Leaders that are killed, frozen, stopped in order, or cut off from the database while launchers are at work."""

from __future__ import annotations

import asyncio
import signal
import time
from functools import partial
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aliquot.client import AsyncPool, DeviceDeclaration, NodeDeclaration, WaitUntil
from aliquot.v1 import leases_pb2, leases_pb2_grpc
from tests.coordinator.pool import allocation, error_info, eventually, status_of
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, cluster, granted_after, load, refers
from tests.identity import insecure_channel

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]


async def declare(several: Cluster, nodes: int = 4) -> None:
    async with AsyncPool(several.addresses, tenant="team") as pool:
        await pool.declare(
            [
                NodeDeclaration(f"n{number}", devices=[DeviceDeclaration("A100-80")] * 8, agentless=True)
                for number in range(nodes)
            ]
        )


async def fail_over(several: Cluster, how: signal.Signals) -> None:
    """End the leader in that way under load, twice, and audit."""
    async with load(several.addresses, 6) as log:
        await granted_after(log, time.monotonic())
        for _ in range(2):
            _, epoch, _ = several.row()
            old = await several.leader()
            old.send(how)
            new = await several.leader(after_epoch=epoch)
            assert new is not old
            if how == signal.SIGSTOP:
                await granted_after_freeze(several, new.address)
                old.send(signal.SIGCONT)
            await granted_after(log, time.monotonic())
            if how == signal.SIGSTOP:
                await eventually(partial(refers, old, new), "who was frozen follows the one that leads")
                assert old.running
                continue
            assert old.ended() != 0 or how == signal.SIGTERM
            old.start()
            await asyncio.to_thread(old.wait_until_ready)
            assert old.role == "standby"
    findings = await asyncio.to_thread(audit, several.conninfo, log)
    assert findings.clean, findings
    assert len(findings.epochs) >= 3  # on a machine that stands still for seconds, a leader may lose its row by itself
    assert findings.grants >= len(log.granted) > 0
    assert not log.failed


async def granted_after_freeze(several: Cluster, address: str) -> None:
    """Who does not hang on the frozen leader is served while it is still frozen."""
    async with AsyncPool([address], tenant="other") as pool:
        lease = await pool.allocate("0.1,1Gi", until=WaitUntil.GRANTED, detached=True)
        await pool.release(lease.lease_id)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
async def test_another_takes_over_and_nothing_is_lost_or_granted_twice(database: str, how: signal.Signals) -> None:
    async with cluster(database) as several:
        await declare(several)
        await fail_over(several, how)


async def test_a_standby_names_the_leader_and_says_that_it_grants_nothing(database: str) -> None:
    async with cluster(database) as several:
        leader = await several.leader()
        (standby,) = [replica for replica in several.replicas if replica is not leader]
        async with insecure_channel(standby.address) as channel:
            stub: Any = leases_pb2_grpc.LeaseServiceStub(channel)
            for call in (stub.Allocate(allocation("1")), stub.Get(leases_pb2.GetRequest(lease_id="l"))):
                with pytest.raises(grpc.aio.AioRpcError) as refusal:
                    await call
                assert refusal.value.code() == grpc.StatusCode.UNAVAILABLE
                info = error_info(status_of(refusal.value))
                assert info.reason == "NOT_LEADER"
                assert info.metadata["leader"] == leader.address
                assert ("leader", leader.address) in list(refusal.value.trailing_metadata() or ())
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service, status in (("", "SERVING"), ("aliquot.grants", "NOT_SERVING")):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
                assert answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(status)
        # A launcher that only knows the standby finds the leader by itself.
        async with AsyncPool([standby.address], tenant="team") as pool:
            await pool.declare([NodeDeclaration("n", devices=[DeviceDeclaration("A100-80")], agentless=True)])
            assert (await pool.allocate("1", until=WaitUntil.GRANTED, detached=True)).slices


async def test_a_leader_that_loses_the_row_steps_down_by_itself(database: str) -> None:
    """As after a partition: the database says that another leads, and nobody told the leader."""
    import psycopg

    async with cluster(database) as several:
        leader = await several.leader()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("UPDATE aliquot.leader SET leader_epoch = leader_epoch + 5, expires_at = '-infinity'")
        new = await several.leader(after_epoch=5)
        if new is not leader:  # it may be the first to find the row free
            await eventually(lambda: refers(leader, new), "it follows the one that leads")
        assert leader.running
        async with AsyncPool([leader.address], tenant="team") as pool:
            await pool.declare([NodeDeclaration("n", devices=[DeviceDeclaration("A100-80")], agentless=True)])
            assert (await pool.allocate("1", until=WaitUntil.GRANTED, detached=True)).slices


async def test_a_leader_row_that_somebody_deletes_is_made_again(database: str) -> None:
    import psycopg

    async def has_row() -> bool:
        with psycopg.connect(database) as connection:
            return bool(connection.execute("SELECT FROM aliquot.leader").fetchall())

    async with cluster(database, 2) as several:
        await declare(several)
        async with load(several.addresses, 3) as log:
            await granted_after(log, time.monotonic())
            _, epoch, _ = several.row()
            with psycopg.connect(database, autocommit=True) as connection:
                connection.execute("DELETE FROM aliquot.leader")
            await eventually(has_row, "the row is there again")
            await several.leader(after_epoch=epoch)
            await granted_after(log, time.monotonic())
            assert all(replica.running for replica in several.replicas)
        findings = await asyncio.to_thread(audit, several.conninfo, log)
        assert findings.clean, findings
