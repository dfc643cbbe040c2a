"""Asking for leases, holding them and giving them back, through both twins over real gRPC."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from aliquot.client import (
    AgentUnreachable,
    DeviceDeclaration,
    InvalidRequest,
    LeaseLost,
    LeaseNotFound,
    LeaseState,
    NeverFits,
    NodeDeclaration,
    NotGrantedInTime,
    Request,
    RequestSyntaxError,
    Tier,
    WaitUntil,
)
from aliquot.v1 import types_pb2
from tests.client.scripted_coordinator import Fault, ScriptedCoordinator
from tests.polling import eventually


def test_a_block_holds_a_lease_and_gives_it_back(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pool.lease("0.25(A100),10Gi") as lease:
        assert lease.state is LeaseState.ACTIVE
        assert lease.info.tenant == "vision"
        assert [(part.device_uuid, part.share_milli, part.tier) for part in lease.slices] == [
            ("GPU-1", 250, Tier.WATCHDOG)
        ]
        assert coordinator.leases[lease.lease_id].state == types_pb2.LEASE_STATE_ACTIVE
    assert coordinator.leases[lease.lease_id].end_reason == "RELEASED"


def test_the_lease_goes_back_when_the_block_raises(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pytest.raises(ZeroDivisionError), pool.lease("1"):
        raise ZeroDivisionError
    assert [lease.end_reason for lease in coordinator.leases.values()] == ["RELEASED"]


def test_away_from_its_node_a_lease_has_the_plain_variables(pool: Any) -> None:
    with pool.lease("0.25") as lease:
        assert lease.env == {
            "ALIQUOT_LEASE_ID": lease.lease_id,
            "ALIQUOT_TENANT": "vision",
            "ALIQUOT_MEMBER": "0",
            "ALIQUOT_SHARE_MILLI": "250",
            "ALIQUOT_MEMORY_BYTES": str(10 << 30),
            "CUDA_VISIBLE_DEVICES": "GPU-1",
            "NVIDIA_VISIBLE_DEVICES": "GPU-1",
        }
        with pytest.raises(AgentUnreachable, match="node-1"):
            lease.run(["true"])


def test_a_text_that_cannot_be_read_is_refused_before_anything_is_sent(
    pool: Any, coordinator: ScriptedCoordinator
) -> None:
    with pytest.raises(RequestSyntaxError):
        pool.lease("1.5")
    assert not coordinator.calls


def test_options_travel(pool: Any, coordinator: ScriptedCoordinator) -> None:
    lease = pool.allocate(
        Request("2", tenant="speech", priority=7, node_ids=["a", "b"], labels={"team": "x"}, min_tier=Tier.MPS)
    )
    sent = coordinator.leases[lease.lease_id].request
    assert (sent.tenant, sent.priority, list(sent.node_ids), dict(sent.labels), sent.min_tier) == (
        "speech",
        7,
        ["a", "b"],
        {"team": "x"},
        types_pb2.TIER_MPS,
    )
    assert (lease.gpu, lease.labels) == ("2", {"team": "x"})


def test_refusals_bring_the_explanation(pool: Any, coordinator: ScriptedCoordinator) -> None:
    explanation = types_pb2.Explanation(impossible=True, summary="no H200 here")
    explanation.missing.add(device_class="A100-40", reason="MODEL", smallest_change="ask for an A100")
    coordinator.fail(
        "Allocate",
        Fault(
            grpc.StatusCode.FAILED_PRECONDITION,
            "NEVER_FITS",
            "no H200 here",
            metadata={"hint": "ask for less"},
            details=(explanation,),
        ),
    )
    with pytest.raises(NeverFits, match="no H200") as caught:
        pool.lease("1(H200)")
    assert caught.value.hint == "ask for less"
    assert caught.value.explanation is not None
    assert [missing.smallest_change for missing in caught.value.explanation.missing] == ["ask for an A100"]
    assert coordinator.calls["Allocate"] == 1


def test_an_unknown_lease(pool: Any) -> None:
    with pytest.raises(LeaseNotFound, match="no lease l-nobody") as caught:
        pool.get("l-nobody")
    assert caught.value.hint == "look at ls"


def test_waiting_in_the_queue_until_capacity_comes(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.capacity = 0

    def give() -> None:
        coordinator.wait_for(lambda: coordinator.leases)
        coordinator.free()

    giving = threading.Thread(target=give)
    giving.start()
    with pool.lease("1", ttl_s=1) as lease:
        assert lease.state is LeaseState.ACTIVE
    giving.join()
    assert len(coordinator.leases) == 1


def test_a_waiting_request_is_kept_alive(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.capacity = 0
    asking = threading.Thread(target=lambda: pool.lease("1", ttl_s=1, wait_s=60).release())
    asking.start()
    coordinator.wait_for(lambda: any(count >= 2 for count in coordinator.kept.values()))
    coordinator.free()
    asking.join(30)
    assert not asking.is_alive()


def test_losing_patience_withdraws_the_request(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.capacity = 0
    with pytest.raises(NotGrantedInTime, match="the pool is full") as caught:
        pool.lease("1", wait_s=0.3)
    assert caught.value.explanation is not None
    (lease,) = coordinator.leases.values()
    assert caught.value.metadata == {"lease_id": lease.lease_id}
    assert lease.end_reason == "RELEASED"


def test_allocate_answers_with_a_queued_lease(pool: Any, coordinator: ScriptedCoordinator) -> None:
    coordinator.capacity = 0
    lease = pool.allocate("1", wait_s=0.1)
    assert lease.state is LeaseState.QUEUED
    assert not lease.granted
    assert lease.waiting is not None
    assert pool.allocate("1", until=WaitUntil.QUEUED).state is LeaseState.QUEUED
    assert not any(lease.end_reason for lease in coordinator.leases.values())


def test_the_same_key_gives_the_same_lease(pool: Any) -> None:
    assert pool.allocate("1", key="job-7").lease_id == pool.allocate("1", key="job-7").lease_id
    assert pool.allocate("1").lease_id != pool.allocate("1").lease_id


def test_holding_what_was_allocated(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pool.hold(pool.allocate("1", ttl_s=1)) as lease:
        coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] >= 2)
    assert coordinator.leases[lease.lease_id].end_reason == "RELEASED"


def test_a_detached_lease_needs_no_keep_alive(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pool.lease("1", detached=True) as detached, pool.lease("1", ttl_s=1) as kept:
        coordinator.wait_for(lambda: coordinator.kept[kept.lease_id] >= 2)
        assert coordinator.kept[detached.lease_id] == 0


def test_one_stream_and_one_message_for_many_leases(pool: Any, coordinator: ScriptedCoordinator) -> None:
    leases = [pool.lease("0.1", ttl_s=1) for _ in range(20)]
    coordinator.wait_for(lambda: min(coordinator.kept[lease.lease_id] for lease in leases) >= 3)
    assert coordinator.calls["KeepAlive"] == 1
    assert sum(coordinator.kept.values()) > 5 * coordinator.keep_alive_messages


def test_a_lost_lease_is_told_and_raises_at_the_end(pool: Any, coordinator: ScriptedCoordinator) -> None:
    told: list[LeaseLost] = []
    lease = pool.lease("1", ttl_s=1, on_lost=told.append)
    with pytest.raises(LeaseLost, match="EXPIRED") as caught:  # noqa: PT012, SIM117 - the block is what raises
        with lease:
            coordinator.lose(lease.lease_id)
            eventually(lambda: told and lease.lost.is_set())
    assert told[0].lease_id == lease.lease_id
    assert (caught.value.lease_id, caught.value.end_reason) == (lease.lease_id, "EXPIRED")
    assert "ttl_s" in caught.value.hint


def test_a_loss_that_nobody_heard_of_still_raises_at_the_end(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pytest.raises(LeaseLost, match="PREEMPTED"), pool.lease("1", ttl_s=3600) as lease:
        coordinator.lose(lease.lease_id, "LEASE_ENDED", "PREEMPTED")


def test_the_blocks_own_error_wins_over_the_loss(pool: Any, coordinator: ScriptedCoordinator) -> None:
    with pytest.raises(ZeroDivisionError) as caught:  # noqa: PT012, SIM117 - the block is what raises
        with pool.lease("1", ttl_s=1) as lease:
            coordinator.lose(lease.lease_id)
            eventually(lease.lost.is_set)
            raise ZeroDivisionError
    assert any("has ended" in note for note in caught.value.__notes__)


def test_a_lease_that_is_asked_for_back(pool: Any, coordinator: ScriptedCoordinator) -> None:
    deadlines: list[int] = []
    with pool.lease("1", ttl_s=1, on_notice=deadlines.append) as lease:
        coordinator.preempting[lease.lease_id] = 12345
        eventually(lambda: deadlines)
        assert lease.stops_at_ms == 12345
        seen = coordinator.kept[lease.lease_id]
        coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] >= seen + 2)
    assert deadlines == [12345]


def test_a_failing_callback_hurts_nobody_else(pool: Any, coordinator: ScriptedCoordinator) -> None:
    def fail(_: LeaseLost) -> None:
        raise ZeroDivisionError

    with pool.lease("1", ttl_s=1) as other:
        with pytest.raises(LeaseLost):  # noqa: PT012, SIM117 - the block is what raises
            with pool.lease("1", ttl_s=1, on_lost=fail) as lease:
                coordinator.lose(lease.lease_id)
                eventually(lease.lost.is_set)
        seen = coordinator.kept[other.lease_id]
        coordinator.wait_for(lambda: coordinator.kept[other.lease_id] >= seen + 2)


def test_releasing_twice(pool: Any, coordinator: ScriptedCoordinator) -> None:
    lease = pool.lease("1")
    assert lease.release().end_reason == "RELEASED"
    assert lease.release().end_reason == "RELEASED"
    assert coordinator.calls["Release"] == 1


def test_batches_have_a_result_for_each_item(pool: Any, coordinator: ScriptedCoordinator) -> None:
    asked = [Request("1", name="impossible" if i == 1 else "") for i in range(300)]
    results = pool.allocate_batch(asked)
    assert [type(result) for result in results[:3]] == [type(results[0]), NeverFits, type(results[0])]
    assert (len(results), coordinator.calls["AllocateBatch"]) == (300, 2)
    ids = [result.lease_id for result in results if not isinstance(result, NeverFits)]
    released = pool.release_batch([*ids, "l-nobody"])
    assert all(result.end_reason == "RELEASED" for result in released[:-1])
    assert isinstance(released[-1], LeaseNotFound)


def test_lists_go_through_all_pages(pool: Any, coordinator: ScriptedCoordinator) -> None:
    ids = {pool.allocate("1").lease_id for _ in range(8)}
    assert {lease.lease_id for lease in pool.leases()} == ids
    assert not list(pool.leases(tenant="speech"))
    coordinator.nodes = [types_pb2.Node(node_id=f"n-{i}") for i in range(5)]
    assert [node.node_id for node in pool.nodes()] == [f"n-{i}" for i in range(5)]


def test_explaining_a_request(pool: Any) -> None:
    assert pool.explain("0.5", tenant="speech").fits_now


def test_closing_releases_what_is_still_held(connect: Callable[..., Any], coordinator: ScriptedCoordinator) -> None:
    with connect(coordinator.address) as pool:
        pool.lease("1")
        pool.lease("1")
    assert [lease.end_reason for lease in coordinator.leases.values()] == ["RELEASED", "RELEASED"]


def test_invalid_fields_are_named(pool: Any, coordinator: ScriptedCoordinator) -> None:
    from google.rpc import error_details_pb2

    bad = error_details_pb2.BadRequest()
    bad.field_violations.add(field="request.tenant", description="is empty")
    coordinator.fail("Allocate", Fault(grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", "no", details=(bad,)))
    with pytest.raises(InvalidRequest) as caught:
        pool.lease("1")
    assert [(item.subject, item.description) for item in caught.value.violations] == [("request.tenant", "is empty")]


@pytest.mark.parametrize(
    "send",
    [
        lambda pool: pool.allocate("1", priority=1 << 40),
        lambda pool: pool.allocate("1", name="\ud800"),
        lambda pool: pool.explain("1", ttl_s=-1),
        lambda pool: pool.release("l-1", reason="\ud800"),
        lambda pool: pool.grant_on("1", "\ud800"),
        lambda pool: pool.declare([NodeDeclaration("n", [DeviceDeclaration("A100-40", memory_bytes=-1)])]),
        lambda pool: pool.forecast("tenant/\ud800"),
        lambda pool: next(pool.leases(tenant="\ud800")),
    ],
)
def test_what_no_message_can_carry_is_refused_before_it_is_sent(
    pool: Any, coordinator: ScriptedCoordinator, send: Callable[[Any], object]
) -> None:
    with pytest.raises(InvalidRequest, match="can't be sent") as caught:
        send(pool)
    assert caught.value.hint
    assert not coordinator.calls


def test_a_request_may_be_of_a_class_of_its_own(pool: Any) -> None:
    class Checked(Request):
        """As frameworks make them, which check the fields."""

    assert pool.allocate(Checked("0.5", tenant="vision")).gpu == "0.5"


def test_batches_of_places(pool: Any, coordinator: ScriptedCoordinator) -> None:
    found = pool.grant_on_batch(["1", "0.5"], ["n-1", "n-2"], keys=["a", "b"])
    again = pool.grant_on_batch(["1", "0.5"], ["n-1", "n-2"], keys=["a", "b"])
    assert [lease.lease_id for lease in found] == [lease.lease_id for lease in again]
    assert coordinator.calls["GrantOn"] == 0
