"""The worker that keeps leases alive, over a transport made by hand: whom it asks, what it passes on, when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aliquot.client._async.keeper import AsyncKeeper
from aliquot.client._keeping import Loss, News
from aliquot.client._retrying import Context, Endpoints, RetryPolicy
from aliquot.common.failures import RpcFailure
from aliquot.v1 import leases_pb2

Answer = leases_pb2.KeepAliveResponse | BaseException | None


class Exchange:
    """One stream: gives the answers of its script, then one for each message."""

    def __init__(self, address: str, script: list[Answer]) -> None:
        self.address, self._script = address, script
        self.sent: list[list[str]] = []
        self.cancelled = False

    async def send(self, request: leases_pb2.KeepAliveRequest) -> None:
        self.sent.append(list(request.lease_ids))

    async def receive(self, timeout_s: float) -> leases_pb2.KeepAliveResponse | None:
        answer = self._script.pop(0) if self._script else leases_pb2.KeepAliveResponse(kept=1)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def cancel(self) -> None:
        self.cancelled = True


class Transport:
    """Opens streams, each with the next of the scripts."""

    def __init__(self, *scripts: list[Answer]) -> None:
        self._scripts: Iterator[list[Answer]] = iter(scripts)
        self.opened: list[Exchange] = []

    def exchange(self, method: object, address: str) -> Any:
        self.opened.append(Exchange(address, next(self._scripts, [])))
        return self.opened[-1]


class Scene:
    """A keeper with two addresses, and what it has told."""

    def __init__(self, *scripts: list[Answer], told: Callable[[News], None] | None = None) -> None:
        self.transport = Transport(*scripts)
        self.news: list[News] = []
        self.endpoints = Endpoints(["a", "b"])
        policy = RetryPolicy(backoff_first_s=0.001, backoff_max_s=0.002)
        context = Context(self.endpoints, policy, asyncio.get_running_loop().time)
        transport: Any = self.transport
        self.keeper = AsyncKeeper(transport, context, told or self.news.append)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 - whatever it is about
                await asyncio.sleep(0.001)

    def addresses(self) -> list[str]:
        return [exchange.address for exchange in self.transport.opened]


def failure(code: str = "UNAVAILABLE", **said: Any) -> RpcFailure:
    return RpcFailure(code, "scripted", "a", **said)


async def test_leases_are_named_until_they_are_dropped_and_one_stream_serves_them() -> None:
    scene = Scene()
    scene.keeper.add("l-1", 0.4)
    scene.keeper.add("l-2", 0.4)
    await scene.until(lambda: scene.transport.opened and len(scene.transport.opened[0].sent) > 2)
    assert scene.transport.opened[0].sent[1] == ["l-1", "l-2"]
    scene.keeper.drop("l-1")
    await scene.until(lambda: scene.transport.opened[0].sent[-1] == ["l-2"])
    assert len(scene.transport.opened) == 1
    await scene.keeper.close()
    assert scene.transport.opened[0].cancelled


async def test_a_lease_that_is_added_wakes_a_worker_that_waits_for_another() -> None:
    scene = Scene()
    scene.keeper.add("l-1", 3600)
    await scene.until(lambda: scene.transport.opened)
    await asyncio.sleep(0)
    scene.keeper.add("l-2", 0.4)
    await scene.until(lambda: ["l-1", "l-2"] in scene.transport.opened[0].sent)
    await scene.keeper.close()


async def test_a_stream_that_fails_is_cancelled_and_the_next_address_is_asked() -> None:
    scene = Scene([failure()], [TimeoutError()], [None])
    scene.keeper.add("l-1", 0.4)
    await scene.until(lambda: len(scene.transport.opened) == 4 and scene.transport.opened[3].sent)
    assert all(exchange.cancelled for exchange in scene.transport.opened[:3])
    assert scene.addresses() == ["a", "b", "a", "a"], "one that ends its stream in good order is asked again"
    await scene.keeper.close()


async def test_a_named_leader_is_asked_at_once_whatever_wait_came_with_its_name() -> None:
    there = failure(reason="NOT_LEADER", metadata={"leader": "x"}, retry_after_s=3600)
    scene = Scene([there], [failure(reason="NOT_LEADER")], [failure(reason="OTHER", metadata={"leader": "y"})])
    scene.keeper.add("l-1", 0.4)
    await scene.until(lambda: len(scene.transport.opened) == 4)
    assert scene.addresses() == ["a", "x", "a", "b"]
    await scene.keeper.close()


@pytest.mark.parametrize(("reason", "waited"), [("OVERLOADED", True), ("NOT_LEADER", False)])
async def test_a_wait_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch, reason: str, waited: bool) -> None:
    waits: list[float | None] = []

    async def no_wait(flag: asyncio.Event, seconds: float | None) -> None:
        waits.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr("aliquot.client._async.keeper.wait_for", no_wait)
    scene = Scene([failure(reason=reason, metadata={"leader": "x"}, retry_after_s=3600)])
    scene.keeper.add("l-1", 30)
    scene.keeper.add("l-2", 0.4)  # the first message is due soon
    scene.keeper.drop("l-2")
    await scene.until(lambda: len(scene.transport.opened) == 2)
    assert (10.0 in waits) == waited, "a third of the TTL: no lease expires by it"
    assert scene.addresses() == ["a", "b" if waited else "x"]
    await scene.keeper.close()


async def test_what_the_listener_raises_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(news: News) -> None:
        raise ValueError(f"a defect: {news}")

    lost = leases_pb2.KeepAliveResponse(lost={"l-1": "LEASE_EXPIRED"})
    scene = Scene([lost], told=broken)
    scene.keeper.add("l-1", 0.4)
    scene.keeper.add("l-2", 0.4)
    await scene.until(lambda: len(scene.transport.opened) == 2 and scene.transport.opened[1].sent)
    assert scene.transport.opened[1].sent[0] == ["l-2"]
    assert "a defect" in caplog.text
    await scene.keeper.close()


async def test_a_token_that_has_ended_is_told_once_until_it_counts_again(caplog: pytest.LogCaptureFixture) -> None:
    ended = failure("UNAUTHENTICATED")
    scene = Scene([ended], [ended], [leases_pb2.KeepAliveResponse(kept=1), ended])
    scene.keeper.add("l-1", 0.4)
    await scene.until(lambda: len(scene.transport.opened) == 4)
    await scene.keeper.close()
    assert [record.message for record in caplog.records] == [
        "leases can't be kept alive: UNAUTHENTICATED from a: scripted"
    ] * 2


async def test_a_loss_is_told_and_without_leases_no_stream_is_opened() -> None:
    scene = Scene([leases_pb2.KeepAliveResponse(lost={"l-1": "LEASE_EXPIRED"}), failure()])
    scene.keeper.add("l-1", 0.4)
    await scene.until(lambda: scene.news)
    assert scene.news == [Loss("l-1", "LEASE_EXPIRED")]
    await scene.keeper.close()
    scene.keeper.add("l-2", 0.4)
    await asyncio.sleep(0)
    assert len(scene.transport.opened) == 1, "a closed keeper keeps nothing"
