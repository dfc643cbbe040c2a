"""A leader that learns that it leads no longer while its journal fails anyway ends all the same, in either order."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import grpc
import pytest

from aliquot.coordinator.coordinator import Coordinator
from aliquot.coordinator.errors import NotLeader
from aliquot.v1 import leases_pb2_grpc, pool_pb2, pool_pb2_grpc
from tests.coordinator.journals import FailingJournal
from tests.coordinator.pool import allocation, declared, eventually, settings_for
from tests.identity import insecure_channel


class SlowToRecover(FailingJournal):
    """Recovery waits until `recovers` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.recovering = threading.Event()
        self.recovers = threading.Event()

    def recover(self) -> None:
        self.recovering.set()
        assert self.recovers.wait(60)
        super().recover()


async def declare(coordinator: Coordinator) -> None:
    async with insecure_channel(coordinator.address) as channel:
        nodes = pool_pb2.DeclareNodesRequest(nodes=[declared("n")])
        await pool_pb2_grpc.PoolServiceStub(channel).DeclareNodes(nodes)


async def ask(coordinator: Coordinator) -> None:
    async with insecure_channel(coordinator.address) as channel:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await leases_pb2_grpc.LeaseServiceStub(channel).Allocate(allocation("1"))


@pytest.fixture
def lost() -> NotLeader:
    return NotLeader("the leader row could not be renewed", hint="it starts again as a standby")


async def test_a_commit_that_fails_after_leadership_was_lost_is_not_recovered_from(lost: NotLeader) -> None:
    journal = FailingJournal()
    coordinator = Coordinator(settings_for(), journal=journal)
    await coordinator.start()
    serving = asyncio.create_task(coordinator.serve())
    await declare(coordinator)
    journal.hold()
    asking = asyncio.create_task(ask(coordinator))
    await eventually(journal.waiting.is_set, "a commit is under way")
    assert coordinator.leading is not None
    coordinator.leading.writer.lose_leadership(lost)
    journal.broken = True
    journal.let_go()
    with pytest.raises(NotLeader):
        await serving
    await asking


async def test_a_recovery_that_ends_after_leadership_was_lost_is_in_vain(lost: NotLeader) -> None:
    journal = SlowToRecover()
    coordinator = Coordinator(settings_for(), journal=journal)
    await coordinator.start()
    serving = asyncio.create_task(coordinator.serve())
    await declare(coordinator)
    journal.broken = True
    await ask(coordinator)
    await eventually(journal.recovering.is_set, "it reads its journal again")
    assert coordinator.leading is not None
    coordinator.leading.writer.lose_leadership(lost)
    journal.broken = False
    journal.recovers.set()
    with pytest.raises(NotLeader):
        await serving
