"""One caller's storm is its own: how often it may call, how much it may have open, how long strangers are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.values.errors import InviteUnknown
from aliquot.coordinator.errors import Unauthenticated
from aliquot.coordinator.reading.denials import Denials
from aliquot.coordinator.rpc import gate
from aliquot.coordinator.rpc.gate import Door
from aliquot.coordinator.rpc.rates import Buckets, CallerBounds
from aliquot.v1 import access_pb2, leases_pb2, pool_pb2
from tests.access.people import OWN, Person, a_stranger, introduce, watching
from tests.coordinator.pool import Pool, allocation, eventually, reason_of, running
from tests.manual_clock import ManualClock


def whoami(person: Person) -> Any:
    return person.access.WhoAmI(access_pb2.WhoAmIRequest())


async def turned_away(call: Any) -> int:
    """After how many milliseconds to come back: the call is refused as OVERLOADED."""
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert reason_of(refused.value) == "OVERLOADED"
    # Not dict(metadata): before grpcio 1.80 its Metadata has keys(), and is no mapping of them.
    trailers = dict(list(refused.value.trailing_metadata() or ()))
    status = status_pb2.Status.FromString(trailers["grpc-status-details-bin"])
    retry = error_details_pb2.RetryInfo()
    assert any(detail.Unpack(retry) for detail in status.details)
    return retry.retry_delay.ToMilliseconds()


@given(
    per_s=st.integers(1, 2_000),
    burst=st.integers(1, 50),
    steps=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 40), st.integers(0, 5)), max_size=60),
)
def test_nobody_gets_more_than_a_burst_and_what_is_due_since(
    per_s: int, burst: int, steps: list[tuple[str, int, int]]
) -> None:
    clock = ManualClock(5)
    buckets = Buckets(clock.monotonic_ms, per_s, burst, kept_max=4)
    let_in: dict[str, int] = {}
    for name, pause_ms, more in steps:
        clock.advance(pause_ms)
        early_ms = buckets.take(name)
        if early_ms:
            clock.advance(early_ms)
            assert not buckets.take(name), "whoever comes back when told is let in"
        buckets.charge(name, more)
        let_in[name] = let_in.get(name, 0) + 1 + more
        since_ms = clock.monotonic_ms()
        assert let_in[name] - more <= burst + since_ms * per_s / 1000 + 1e-6


def test_buckets_that_are_full_are_forgotten_and_no_more_are_kept_than_said() -> None:
    clock = ManualClock(0)
    buckets = Buckets(clock.monotonic_ms, 1, 2, kept_max=100)
    for number in range(1_000):
        buckets.take(f"address {number}")
        assert len(buckets) <= 100
    clock.advance(10_000)
    buckets.take("another")
    for _ in range(200):
        clock.advance(2_000)
        buckets.take("another")
    assert len(buckets) <= 100


def test_without_a_bound_everybody_is_let_in() -> None:
    buckets = Buckets(lambda: 0, 0, 1, kept_max=10)
    assert not any(buckets.take("a") for _ in range(1_000))


async def test_whoever_calls_too_often_is_told_when_to_come_back_and_nobody_else() -> None:
    clock = ManualClock(1_700_000_000_000)
    async with running(clock=clock) as pool:
        people = await introduce(pool.channel)
        user = people["user"]
        lease = await user.lease(OWN)
        pool.leading.door.adopt(CallerBounds(requests_per_s=10, burst=3, streams_max=0))
        clock.advance(10_000)
        for _ in range(3):
            await whoami(user)
        assert await turned_away(whoami(user)) == 101
        await whoami(people["viewer"])
        keeping = user.leases.KeepAlive()
        for _ in range(5):
            await keeping.write(leases_pb2.KeepAliveRequest(lease_ids=[lease.lease_id]))
            assert (await keeping.read()).kept == 1, "keep-alives don't count"
        await keeping.done_writing()
        clock.advance(101)
        await whoami(user)
        assert pool.leading.door.denials.by_reason["OVERLOADED"] == 1


async def test_each_item_of_a_batch_counts() -> None:
    clock = ManualClock(1_700_000_000_000)
    async with running(clock=clock) as pool:
        people = await introduce(pool.channel)
        user = people["user"]
        pool.leading.door.adopt(CallerBounds(requests_per_s=10, burst=20, streams_max=0))
        clock.advance(60_000)
        items = [allocation("0.01", tenant=OWN) for _ in range(50)]
        answer = await user.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=items))
        ids = [result.lease.lease_id for result in answer.results]
        assert all(ids), "a batch that is let in is not cut"
        release = leases_pb2.ReleaseBatchRequest(lease_ids=ids)
        early_ms = await turned_away(user.leases.ReleaseBatch(release))
        assert early_ms == 3_101, "50 were counted, 20 are allowed at once, and one more is due after 100 ms"
        clock.advance(early_ms)
        await user.leases.ReleaseBatch(release)


async def test_nobody_has_more_open_than_one_may() -> None:
    async with running() as pool:
        people = await introduce(pool.channel)
        user = people["user"]
        lease = await user.lease(OWN)
        pool.leading.door.adopt(CallerBounds(requests_per_s=0, burst=1, streams_max=2))
        full = allocation("8", tenant=OWN, wait_until=leases_pb2.WAIT_UNTIL_ACTIVE, wait_timeout_ms=600_000)
        async with watching(user):
            waiting = asyncio.ensure_future(user.leases.Allocate(full))
            await eventually(lambda: pool.coordinator.view.totals.queued == 1, "it waits")
            assert await turned_away(user.leases.Watch(leases_pb2.WatchRequest()).read()) == 2_000
            assert await turned_away(user.leases.Allocate(full)) == 2_000
            async with watching(people["viewer"]):
                keeping = user.leases.KeepAlive()
                await keeping.write(leases_pb2.KeepAliveRequest(lease_ids=[lease.lease_id]))
                assert (await keeping.read()).kept == 1, "keep-alives don't count"
            await keeping.done_writing()
            waiting.cancel()
        await eventually(lambda: len(pool.leading.door.lasting) == 0, "nothing is open")
        async with watching(user):
            pass


def test_an_address_that_guesses_is_told_to_come_back_later_and_fills_no_record() -> None:
    clock = ManualClock(0)
    door = Door(None, Denials(clock.now_ms), clock, CallerBounds(0, 1, 0))  # type: ignore[arg-type]  # nobody is looked up
    wrong = Unauthenticated("TOKEN_UNKNOWN", "it is not known")
    expired = Unauthenticated("TOKEN_EXPIRED", "it has expired")
    for error in (wrong, InviteUnknown("there is none")) * (gate._FAILURES // 2):
        assert door.refused("", "ipv4:10.0.0.1:4711", "WhoAmI", error) is error
    kept = sum(denial.times for denial in door.denials.latest)
    told = door.refused("", "ipv4:10.0.0.1:4712", "WhoAmI", wrong)
    assert told.reason == "OVERLOADED"
    assert "it is not known" in told.message
    assert sum(denial.times for denial in door.denials.latest) == kept
    assert door.refused("ann", "ipv4:10.0.0.1:4713", "WhoAmI", expired) is expired, "expired is called expired"
    assert door.refused("", "ipv4:10.0.0.2:4711", "WhoAmI", wrong) is wrong
    clock.advance(1_000)
    assert door.refused("", "ipv4:10.0.0.1:4714", "WhoAmI", wrong) is wrong


NO_MESSAGE = b"\x0a\xff\xff\xff\xff\x0f"


@contextlib.asynccontextmanager
async def few_are_kept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pool]:
    """Of an address two calls that come to nothing are answered at once, three are kept for an hour, and no more."""
    monkeypatch.setattr(gate, "_FAILURES", 2)
    monkeypatch.setattr(gate, "HELD_S", 3_600.0)
    monkeypatch.setattr(gate, "HELD_MAX", 3)
    async with running(clock=ManualClock(1_700_000_000_000)) as pool:
        yield pool


@pytest.mark.parametrize(
    ("path", "known", "code"),
    [
        ("/aliquot.v1.LeaseService/Nothing", False, grpc.StatusCode.UNIMPLEMENTED),
        ("/aliquot.v1.LeaseService/Nothing", True, grpc.StatusCode.UNIMPLEMENTED),
        ("/another.Service/Method", False, grpc.StatusCode.UNIMPLEMENTED),
        ("/grpc.health.v1.Health/Check", False, grpc.StatusCode.INVALID_ARGUMENT),
        ("/aliquot.v1.AccessService/Login", False, grpc.StatusCode.INVALID_ARGUMENT),
        ("/aliquot.v1.AgentService/Session", False, grpc.StatusCode.INVALID_ARGUMENT),
        ("/aliquot.v1.LeaseService/Get", True, grpc.StatusCode.INVALID_ARGUMENT),
        ("/aliquot.v1.LeaseService/Watch", True, grpc.StatusCode.INVALID_ARGUMENT),
        ("/aliquot.v1.LeaseService/KeepAlive", True, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_who_sends_what_is_no_call_again_and_again_is_answered_late_and_nobody_else_is(
    path: str, known: bool, code: grpc.StatusCode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with few_are_kept(monkeypatch) as pool, grpc.aio.insecure_channel(pool.coordinator.address) as own:
        channel: Any = pool.channel if known else own
        calls = [asyncio.ensure_future(channel.unary_unary(path)(NO_MESSAGE)) for _ in range(2 + 3 + 4)]
        await eventually(lambda: sum(call.done() for call in calls) == 2 + 4, "the others are kept")
        assert {call.exception().code() for call in calls if call.done()} == {code}
        await pool.nodes.ListNodes(pool_pb2.ListNodesRequest())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    assert len([record for record in caplog.records if record.levelname == "WARNING"]) <= 2
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_is_kept_of_large_messages_that_are_none_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with few_are_kept(monkeypatch) as pool:
        channel: Any = pool.channel

        def sent(size_bytes: int) -> Any:
            raw = NO_MESSAGE + bytes(size_bytes)
            return asyncio.ensure_future(channel.unary_unary("/aliquot.v1.LeaseService/Get")(raw))

        await asyncio.gather(sent(0), sent(0), return_exceptions=True)
        too_large = sent(3 * gate._HELD_BYTES)
        await asyncio.wait([too_large])
        large = sent(2 * gate._HELD_BYTES)
        one_more = sent(0)
        await asyncio.wait([large, one_more], return_when=asyncio.FIRST_COMPLETED)
        assert sum(call.done() for call in (large, one_more)) == 1, "there is room for either"
        large.cancel()
        one_more.cancel()
        await asyncio.gather(large, one_more, return_exceptions=True)


async def test_an_address_that_guesses_on_is_answered_late_and_nobody_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async with few_are_kept(monkeypatch) as pool, a_stranger(pool.coordinator.address) as stranger:
        guesses = [asyncio.ensure_future(stranger.List(leases_pb2.ListRequest())) for _ in range(2 + 3 + 4)]
        await eventually(lambda: sum(guess.done() for guess in guesses) == 2 + 4, "the others are kept")
        await pool.nodes.ListNodes(pool_pb2.ListNodesRequest())
        reasons = Counter([reason_of(guess.exception()) for guess in guesses if guess.done()])
        assert reasons == {"TOKEN_MISSING": 2, "OVERLOADED": 4}, "there is a bound to how many are kept"
        kept = [guess for guess in guesses if not guess.done()]
        for guess in kept:
            guess.cancel()
        await asyncio.gather(*kept, return_exceptions=True)

        async def another_is_kept() -> Any:
            guess = asyncio.ensure_future(stranger.List(leases_pb2.ListRequest()))
            await asyncio.wait([guess], timeout=0.2)
            return guess.cancel()

        await eventually(another_is_kept, "who has left is kept no longer")
