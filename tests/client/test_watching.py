"""Watch: every change comes through, over restarts and over a past that is gone."""

from __future__ import annotations

import random
import threading
from typing import Any

import grpc
import pytest

from aliquot.client import LeaseChanged, Refused, Resynced, RetryPolicy
from aliquot.client._retrying import Context, Endpoints
from aliquot.client._watching import FleetCursor, Reconnect, WatchCursor, WatchFilter
from aliquot.common.failures import RpcFailure
from aliquot.v1 import pool_pb2
from tests.client.scripted_coordinator import Fault, ScriptedCoordinator


def _lease_later(pool: Any, coordinator: ScriptedCoordinator, watches: int = 1) -> threading.Thread:
    def act() -> None:
        coordinator.wait_for(lambda: coordinator.calls["Watch"] >= watches)
        pool.release(pool.allocate("1").lease_id)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_changes_come_in_order(pool: Any, coordinator: ScriptedCoordinator) -> None:
    acting = _lease_later(pool, coordinator)
    events = pool.watch(after_seq=coordinator.seq)
    first, second = next(events), next(events)
    events.close()
    acting.join()
    assert isinstance(first, LeaseChanged)
    assert isinstance(second, LeaseChanged)
    assert (first.lease.state, second.lease.end_reason) == ("ACTIVE", "RELEASED")
    assert first.seq < second.seq


def test_a_restart_is_survived_and_nothing_is_missed(pool: Any, coordinator: ScriptedCoordinator) -> None:
    start = coordinator.seq
    lease_id = pool.allocate("1").lease_id
    events = pool.watch(after_seq=start)
    assert next(events).lease.lease_id == lease_id
    coordinator.stop()
    coordinator.start()
    pool.release(lease_id)
    assert next(events).lease.end_reason == "RELEASED"
    events.close()


def test_a_lost_past_is_listed_again(pool: Any, coordinator: ScriptedCoordinator) -> None:
    lease_id = pool.allocate("1").lease_id
    coordinator.oldest_seq = coordinator.seq
    events = pool.watch(after_seq=1)
    resynced = next(events)
    assert isinstance(resynced, Resynced)
    assert ([lease.lease_id for lease in resynced.leases], resynced.seq) == ([lease_id], coordinator.seq)
    pool.release(lease_id)
    assert next(events).lease.end_reason == "RELEASED"
    events.close()


def test_a_resync_shows_only_what_is_watched(pool: Any, coordinator: ScriptedCoordinator) -> None:
    wanted = pool.allocate("1").lease_id
    pool.allocate("1")
    coordinator.oldest_seq = coordinator.seq
    events = pool.watch(after_seq=1, lease_ids=[wanted])
    assert [lease.lease_id for lease in next(events).leases] == [wanted]
    events.close()


def test_a_refusal_ends_the_watch(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("Watch", Fault(grpc.StatusCode.PERMISSION_DENIED, message="not yours"))
    with pytest.raises(Refused, match="not yours"):
        next(pool.watch())


@pytest.mark.parametrize("asked_s", [0.0, 5.0])
def test_a_watch_that_is_shed_comes_back_when_it_was_told_to(asked_s: float) -> None:
    context = Context(Endpoints(["a", "b"]), RetryPolicy(backoff_max_s=1.0), lambda: 0.0, random.Random(1))
    cursor = WatchCursor(context, WatchFilter(), 0)
    failure = RpcFailure("RESOURCE_EXHAUSTED", "full", "a", reason="OVERLOADED", retry_after_s=asked_s)
    for _ in range(3):
        again = cursor.ended(failure, context.endpoints.current)
        assert isinstance(again, Reconnect)
        assert asked_s <= again.after_s <= max(1.0, 1.25 * asked_s)


def test_a_watch_of_the_fleet_resumes_at_what_was_whole() -> None:
    context = Context(Endpoints(["a"]), RetryPolicy(), lambda: 0.0, random.Random(1))
    cursor = FleetCursor(context, 3, 7, guard=False)
    assert (cursor.request().layout, cursor.request().version) == (3, 7)
    assert cursor.take(pool_pb2.FleetEvent(layout=3, version=9)) is None, "a sign of life"
    assert (cursor.request().layout, cursor.request().version) == (3, 9)
    assert cursor.take(pool_pb2.FleetEvent(layout=4, resets=True)) is not None
    assert (cursor.request().layout, cursor.request().version) == (0, 0), "the last part of it has not come"
    cursor.take(pool_pb2.FleetEvent(layout=4, version=12))
    assert (cursor.request().layout, cursor.request().version) == (4, 12)
