"""Launchers' view of leases: asking, being refused, waiting, looking, giving back."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from aliquot.v1 import leases_pb2, types_pb2
from tests.coordinator.pool import (
    Pool,
    allocation,
    error_info,
    eventually,
    reason_of,
    running,
    status_of,
)

GRANTED, QUEUED, ENDED = types_pb2.LEASE_STATE_GRANTED, types_pb2.LEASE_STATE_QUEUED, types_pb2.LEASE_STATE_ENDED
WAIT_QUEUED = leases_pb2.WAIT_UNTIL_QUEUED


async def test_a_lease_says_where_it_is_and_release_frees_it() -> None:
    async with running() as pool:
        await pool.declare(2, devices=2)
        lease = await pool.allocate("0.25(A100),10Gi", labels={"app": "train"}, name="first")
        assert lease.state == GRANTED
        assert lease.lease_epoch == 1
        assert lease.request.spec.share_milli == 250
        assert lease.request.labels == {"app": "train"}
        (piece,) = lease.slices
        assert (piece.share_milli, piece.memory_bytes, piece.device_model) == (250, 10 << 30, "A100-80")
        assert piece.node_name == piece.node_id
        assert len(lease.secret) == 64
        seen = await pool.get(lease.lease_id)
        assert seen.secret == ""
        assert seen.slices == lease.slices
        ended = await pool.release(lease.lease_id)
        assert (ended.state, ended.end_reason) == (ENDED, "RELEASED")
        assert (await pool.release(lease.lease_id)).end_reason == "RELEASED"


async def test_the_same_key_gives_the_same_lease_and_secret() -> None:
    async with running() as pool:
        await pool.declare(2)
        first = await pool.leases.Allocate(allocation("0.5", idempotency_key="k1"))
        again = await pool.leases.Allocate(allocation("0.5", idempotency_key="k1"))
        assert (first.replayed, again.replayed) == (False, True)
        assert again.lease == first.lease
        other = await pool.leases.Allocate(allocation("0.5", idempotency_key="k1", tenant="another"))
        assert other.lease.lease_id != first.lease.lease_id
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.leases.Allocate(allocation("0.6", idempotency_key="k1"))
        assert refusal.value.code() == grpc.StatusCode.ALREADY_EXISTS
        assert reason_of(refusal.value) == "IDEMPOTENCY_MISMATCH"


async def test_what_can_never_fit_is_refused_at_once_with_the_reason() -> None:
    async with running() as pool:
        await pool.declare(1)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.allocate("1,90Gi")
        assert refusal.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert reason_of(refusal.value) == "NEVER_FITS"
        explanation = types_pb2.Explanation()
        assert any(detail.Unpack(explanation) for detail in status_of(refusal.value).details)
        assert explanation.impossible
        assert explanation.missing[0].device_class.startswith("A100-80")


async def test_an_unknown_model_never_fits_and_names_the_near_ones() -> None:
    async with running() as pool:
        await pool.declare(1)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.allocate("1(A200)")
        assert reason_of(refusal.value) == "NEVER_FITS"
        assert "A100" in error_info(status_of(refusal.value)).metadata["hint"]


async def test_a_full_pool_queues_or_refuses_as_asked_and_the_queue_moves_on() -> None:
    async with running() as pool:
        await pool.declare(1)
        first = await pool.allocate("1")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.allocate("1", no_queue=True)
        assert refusal.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert reason_of(refusal.value) == "NO_CAPACITY"
        second = await pool.allocate("1", wait_until=WAIT_QUEUED)
        assert second.state == QUEUED
        assert second.waiting.queue_position == 1
        assert second.waiting.missing
        assert (await pool.get(second.lease_id)).waiting.summary == second.waiting.summary
        third = asyncio.create_task(pool.allocate("1"))
        await eventually(lambda: len(pool.leading.waiters) == 1, "the third caller waits")
        await pool.release(first.lease_id)
        await eventually(lambda: _is(pool, second.lease_id, GRANTED), "the second is granted")
        assert not third.done()
        await pool.release(second.lease_id)
        assert (await third).state == GRANTED


async def test_waiting_ends_in_time_with_the_lease_as_it_is() -> None:
    async with running() as pool:
        await pool.declare(1)
        await pool.allocate("1")
        lease = await pool.allocate("1", wait_timeout_ms=50)
        assert lease.state == QUEUED
        assert lease.waiting.queue_length == 1
        assert (await pool.release(lease.lease_id)).end_reason == "CANCELLED"


async def test_a_caller_that_vanishes_leaves_its_lease_to_the_ttl() -> None:
    async with running() as pool:
        await pool.declare(1)
        await pool.allocate("1")
        call = pool.leases.Allocate(allocation("1", name="vanishing"))
        await eventually(lambda: len(pool.leading.waiters) == 1, "it waits")
        call.cancel()
        await eventually(lambda: len(pool.leading.waiters) == 0, "its wait is over")
        listed = await pool.leases.List(leases_pb2.ListRequest(states=[QUEUED]))
        assert [lease.request.name for lease in listed.leases] == ["vanishing"]


async def test_explain_decides_as_allocate_would_and_changes_nothing() -> None:
    async with running() as pool:
        await pool.declare(1)
        request = types_pb2.LeaseRequest(gpu="0.5", tenant="team")
        would = await pool.leases.Explain(leases_pb2.ExplainRequest(request=request))
        assert would.explanation.fits_now
        lease = await pool.allocate("0.5")
        assert would.explanation.placement[0].device_uuid == lease.slices[0].device_uuid
        whole = types_pb2.LeaseRequest(gpu="1", tenant="team")
        why = (await pool.leases.Explain(leases_pb2.ExplainRequest(request=whole))).explanation
        assert not why.fits_now
        assert not why.impossible
        assert why.missing[0].smallest_change
        about = await pool.leases.Explain(leases_pb2.ExplainRequest(lease_id=lease.lease_id))
        assert about.lease.lease_id == lease.lease_id


async def test_batches_answer_item_by_item() -> None:
    async with running() as pool:
        await pool.declare(1)
        items = [allocation("0.5"), allocation("1,900Gi"), allocation("nonsense"), allocation("0.5"), allocation("0.5")]
        answer = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=items))
        kinds = [result.WhichOneof("result") for result in answer.results]
        assert kinds == ["lease", "error", "error", "lease", "lease"]
        assert [result.lease.state for result in answer.results if result.HasField("lease")] == [
            GRANTED,
            GRANTED,
            QUEUED,
        ]
        assert error_info(answer.results[1].error).reason == "NEVER_FITS"
        assert error_info(answer.results[2].error).reason == "REQUEST_SYNTAX"
        ids = [answer.results[0].lease.lease_id, "l-nobody"]
        ends = await pool.leases.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=ids))
        assert ends.results[0].lease.state == ENDED
        assert error_info(ends.results[1].error).reason == "LEASE_NOT_FOUND"


async def test_batches_grant_exactly_there_or_not_at_all() -> None:
    async with running() as pool:
        await pool.declare(2)

        def there(node: str, key: str, gpu: str = "0.5") -> leases_pb2.GrantOnRequest:
            request = types_pb2.LeaseRequest(gpu=gpu, tenant="team", detached=True)
            return leases_pb2.GrantOnRequest(
                request=request, idempotency_key=key, places=[leases_pb2.MemberPlace(node_id=node)]
            )

        grants = [there("node-1", "a"), there("node-1", "b"), there("node-1", "c"), there("no-such", "d")]
        answer = await pool.leases.AllocateBatch(
            leases_pb2.AllocateBatchRequest(items=[allocation("1")], grants=[there("node-1", "0", "0.001"), *grants])
        )
        (item, _, first, second, *refused) = answer.results
        assert {part.node_id for part in item.lease.slices} == {"node-0"}
        assert {part.node_id for part in first.lease.slices} == {"node-1"}
        assert [error_info(result.error).reason for result in (second, *refused)] == ["PLACEMENT_REFUSED"] * 3
        again = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(grants=grants[:1]))
        assert again.results[0].lease.lease_id == first.lease.lease_id
        moved = await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(grants=[there("node-0", "a")]))
        assert error_info(moved.results[0].error).reason == "IDEMPOTENCY_MISMATCH"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pool.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(grants=grants[:1] * 257))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_lists_are_paged_filtered_and_in_order_of_arrival() -> None:
    async with running() as pool:
        await pool.declare(4, devices=8)
        ids = [(await pool.allocate("0.1", tenant=f"t{number % 2}")).lease_id for number in range(10)]
        await pool.release(ids[0])
        seen: list[str] = []
        token = ""
        while True:
            page = await pool.leases.List(leases_pb2.ListRequest(page_size=4, page_token=token))
            seen += [lease.lease_id for lease in page.leases]
            assert page.seq > 0
            token = page.next_page_token
            if not token:
                break
        assert seen == ids[1:]
        odd = await pool.leases.List(leases_pb2.ListRequest(tenant="t1"))
        assert [lease.lease_id for lease in odd.leases] == ids[1::2]
        over = await pool.leases.List(leases_pb2.ListRequest(states=[ENDED]))
        assert [lease.lease_id for lease in over.leases] == ids[:1]
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await pool.leases.List(leases_pb2.ListRequest(page_token="made up"))
        assert reason_of(refusal.value) == "INVALID_FIELD"


async def test_a_lease_nobody_knows_is_not_found() -> None:
    async with running() as pool:
        for call in (
            pool.leases.Get(leases_pb2.GetRequest(lease_id="l-nobody")),
            pool.leases.Release(leases_pb2.ReleaseRequest(lease_id="l-nobody")),
            pool.leases.Explain(leases_pb2.ExplainRequest(lease_id="l-nobody")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call
            assert refusal.value.code() == grpc.StatusCode.NOT_FOUND
            assert reason_of(refusal.value) == "LEASE_NOT_FOUND"


async def _is(pool: Pool, lease_id: str, state: int) -> bool:
    return (await pool.get(lease_id)).state == state
