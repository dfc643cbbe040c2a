"""What is sent to ask for a lease and to give it back: times in the contract's units and within its bounds."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.client import WaitUntil
from aliquot.client._async.granting import ANSWER_SLACK_S, AsyncGranting
from aliquot.common.limits import MAX_BATCH_ITEMS, MAX_WAIT_MS
from aliquot.v1 import leases_pb2


class Caller:
    """Notes what is called, and answers with nothing in it."""

    def __init__(self) -> None:
        self.called: list[tuple[str, Any, float, float]] = []

    async def call(self, method: Any, message: Any, timeout_s: float, *, attempt_timeout_s: float) -> Any:
        self.called.append((method.name, message, timeout_s, attempt_timeout_s))
        return leases_pb2.AllocateResponse()


class Places:
    """A request, as `Asked` hands it over."""

    def __init__(self, *, places: object = None) -> None:
        self.places = places

    def message(self) -> leases_pb2.AllocateRequest:
        return leases_pb2.AllocateRequest()


@pytest.mark.parametrize(
    ("wait_s", "wait_ms"),
    [(0.0, 1), (0.0004, 1), (0.0016, 2), (1.5, 1_500), (30, 30_000), (3_600, MAX_WAIT_MS), (1e9, MAX_WAIT_MS)],
)
async def test_a_wait_is_sent_in_milliseconds_and_bounds_the_attempt(wait_s: float, wait_ms: int) -> None:
    caller: Any = Caller()
    asked: Any = Places()
    await AsyncGranting(caller, caller).allocate(asked, wait_until=WaitUntil.ACTIVE, wait_s=wait_s, timeout_s=7.0)
    ((name, message, timeout_s, attempt_s),) = caller.called
    assert (name, message.wait_timeout_ms, timeout_s) == ("Allocate", wait_ms, 7.0)
    assert message.wait_until == leases_pb2.WAIT_UNTIL_ACTIVE
    assert attempt_s == wait_ms / 1000 + ANSWER_SLACK_S


async def test_a_place_that_the_caller_decides_is_another_call() -> None:
    caller: Any = Caller()
    asked: Any = Places(places=object())
    await AsyncGranting(caller, caller).allocate(asked, wait_until=WaitUntil.GRANTED, wait_s=1, timeout_s=7.0)
    assert [each[0] for each in caller.called] == ["GrantOn"]


@pytest.mark.parametrize(
    ("gone_within_s", "exit_code", "wait_ms", "sent_code"),
    [(None, None, 0, None), (0.0, 0, 1, 0), (0.0004, 3, 1, 3), (2.5, -9, 2_500, 137), (60, -15, 60_000, 143)],
)
async def test_a_release_says_how_long_it_waits_and_how_the_program_ended(
    gone_within_s: float | None, exit_code: int | None, wait_ms: int, sent_code: int | None
) -> None:
    caller: Any = Caller()
    granting = AsyncGranting(caller, caller)
    await granting.release("l-1", 7.0, gone_within_s=gone_within_s, reason="over", exit_code=exit_code)
    ((name, message, timeout_s, attempt_s),) = caller.called
    assert (name, message.lease_id, message.reason) == ("Release", "l-1", "over")
    assert (message.wait_gone, message.wait_timeout_ms) == (wait_ms > 0, wait_ms)
    assert (message.exit_code if message.HasField("exit_code") else None) == sent_code
    assert timeout_s == 7.0 + wait_ms / 1000
    assert attempt_s == wait_ms / 1000 + ANSWER_SLACK_S


class Batches:
    """Answers batches of releases, and counts their items."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.context = self
        self.endpoints = self
        self.current, self.addresses = "here:1", ("here:1",)

    async def send(self, _method: Any, _timeout_s: float, *, lease_ids: Any) -> Any:
        self.sizes.append(len(lease_ids))
        results = [leases_pb2.ReleaseBatchResponse().results.add() for _ in lease_ids]
        for result, lease_id in zip(results, lease_ids, strict=True):
            result.lease.lease_id = lease_id
        return leases_pb2.ReleaseBatchResponse(results=results)


@pytest.mark.parametrize("number", [0, 1, MAX_BATCH_ITEMS, MAX_BATCH_ITEMS + 1, 2 * MAX_BATCH_ITEMS])
async def test_many_are_given_back_in_order_by_as_many_messages_as_their_bound_wants(number: int) -> None:
    caller: Any = Batches()
    ids = [f"l-{each}" for each in range(number)]
    found = await AsyncGranting(caller, caller).release_batch(ids, 7.0)
    assert [getattr(each, "lease_id", each) for each in found] == ids
    assert sum(caller.sizes) == number
    assert all(size == MAX_BATCH_ITEMS for size in caller.sizes[:-1])
    assert len(caller.sizes) == -(-number // MAX_BATCH_ITEMS)
