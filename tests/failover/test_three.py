"""Three coordinators on one database while launchers, each of which names them in another order, ask, keep and give
back: leader and standby killed together, a leader frozen and woken, the database itself restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import grpc.aio
import pytest

from aliquot.client import AsyncPool, WaitUntil
from aliquot.v1 import leases_pb2, leases_pb2_grpc, pool_pb2, pool_pb2_grpc
from tests.coordinator.pool import eventually
from tests.failover import server
from tests.failover.audit import Findings, audit
from tests.failover.cluster import Cluster, Log, Replica, cluster, granted_after, load, refers
from tests.failover.test_takeover import declare
from tests.identity import insecure_channel

pytestmark = [pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(240)]


@contextlib.asynccontextmanager
async def permuted(several: Cluster) -> AsyncIterator[list[Log]]:
    """A launcher for each order in which the addresses can be named."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(load(order, 1)) for order in itertools.permutations(several.addresses)]


async def all_granted(logs: list[Log], moment: float) -> None:
    """Until each launcher has had a grant since."""
    await asyncio.gather(*(granted_after(log, moment) for log in logs))


def merged(logs: list[Log]) -> Log:
    """What all of them were told."""
    whole = Log()
    for log in logs:
        whole.granted |= log.granted
        whole.released |= log.released
        whole.release_asked |= log.release_asked
        whole.changed_answers += log.changed_answers
        whole.failed += log.failed
    return whole


async def judged(several: Cluster, logs: list[Log]) -> Findings:
    """Nothing is lost or doubled by what launchers were told, and the journal's own check agrees."""
    log = merged(logs)
    findings = await asyncio.to_thread(audit, several.conninfo, log)
    assert findings.clean, findings
    assert findings.grants >= len(log.granted) > 0
    assert not log.failed
    verify = ("-m", "aliquot.cli", "journal", "verify", f"postgres:{several.conninfo}")
    verified = await asyncio.create_subprocess_exec(sys.executable, *verify, stdout=asyncio.subprocess.DEVNULL)
    assert await verified.wait() == 0
    return findings


async def back(replica: Replica) -> None:
    replica.start()
    await asyncio.to_thread(replica.wait_until_ready)


async def test_leader_and_standby_are_killed_together(database: str) -> None:
    async with cluster(database, 3) as several:
        await declare(several)
        async with permuted(several) as logs:
            await all_granted(logs, time.monotonic())
            for _ in range(2):
                leader = await several.leader()
                _, epoch, _ = several.row()
                gone = [leader, next(replica for replica in several.replicas if replica is not leader)]
                for replica in gone:
                    replica.send(signal.SIGKILL)
                moment = time.monotonic()
                assert await several.leader(after_epoch=epoch) not in gone
                await all_granted(logs, moment)
                for replica in gone:
                    await asyncio.to_thread(replica.ended)
                    await back(replica)
        assert len((await judged(several, logs)).epochs) >= 3


async def test_a_frozen_leader_that_wakes_answers_nothing_as_if_it_led(database: str) -> None:
    async with cluster(database, 3) as several:
        await declare(several)
        async with permuted(several) as logs:
            await all_granted(logs, time.monotonic())
            old = await several.leader()
            _, epoch, _ = several.row()
            async with AsyncPool([old.address], tenant="team") as pool, insecure_channel(old.address) as channel:
                kept = await pool.allocate("0.1,1Gi", until=WaitUntil.GRANTED, detached=True)
                leases: Any = leases_pb2_grpc.LeaseServiceStub(channel)
                of_pool: Any = pool_pb2_grpc.PoolServiceStub(channel)
                asking = leases_pb2.GetRequest(lease_id=kept.lease_id)
                await leases.Get(asking)  # the connection is there; no keep-alive of this one gives the frozen one up
                old.send(signal.SIGSTOP)
                moment = time.monotonic()
                asked = [leases.Get(asking) for _ in range(50)]
                asked += [of_pool.GetStatus(pool_pb2.GetStatusRequest()) for _ in range(20)]
                new = await several.leader(after_epoch=epoch)
                async with AsyncPool([new.address], tenant="team") as other:
                    await other.release(kept.lease_id)
                await all_granted(logs, moment)
                old.send(signal.SIGCONT)
                answers = await asyncio.gather(*asked, return_exceptions=True)
            led = [answer for answer in answers if not isinstance(answer, grpc.aio.AioRpcError)]
            assert not led, f"{len(led)} of {len(answers)}: {led[0]}"
            await eventually(partial(refers, old, new), "who was frozen follows the one that leads")
            assert old.running
        await judged(several, logs)


async def test_the_database_is_restarted_under_three(own_server: server.Postgres) -> None:
    async with cluster(own_server.database("restarted"), 3) as several:
        await declare(several)
        async with permuted(several) as logs:
            await all_granted(logs, time.monotonic())
            for _ in range(2):
                await asyncio.to_thread(own_server.stop)
                await asyncio.to_thread(own_server.start_again)
                moment = time.monotonic()
                await all_granted(logs, moment)
            assert all(replica.running for replica in several.replicas)
        await judged(several, logs)
