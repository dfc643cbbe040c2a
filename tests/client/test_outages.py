"""What the SDK does while coordinators restart, hang, disagree and refuse: repeat safely, within the caller's time."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest

from aliquot.client import (
    DeadlineExceeded,
    IdempotencyMismatch,
    LeaseNotFound,
    LeaseState,
    Overloaded,
    Request,
    RetryPolicy,
    Unavailable,
)
from tests.client.conftest import FAST
from tests.client.scripted_coordinator import Fault, ScriptedCoordinator

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


@pytest.fixture
def second() -> Iterator[ScriptedCoordinator]:
    server = ScriptedCoordinator()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_passing_failures_are_repeated_with_the_same_key(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("Allocate", *[Fault(UNAVAILABLE, "JOURNAL_UNAVAILABLE", retry_after_s=0.01) for _ in range(3)])
    with pool.lease("1"):
        assert coordinator.calls["Allocate"] == 4
        assert len(coordinator.leases) == 1


def test_calls_that_a_stopping_server_cancels_are_repeated(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("Allocate", Fault(grpc.StatusCode.CANCELLED, ""))
    with pool.lease("1"):
        assert coordinator.calls["Allocate"] == 2


def test_a_full_queue_is_asked_again_when_it_says_so(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("Allocate", Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_after_s=0.02))
    with pool.lease("1"):
        assert coordinator.calls["Allocate"] == 2


def test_a_pause_beyond_the_deadline_is_not_waited_for(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator
) -> None:
    coordinator.fail("Get", Fault(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", retry_after_s=0.9))
    with pytest.raises(Overloaded) as caught:
        connect(coordinator.address, timeout_s=0.5).get("l-1")
    assert caught.value.retry_after_s == pytest.approx(0.9)
    assert coordinator.calls["Get"] == 1


def test_final_answers_are_not_repeated(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("Allocate", Fault(grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_MISMATCH"))
    with pytest.raises(IdempotencyMismatch):
        pool.lease("1", key="used")
    assert coordinator.calls["Allocate"] == 1


def test_retries_can_be_switched_off(connect: Callable[..., Any], coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("Get", Fault(UNAVAILABLE, "SHUTTING_DOWN"))
    with pytest.raises(Unavailable) as caught:
        connect(coordinator.address, retry=RetryPolicy(enabled=False)).get("l-1")
    assert caught.value.stated_reason == "SHUTTING_DOWN"


def test_who_sits_in_front_of_it_is_told_why_a_call_is_sent_again(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator
) -> None:
    coordinator.fail("Get", *(Fault(UNAVAILABLE, "JOURNAL_UNAVAILABLE") for _ in range(2)))
    told: list[tuple[str, bool]] = []
    policy = replace(FAST, tell=lambda error, wait_s: told.append((error.stated_reason, wait_s > 0)))
    with pytest.raises(LeaseNotFound):
        connect(coordinator.address, retry=policy).get("l-1")
    assert told == [("JOURNAL_UNAVAILABLE", True)] * 2


def test_nobody_there(connect: Callable[..., Any], nobody: str) -> None:
    with pytest.raises(Unavailable, match="no coordinator answers") as caught:
        connect(nobody, timeout_s=0.3).get("l-1")
    assert nobody in caught.value.message
    assert "refused" in caught.value.message
    assert "aliquot up" in caught.value.hint


def test_the_next_address_is_tried(connect: Callable[..., Any], coordinator: ScriptedCoordinator, nobody: str) -> None:
    with connect(nobody, coordinator.address) as pool, pool.lease("1") as lease:
        assert lease.state is LeaseState.ACTIVE


def test_a_named_leader_is_followed_though_it_is_not_listed(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, second: ScriptedCoordinator
) -> None:
    hint = Fault(UNAVAILABLE, "NOT_LEADER", metadata={"leader": second.address}, retry_after_s=1)
    coordinator.fail("Allocate", hint)
    with connect(coordinator.address) as pool:
        with pool.lease("1", ttl_s=1) as lease:
            second.wait_for(lambda: second.kept[lease.lease_id] >= 1)
        assert not coordinator.leases
        assert coordinator.calls == {"Allocate": 1}


def test_coordinators_that_name_one_another_are_not_chased_for_ever(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, second: ScriptedCoordinator
) -> None:
    for here, there in ((coordinator, second), (second, coordinator)):
        here.fail("Get", *[Fault(UNAVAILABLE, "NOT_LEADER", metadata={"leader": there.address})] * 1000)
    with pytest.raises(Unavailable) as caught:
        connect(coordinator.address, timeout_s=2.0, retry=RetryPolicy(backoff_first_s=0.1)).get("l-1")
    assert caught.value.stated_reason == "NOT_LEADER"
    assert coordinator.calls["Get"] + second.calls["Get"] <= 40


def test_a_coordinator_that_hangs_is_left_for_another(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, second: ScriptedCoordinator
) -> None:
    coordinator.hanging.add("GetStatus")
    pool = connect(coordinator.address, second.address, retry=RetryPolicy(attempt_timeout_s=0.2, backoff_first_s=0.01))
    assert pool.status().granting
    assert second.calls["GetStatus"] == 1


def test_no_answer_in_time(connect: Callable[..., Any], coordinator: ScriptedCoordinator) -> None:
    coordinator.hanging.add("GetStatus")
    with pytest.raises(DeadlineExceeded, match="GetStatus was not answered"):
        connect(coordinator.address, timeout_s=0.3).status()


def test_a_restart_in_the_middle_of_a_wait(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.capacity = 0

    def restart() -> None:
        coordinator.wait_for(lambda: coordinator.leases)
        coordinator.stop()
        coordinator.start()
        coordinator.free()

    restarting = threading.Thread(target=restart)
    restarting.start()
    with pool.lease("1") as lease:
        assert lease.state is LeaseState.ACTIVE
    restarting.join()
    assert len(coordinator.leases) == 1


def test_leases_are_kept_over_a_restart(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pool.lease("1", ttl_s=1) as lease:
        coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] >= 1)
        coordinator.stop()
        seen = coordinator.kept[lease.lease_id]
        coordinator.start()
        coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] > seen)
        assert not lease.lost.is_set()


def test_a_silent_stream_is_given_up_for_a_new_one(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.mute_keep_alive = True
    with pool.lease("1", ttl_s=1) as lease:
        coordinator.wait_for(lambda: coordinator.calls["KeepAlive"] >= 2, timeout_s=30)
        assert not lease.lost.is_set()


def test_giving_back_while_nobody_answers_does_not_hide_the_blocks_result(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator
) -> None:
    pool = connect(coordinator.address, timeout_s=0.5)
    with pool.lease("1"):
        coordinator.stop()


def test_batches_repeat_with_their_keys(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("AllocateBatch", Fault(UNAVAILABLE))
    assert len({lease.lease_id for lease in pool.allocate_batch([Request("1")] * 3)}) == 3
    assert len(coordinator.leases) == 3


def test_an_interrupted_request_leaves_nothing_behind(coordinator: ScriptedCoordinator) -> None:
    import asyncio

    from aliquot.client import AsyncPool

    coordinator.capacity = 0

    async def main() -> None:
        async with AsyncPool(coordinator.address, retry=FAST) as pool:
            asking = asyncio.ensure_future(pool.lease("1")._obtain())
            await asyncio.to_thread(coordinator.wait_for, lambda: coordinator.leases)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())
    assert [lease.end_reason for lease in coordinator.leases.values()] == ["RELEASED"]


def test_a_request_interrupted_before_its_first_answer_leaves_nothing_behind(
    coordinator: ScriptedCoordinator,
) -> None:
    import asyncio

    from aliquot.client import AsyncPool

    coordinator.hanging.add("Allocate")

    async def main() -> None:
        async with AsyncPool(coordinator.address, retry=FAST) as pool:
            asking = asyncio.ensure_future(pool.lease("1")._obtain())
            await asyncio.to_thread(coordinator.wait_for, lambda: coordinator.calls["Allocate"])
            asking.cancel()
            coordinator.hanging.clear()
            with coordinator.changed:
                coordinator.changed.notify_all()
            with pytest.raises(asyncio.CancelledError):
                await asking

    asyncio.run(main())
    assert coordinator.leases
    assert {lease.end_reason for lease in coordinator.leases.values()} == {"RELEASED"}


def test_a_request_that_is_thrown_away_waits_for_no_answer(coordinator: ScriptedCoordinator) -> None:
    """As a loop does with tasks that it has not ended: whoever would wait then is told off on standard error."""
    import asyncio

    from aliquot.client import AsyncPool

    async def main() -> None:
        async with AsyncPool(coordinator.address, retry=FAST) as pool:
            asking: Any = pool.lease("1")._obtain()
            asking.send(None)  # until it waits for the first answer
            asking.close()

    asyncio.run(main())


def test_threads_share_a_pool(coordinator: ScriptedCoordinator) -> None:
    from aliquot.client import Pool

    ids: list[str] = []
    with Pool(coordinator.address, retry=FAST) as pool:

        def work() -> None:
            for _ in range(5):
                with pool.lease("0.1", ttl_s=1) as lease:
                    ids.append(lease.lease_id)
                    time.sleep(0.01)

        workers = [threading.Thread(target=work) for _ in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    assert len(set(ids)) == 40
    assert {lease.end_reason for lease in coordinator.leases.values()} == {"RELEASED"}
