"""Elastic leases end to end: a real coordinator, real agents, and a launcher that adapts, or does not."""

from __future__ import annotations

import queue
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import Lease, LeaseChanged, LeaseState, Pool, SliceState, WaitUntil
from tests.client.conftest import FAST
from tests.client.real_pool import real_pool
from tests.polling import DEADLINE_S, eventually


@pytest.fixture(scope="module")
def local() -> Iterator[LocalPool]:
    with real_pool(nodes=2, gpus=1) as pool:
        yield pool


def test_it_grows_its_launcher_is_told_and_it_gives_back_before_anybody_is_preempted(
    real: Any, local: LocalPool
) -> None:
    news: queue.Queue[Lease] = queue.Queue()
    with (
        Pool(local.address, token_file=local.token_file, retry=FAST) as other_pool,
        real.lease("1", max_count=2, ttl_s=2, grace_s=60, tenant="vision", on_resize=news.put) as lease,
    ):
        (first,) = lease.slices
        grown = news.get(timeout=DEADLINE_S)
        assert (len(grown.staying), grown.leaving, grown.shape) == (2, (), 2)
        active = eventually(lambda: [p for p in lease.refresh().slices if p.state is SliceState.ACTIVE][1:])
        assert active[0].tier != "UNSPECIFIED", "its agent has set the limit and read it back"
        assert active[0].node_id != first.node_id
        assert lease.acknowledge().acknowledged_shape == 2

        changes = other_pool.watch(lease_ids=[lease.lease_id], after_seq=other_pool.status().seq)
        waiting = other_pool.allocate("1", tenant="speech", until=WaitUntil.QUEUED, detached=True)
        seen = next(event for event in changes if isinstance(event, LeaseChanged))
        assert [part.state for part in seen.lease.leaving] == [SliceState.PREEMPTING], "Watch shows it at once"
        told = news.get(timeout=DEADLINE_S)
        assert (told.shape, told.state) == (3, LeaseState.ACTIVE)
        (leaving,) = told.leaving
        assert leaving.shed
        assert waiting.lease_id in leaving.reason
        assert leaving.deadline_ms - leaving.since_ms == 30_000, "no longer than a guarantee may be kept waiting"
        lease.acknowledge()
        eventually(lambda: other_pool.get(waiting.lease_id).state is LeaseState.ACTIVE)
        assert [part.slice_id for part in lease.refresh().slices] == [told.staying[0].slice_id]
        assert lease.loss is None
        other_pool.release(waiting.lease_id, wait_gone=True)


def test_what_runs_there_is_stopped_when_its_launcher_does_not_adapt(real: Any, local: LocalPool) -> None:
    with Pool(local.address, token_file=local.token_file, retry=FAST) as other_pool:
        lease = real.allocate("1", max_count=2, detached=True, grace_s=1, tenant="vision")
        try:
            eventually(lambda: sum(p.state is SliceState.ACTIVE for p in real.get(lease.lease_id).slices) == 2)
            second = real.get(lease.lease_id).slices[1]
            agent = next(agent for agent in real.agents if agent.info().node_id == second.node_id)
            running = subprocess.Popen(["sleep", "600"])
            agent.attach(lease.lease_id, lease.secret, pid=running.pid, member=second.member)
            waiting = other_pool.allocate("1", tenant="speech", detached=True, wait_s=DEADLINE_S)
            assert running.wait(DEADLINE_S) != 0
            assert waiting.state is LeaseState.ACTIVE
            assert len(real.get(lease.lease_id).slices) == 1
            other_pool.release(waiting.lease_id, wait_gone=True)
        finally:
            real.release(lease.lease_id, wait_gone=True)
