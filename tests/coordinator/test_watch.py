"""Watch: every durable change once it is asked for, from any number on, for those who keep up."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.values.types import Demand, RequestSpec
from aliquot.coordinator.errors import WatchCompacted
from aliquot.coordinator.reading.turns import TURNS_PER_TICK
from aliquot.coordinator.reading.watch import QUEUE_EVENTS, Change, Watcher, WatchHub
from aliquot.coordinator.writing.commits import Commit
from aliquot.v1 import leases_pb2, leases_pb2_grpc, pool_pb2, types_pb2
from tests.coordinator.pool import Pool, allocation, reason_of, running
from tests.identity import insecure_channel

SMALL_WINDOW = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024))
"""A client that takes no more from the network than it reads: it is sooner known to be slow."""


async def test_a_watch_shows_changes_in_order_and_resumes_where_it_was() -> None:
    async with running() as pool:
        await pool.declare(1)
        watch = pool.watch(tenant="team")
        start = await watch.read()
        assert start.WhichOneof("event") == "bookmark"
        lease = await pool.allocate("0.5")
        await pool.allocate("0.1", tenant="another")
        await pool.release(lease.lease_id)
        events = [await watch.read(), await watch.read()]
        assert [event.lease.state for event in events] == [
            types_pb2.LEASE_STATE_GRANTED,
            types_pb2.LEASE_STATE_ENDED,
        ]
        assert not events[0].lease.secret
        watch.cancel()
        again = pool.watch(tenant="team", after_seq=events[0].seq)
        seen = [await again.read() for _ in range(2)]
        assert seen[-1].lease == events[1].lease
        again.cancel()


class Another:
    """Somebody who wants a turn."""

    per_turn = 1

    def go(self) -> None: ...


async def test_whoever_asks_for_batches_gets_the_same_events() -> None:
    async with running() as pool:
        await pool.declare(1)
        single, batched = pool.watch(), pool.watch(batches=True)
        await single.read()
        await batched.read()
        hub = pool.leading.hub
        while hub.turns.take(Another()):  # whoever watches waits for its turn now
            pass
        for _ in range(20):
            lease = await pool.allocate("0.5")
            await pool.release(lease.lease_id)
        one_by_one: list[leases_pb2.WatchEvent] = []
        together: list[leases_pb2.WatchEvent] = []
        while len(one_by_one) < 40:
            one_by_one.append(await single.read())
            assert not one_by_one[-1].more
        while len(together) < 40:
            message = await batched.read()
            together += [message, *message.more]
        assert [(each.seq, each.lease) for each in together] == [(each.seq, each.lease) for each in one_by_one]
        single.cancel()
        batched.cancel()


async def test_a_publication_wakes_no_more_watchers_than_there_are_turns() -> None:
    hub = WatchHub()
    watchers = [hub.watch(after_seq=0) for _ in range(400)]
    waiting = [asyncio.ensure_future(watcher.next(60)) for watcher in watchers]
    await asyncio.sleep(0)
    hub.publish(commit_of(1, 1))
    assert len(hub.turns) == len(watchers) - TURNS_PER_TICK
    waiting[-1].cancel()
    changes = await asyncio.gather(*waiting[:-1])
    assert {id(change) for change in changes} == {id(changes[0])}, "it is encoded once"
    assert len(hub.turns) == 0


@pytest.mark.parametrize("follows", [{}, {"tenant": "t"}, {"lease_ids": ["l-1"]}])
async def test_watchers_are_served_in_the_order_in_which_they_came(follows: dict[str, Any]) -> None:
    hub = WatchHub()
    served: list[int] = []

    async def follow(number: int) -> None:
        watcher = hub.watch(after_seq=0, **follows)
        await watcher.next(60)
        served.append(number)

    following = [asyncio.ensure_future(follow(number)) for number in range(4 * TURNS_PER_TICK)]
    await asyncio.sleep(0)
    hub.publish(commit_of(1, 1))
    await asyncio.gather(*following)
    assert served == sorted(served)


async def test_who_takes_one_event_at_a_time_keeps_up_while_few_watch() -> None:
    """Changes come as fast as the event loop turns, for three times as many as may wait."""
    hub = WatchHub()
    watcher = hub.watch(after_seq=0)
    most = 3 * QUEUE_EVENTS

    async def take_all() -> list[int]:
        return [(await watcher.next(60)).seq for _ in range(most)]

    taking = asyncio.create_task(take_all())
    for seq in range(1, most + 1):
        hub.publish(commit_of(seq, seq))
        for _ in range(4):
            await asyncio.sleep(0)
    assert await taking == list(range(1, most + 1))
    assert not hub.compacted


async def test_who_has_fallen_behind_gets_more_in_a_turn_than_others() -> None:
    hub = WatchHub()
    for seq in range(1, QUEUE_EVENTS + 1):
        hub.publish(commit_of(seq, seq))
    behind = hub.watch(after_seq=1)
    others = [hub.watch(after_seq=QUEUE_EVENTS - 1) for _ in range(2 * TURNS_PER_TICK)]
    order: list[Watcher] = []

    async def take_all(watcher: Watcher) -> None:
        while watcher.waiting:
            await watcher.next(60)
            order.append(watcher)

    await asyncio.gather(*map(take_all, [*others[:TURNS_PER_TICK], behind, *others[TURNS_PER_TICK:]]))
    first = order.index(behind)
    assert order[first : first + 8] == [behind] * 8
    assert set(others) <= set(order[: 2 * TURNS_PER_TICK + 8]), "and then it is their turn"


async def test_five_thousand_events_at_once_reach_who_takes_them_one_by_one() -> None:
    async with running() as pool:
        await pool.declare(1)
        lease_id = (await pool.allocate("0.1")).lease_id
        watch = pool.watch(lease_ids=[lease_id])
        await watch.read()
        hub, lease = pool.leading.hub, pool.coordinator.view.leases[lease_id]
        start = hub.seq
        for seq in range(start + 1, start + 5_001):
            hub.publish(Commit(seq=seq, at_ms=seq, leader_epoch=1, leases=((lease_id, lease),), nodes=(), devices=()))
        seen = [(await watch.read()).seq for _ in range(5_000)]
        assert seen == list(range(start + 1, start + 5_001))
        assert not hub.compacted
        watch.cancel()


async def test_a_watch_may_follow_single_leases_and_nodes() -> None:
    async with running() as pool:
        await pool.declare(1)
        mine, other = await pool.allocate("0.1"), await pool.allocate("0.1")
        by_lease = pool.watch(lease_ids=[mine.lease_id])
        nodes = pool.watch(tenant="nobody", nodes=True)
        await by_lease.read()
        await nodes.read()
        await pool.release(other.lease_id)
        await pool.release(mine.lease_id)
        assert (await by_lease.read()).lease.lease_id == mine.lease_id
        await pool.nodes.Cordon(pool_pb2.CordonRequest(node_id="node-0", reason="fans"))
        event = await nodes.read()
        assert (event.node.node_id, event.node.cordoned, event.node.reason) == ("node-0", True, "fans")
        by_lease.cancel()
        nodes.cancel()


async def test_listing_then_watching_misses_nothing() -> None:
    async with running() as pool:
        await pool.declare(2, devices=8)
        busy = asyncio.create_task(_churn(pool, 60))
        page = await pool.leases.List(leases_pb2.ListRequest(page_size=1000))
        known = {lease.lease_id: lease for lease in page.leases}
        watch = pool.watch(after_seq=page.seq)
        await busy
        status = await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())
        while True:
            event = await watch.read()
            if event.WhichOneof("event") == "lease":
                known[event.lease.lease_id] = event.lease
            if event.seq >= status.seq:
                break
        watch.cancel()
        final = await pool.leases.List(leases_pb2.ListRequest(page_size=1000))
        live = {key: lease for key, lease in known.items() if lease.state != types_pb2.LEASE_STATE_ENDED}
        assert live == {lease.lease_id: lease for lease in final.leases}


async def test_numbers_too_old_or_of_another_pool_are_compacted() -> None:
    async with running() as pool:
        await pool.declare(1)
        for after_seq in (1 << 40, 1):
            hub = pool.leading.hub
            hub._oldest_seq = 2
            watch = pool.watch(after_seq=after_seq)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await watch.read()
            assert refusal.value.code() == grpc.StatusCode.OUT_OF_RANGE
            assert reason_of(refusal.value) == "WATCH_COMPACTED"


def change_of(number: int, tenant: str = "t") -> Lease:
    request = RequestSpec(demand=Demand(share_milli=1), tenant=tenant)
    return Lease(lease_id=f"l-{number}", arrival=number, request=request, created_ms=1, seq=number)


def commit_of(seq: int, *numbers: int) -> Commit:
    leases = tuple((f"l-{number}", change_of(number)) for number in numbers)
    return Commit(seq=seq, at_ms=seq, leader_epoch=1, leases=leases, nodes=(), devices=())


async def test_a_slow_consumer_is_told_and_bounded() -> None:
    hub = WatchHub()
    slow, fast = hub.watch(after_seq=0), hub.watch(after_seq=0)
    for seq in range(1, QUEUE_EVENTS + 2):
        hub.publish(commit_of(seq, seq))
        assert (await fast.next(1)).seq == seq
    with pytest.raises(WatchCompacted):
        await slow.next(1)
    slow.close()
    fast.close()
    assert len(hub) == 0


@pytest.mark.no_cover  # would more than double its time
async def test_a_client_that_stops_reading_is_bounded_then_compacted_and_harms_nobody() -> None:
    """Over real flow control: what the client does not take stays with the coordinator, up to the bound."""
    async with (
        running() as pool,
        insecure_channel(pool.address, [("grpc.use_local_subchannel_pool", 1), *SMALL_WINDOW]) as own,
    ):
        await pool.declare(8, devices=8)
        stuck: Any = leases_pb2_grpc.LeaseServiceStub(own).Watch(leases_pb2.WatchRequest())
        keeping_up = pool.watch()
        await stuck.read()
        await keeping_up.read()
        hub = pool.leading.hub
        most_waiting = seen = last_seq = 0
        while not hub.compacted:
            assert seen < 20 * QUEUE_EVENTS, "it is never told that it is too slow"
            changed_up_to = await _batch(pool, 256)
            most_waiting = max(most_waiting, hub.waiting)
            while last_seq < changed_up_to:
                event = await keeping_up.read()
                assert event.seq >= last_seq
                last_seq = event.seq
                seen += event.WhichOneof("event") == "lease"
        assert most_waiting <= 2 * QUEUE_EVENTS
        assert hub.waiting < QUEUE_EVENTS, "what it will never get is not kept"
        taken, refused = await _read_to_the_end(stuck)
        assert reason_of(refused) == "WATCH_COMPACTED"
        assert taken < seen
        lease = await pool.allocate("0.5")
        while (await keeping_up.read()).lease.lease_id != lease.lease_id:
            pass
        keeping_up.cancel()


async def _read_to_the_end(watch: Any) -> tuple[int, grpc.aio.AioRpcError]:
    taken = 0
    try:
        while await watch.read() is not grpc.aio.EOF:
            taken += 1
    except grpc.aio.AioRpcError as error:
        return taken, error
    raise AssertionError("it ended without an error")


async def _batch(pool: Pool, count: int) -> int:
    """So many leases come and go; returns the number of the last change of one of them."""
    item = allocation("0.1,1Gi", labels={"note": "x" * 60})
    answer = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=[item] * count))
    ids = [result.lease.lease_id for result in answer.results]
    released = await pool.leases.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=ids))
    return max(result.lease.seq for result in released.results)


async def test_resuming_inside_a_group_repeats_rather_than_skips() -> None:
    hub = WatchHub()
    hub.publish(commit_of(2, 1))
    hub.publish(commit_of(9, 2, 3, 4))
    watcher = hub.watch(after_seq=2)
    first = await watcher.next(1)
    assert isinstance(first.record, Lease)
    assert (first.record.lease_id, first.seq) == ("l-2", 2)
    again = hub.watch(after_seq=first.seq)
    changes = [await again.next(1) for _ in range(3)]
    assert [change.seq for change in changes] == [2, 2, 9]
    assert [_id(change) for change in changes] == ["l-2", "l-3", "l-4"]


async def test_the_ring_is_bounded_and_says_what_it_dropped() -> None:
    hub = WatchHub(ring_events=10)
    for seq in range(1, 101):
        hub.publish(commit_of(seq, seq))
    assert [_id(await hub.watch(after_seq=99).next(1))] == ["l-100"]
    with pytest.raises(WatchCompacted):
        hub.watch(after_seq=50)


async def test_a_quiet_watch_gets_bookmarks_that_move_on() -> None:
    hub = WatchHub()
    watcher = hub.watch(after_seq=0, tenant="quiet")
    hub.publish(commit_of(7, 1))
    bookmark = await watcher.next(0.01)
    assert (bookmark.record, bookmark.seq) == (None, 7)


def _id(change: Change) -> str:
    assert isinstance(change.record, Lease)
    return change.record.lease_id


async def _churn(pool: Pool, count: int) -> None:
    for number in range(count):
        lease = await pool.allocate("0.1")
        if number % 2:
            await pool.release(lease.lease_id)
