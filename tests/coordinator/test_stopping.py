"""SIGTERM in the midst of work: what was answered is true afterwards, what was not is settled by asking again, and what
runs on a node runs on.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.client import AsyncPool, DeviceDeclaration, LeaseState, NodeDeclaration, NodeState, RetryPolicy, WaitUntil
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal
from tests.agent.harness import Node, closing, make_node
from tests.coordinator.pool import eventually, sqlite
from tests.coordinator.process import Running, start
from tests.failover.audit import audit_of
from tests.failover.cluster import free_address, granted_after, load

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from closing(make_node(tmp_path / "node"))


class Coordinator:
    """One that is stopped in order and started again, at the same place on the same journal."""

    def __init__(self, journal: Path) -> None:
        self.address = free_address()
        self._flags: tuple[str, ...] = ("--listen", self.address, "--metrics-port", "-1", "--log-level", "error")
        self._flags += ("--journal", sqlite(journal))
        self._running: Running | None = None

    async def start(self) -> None:
        started = await start(*self._flags)
        assert isinstance(started, Running), started
        self._running = started

    async def stop(self) -> None:
        """SIGTERM; it ends well."""
        assert self._running is not None
        self._running.process.send_signal(signal.SIGTERM)
        ended = await self._running.end()
        self._running = None
        assert ended.code == 0, ended.said
        assert "Traceback" not in ended.said

    async def close(self) -> None:
        if self._running is not None:
            self._running.process.kill()
            await self._running.end()


def sdk(address: str) -> AsyncPool:
    return AsyncPool(address, tenant="team", timeout_s=60, retry=RetryPolicy(backoff_max_s=0.5))


async def test_launchers_are_served_on_by_a_coordinator_that_is_stopped_and_started_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    coordinator = Coordinator(path)
    try:
        await coordinator.start()
        async with sdk(coordinator.address) as pool:
            devices = [DeviceDeclaration("A100-80")] * 8
            await pool.declare([NodeDeclaration(f"n{number}", devices, agentless=True) for number in range(2)])
        async with load([coordinator.address], 6) as log:
            await granted_after(log, time.monotonic())
            for _ in range(3):
                await coordinator.stop()
                await coordinator.start()
                await granted_after(log, time.monotonic())
        await coordinator.stop()
    finally:
        await coordinator.close()
    journal = SqliteJournal(path)
    journal.open()
    try:
        findings = audit_of(journal, log)
    finally:
        journal.close()
    assert findings.clean, findings
    assert findings.grants >= len(log.granted) > 0
    assert len(findings.epochs) == 4
    assert not log.failed, log.failed


async def test_agents_and_coordinators_are_stopped_in_any_order_and_what_runs_runs_on(
    node: Node, tmp_path: Path
) -> None:
    coordinator = Coordinator(tmp_path / "journal.db")
    try:
        await coordinator.start()
        await node.join(coordinator.address)
        await asyncio.to_thread(node.start, coordinator.address)
        async with sdk(coordinator.address) as pool:
            await eventually(lambda: ready(pool), "the node is ready")
            kept = await pool.allocate("0.25,2Gi", until=WaitUntil.ACTIVE, wait_s=30, detached=True)
            job = await asyncio.to_thread(
                lambda: node.burn("1Gi", lease_id=kept.lease_id, secret=kept.secret)  # until it holds the memory
            )
            async with load([coordinator.address], 3, gpu="0.1,1Gi") as log:
                await granted_after(log, time.monotonic())
                for round_ in range(3):
                    if round_ != 1:
                        assert await asyncio.to_thread(node.terminate) == 0
                    if round_ != 0:
                        await coordinator.stop()
                        await coordinator.start()
                    if round_ != 1:
                        await asyncio.to_thread(node.start, coordinator.address)
                    await eventually(lambda: ready(pool), "the node is ready again")
                    await granted_after(log, time.monotonic())
            assert not log.failed, log.failed
            assert not log.changed_answers
            for lease_id in [lease.lease_id async for lease in pool.leases()]:
                if lease_id != kept.lease_id:
                    await pool.release(lease_id)
            await eventually(lambda: only(pool, node, kept.lease_id), "nothing else is held, here and there")
            now = await pool.get(kept.lease_id)
            assert (now.state, now.requeues) == (LeaseState.ACTIVE, 0)
            assert [part.slice_id for part in now.slices] == [part.slice_id for part in kept.slices]
            assert job.poll() is None
        await coordinator.stop()
    finally:
        await coordinator.close()


async def ready(pool: AsyncPool) -> bool:
    """Whether the one node takes leases."""
    return [found.state async for found in pool.nodes()] == [NodeState.READY]


async def only(pool: AsyncPool, node: Node, lease_id: str) -> bool:
    """Whether coordinator and agent both hold this lease alone."""
    live = [lease.lease_id async for lease in pool.leases()]
    held = {piece.lease_id for piece in (await asyncio.to_thread(node.status)).slices}
    return live == [lease_id] and held == {lease_id}
