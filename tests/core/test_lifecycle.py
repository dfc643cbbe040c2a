"""A lease's life: granted, confirmed, released, failed, expired; each state says what it holds."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState, SliceState
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import (
    IdempotencyMismatch,
    LeaseNotFound,
    NeverFits,
    NoCapacity,
    QueueFull,
)
from aliquot.coordinator.core.values.types import EndReason
from tests.core.harness import GIB, Books, node, request


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one"))
    return books


def test_a_lease_is_granted_then_active_then_gone(books: Books) -> None:
    lease = books.allocate(request(250, 10 * GIB))
    assert lease.state is LeaseState.GRANTED
    assert lease.slices[0].plan.share_milli == 250
    assert lease.slices[0].plan.memory_bytes == 10 * GIB

    lease = books.activate(lease)
    assert lease.state is LeaseState.ACTIVE
    assert lease.slices[0].tier == 2
    assert lease.active_ms == books.now_ms

    books.do(c.Release(lease.lease_id))
    lease = books.again(lease)
    assert lease.state is LeaseState.RELEASING
    assert books.state.inventory.device(lease.slices[0].plan.device_uuid).share_used_milli == 250

    books.report(lease, c.ReportStatus.GONE)
    lease = books.again(lease)
    assert lease.state is LeaseState.ENDED
    assert lease.end_reason == EndReason.RELEASED
    assert books.state.inventory.device(lease.slices[0].plan.device_uuid).share_used_milli == 0


def test_releasing_twice_changes_nothing(books: Books) -> None:
    lease = books.allocate(request(500))
    books.do(c.Release(lease.lease_id))
    assert books.do(c.Release(lease.lease_id)).facts == ()
    books.report(lease, c.ReportStatus.GONE)
    assert books.do(c.Release(lease.lease_id)).facts == ()


def test_a_lease_without_an_agent_ends_at_once() -> None:
    books = Books()
    books.do(c.DeclareNode(node("plan", agentless=True)))
    lease = books.allocate(request(1000, count=4))
    assert lease.state is LeaseState.GRANTED
    books.do(c.Release(lease.lease_id))
    assert books.again(lease).state is LeaseState.ENDED


def test_nothing_is_granted_on_a_declared_node_before_its_agent_comes() -> None:
    books = Books()
    books.do(c.DeclareNode(node("soon")))
    lease = books.allocate(request(1000))
    assert lease.state is LeaseState.QUEUED
    books.connect(node("soon"))
    books.settle()
    assert books.again(lease).state is LeaseState.GRANTED


def test_an_agent_takes_over_the_declaration_of_its_name() -> None:
    books = Books()
    declared = node("rack-7", labels=(("zone", "b"),), pool="research")
    books.do(c.DeclareNode(declared))
    import msgspec

    books.connect(msgspec.structs.replace(node("rack-7"), node_id="n-stable"))
    found = books.state.node("rack-7")
    assert found.spec.node_id == "n-stable"
    assert found.spec.pool == "research"
    assert dict(found.spec.labels) == {"zone": "b"}


def test_an_impossible_request_is_refused_at_once(books: Books) -> None:
    with pytest.raises(NeverFits) as refused:
        books.allocate(request(500, 50 * GIB))
    assert refused.value.shortfall.impossible
    assert refused.value.shortfall.missing
    assert not books.state.leases


def test_no_queue_refuses_with_the_reason(books: Books) -> None:
    books.allocate(request(1000, count=4))
    with pytest.raises(NoCapacity) as refused:
        books.allocate(request(100), no_queue=True)
    assert not refused.value.shortfall.impossible


def test_a_waiting_request_gets_what_is_freed_in_order_of_priority_then_arrival(books: Books) -> None:
    first = books.allocate(request(1000, count=4))
    low = books.allocate(request(1000, count=4))
    high = books.allocate(request(1000, count=4, priority=10))
    books.settle()
    assert books.again(low).state is LeaseState.QUEUED
    for expected in (high, low):
        books.do(c.Release(first.lease_id))
        books.report(first, c.ReportStatus.GONE)
        books.settle()
        assert books.again(expected).state is LeaseState.GRANTED
        first = expected


def test_who_has_waited_leaves_no_timer_behind(books: Books) -> None:
    first = books.activate(books.allocate(request(count=4)))
    before = len(books.state.timers)
    second = books.allocate(request(count=4))
    books.do(c.Release(first.lease_id))
    books.report(first, c.ReportStatus.GONE)
    books.settle()
    books.activate(books.again(second))
    assert len(books.state.timers) == before


def test_a_newcomer_does_not_jump_its_equals(books: Books) -> None:
    running = books.allocate(request(1000, count=4))
    waiting = books.allocate(request(1000))
    books.settle()
    books.do(c.Release(running.lease_id))
    books.report(running, c.ReportStatus.GONE)
    newcomer = books.allocate(request(1000))
    assert newcomer.state is LeaseState.QUEUED
    books.settle()
    assert books.again(waiting).state is LeaseState.GRANTED
    assert books.again(newcomer).state is LeaseState.GRANTED


def test_the_same_key_gives_the_same_lease(books: Books) -> None:
    spec = request(500)
    lease = books.allocate(spec, key="k", body_sha256=b"x")
    assert books.allocate(spec, key="k", body_sha256=b"x").lease_id == lease.lease_id
    with pytest.raises(IdempotencyMismatch):
        books.allocate(request(250), key="k", body_sha256=b"y")
    assert books.allocate(request(500, tenant="b"), key="k", body_sha256=b"x").lease_id != lease.lease_id


def test_a_key_is_kept_for_ten_minutes_after_the_end(books: Books) -> None:
    lease = books.allocate(request(500), key="k", body_sha256=b"x")
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.advance(599_000)
    assert books.allocate(request(500), key="k", body_sha256=b"x").lease_id == lease.lease_id
    books.advance(2_000)
    with pytest.raises(LeaseNotFound):
        books.state.lease(lease.lease_id)
    assert books.allocate(request(500), key="k", body_sha256=b"x").lease_id != lease.lease_id


def test_never_more_ended_leases_are_kept_than_the_bound() -> None:
    books = Books(CoreConfig(retain_ended_max=10))
    books.do(c.DeclareNode(node("plan", agentless=True)))
    for _ in range(50):
        lease = books.allocate(request(100))
        books.do(c.Release(lease.lease_id))
        books.settle()
    assert len(books.state.ended) <= 10


def test_the_queue_is_bounded() -> None:
    books = Books(CoreConfig(queued_max=2))
    books.connect(node("one", 1))
    for _ in range(3):
        books.allocate(request(1000))
    with pytest.raises(QueueFull):
        books.allocate(request(1000))


def test_a_failed_slice_sends_its_lease_elsewhere_with_its_place_in_line(books: Books) -> None:
    books.connect(node("two"))
    lease = books.allocate(request(1000, count=2))
    device = lease.slices[0].plan.device_uuid
    books.report(lease, c.ReportStatus.FAILED, index=0, reason="LIMIT_NOT_SET")
    lease = books.again(lease)
    assert lease.state is LeaseState.QUEUED
    assert [piece.state for piece in lease.slices] == [SliceState.RELEASING]
    books.advance(1_500)
    lease = books.again(lease)
    assert lease.state is LeaseState.GRANTED
    assert lease.requeues == 1
    current = [piece for piece in lease.slices if piece.lease_epoch == lease.lease_epoch]
    assert device not in {piece.plan.device_uuid for piece in current}
    leftover = next(piece for piece in lease.slices if piece.lease_epoch != lease.lease_epoch)
    said = c.SliceReport(leftover.slice_id, leftover.lease_epoch, c.ReportStatus.GONE)
    books.do(c.ReportSlices(leftover.plan.node_id, books.sessions[leftover.plan.node_id], (said,)))
    assert books.again(lease).slices == tuple(current)


def test_a_lease_that_keeps_failing_ends_as_failed() -> None:
    books = Books(CoreConfig(requeues_max=3))
    books.connect(node("one", 8))
    lease = books.allocate(request(1000))
    for _ in range(4):
        books.report(lease, c.ReportStatus.FAILED, reason="LIMIT_NOT_SET")
        books.advance(120_000)
    lease = books.again(lease)
    assert lease.state is LeaseState.ENDED
    assert lease.end_reason == EndReason.FAILED


def test_drains_are_no_failures(books: Books) -> None:
    books.connect(node("two"))
    lease = books.activate(books.allocate(request(500, preemptible=True)))
    for _ in range(16):
        name = books.again(lease).holding[0].plan.node_id.removeprefix("n-")
        books.do(c.Cordon(name, drain=True))
        books.report(lease, c.ReportStatus.GONE)
        books.settle()
        books.do(c.Cordon(name, cordoned=False))
        books.settle()
        books.activate(lease)
    assert books.again(lease).requeues == 16
    books.do(c.Cordon("one", drain=True))
    books.do(c.Cordon("two", drain=True))
    books.report(lease, c.ReportStatus.GONE)
    books.do(c.Cordon("one", cordoned=False))
    books.settle()
    books.report(lease, c.ReportStatus.FAILED, reason="LIMIT_NOT_SET")
    assert books.again(lease).state is LeaseState.QUEUED
    books.advance(1_000)
    assert books.again(lease).state is LeaseState.GRANTED, "after the first back-off, not the seventeenth"
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_failures_are_counted_from_the_last_time_it_ran() -> None:
    books = Books(CoreConfig(requeues_max=3))
    books.connect(node("one", 8))
    lease = books.allocate(request(1000, preemptible=True))
    for _ in range(3):
        for _ in range(2):
            books.report(lease, c.ReportStatus.FAILED, reason="LIMIT_NOT_SET")
            books.advance(120_000)
        assert books.activate(lease).failures == 0
        books.do(c.Cordon("one", drain=True))
        books.report(lease, c.ReportStatus.GONE)
        books.do(c.Cordon("one", cordoned=False))
        books.settle()
    assert books.again(lease).state is LeaseState.GRANTED


def test_losing_a_device_under_a_running_lease_ends_it(books: Books) -> None:
    lease = books.activate(books.allocate(request(1000, count=2)))
    books.report(lease, c.ReportStatus.FAILED, index=1, reason="GPU_LOST", detail="XID 79")
    lease = books.again(lease)
    assert lease.state is LeaseState.RELEASING
    books.report(lease, c.ReportStatus.GONE)
    lease = books.again(lease)
    assert lease.end_reason == EndReason.FAILED
    assert "XID 79" in lease.end_detail


@pytest.mark.parametrize("terms", [{"count": 2}, {"gang_size": 2, "min_count": 1, "max_count": 2}])
def test_a_lease_that_would_not_keep_to_its_limit_ends_everywhere(books: Books, terms: dict[str, Any]) -> None:
    """Also one that could go on with fewer slices, and one that was not active yet: nothing of it is tried again."""
    for active in (True, False):
        lease = books.allocate(request(1000, **terms))
        if active:
            books.activate(lease)
        books.report(lease, c.ReportStatus.FAILED, index=0, reason="OVER_LIMIT", detail="for 1900 ms")
        assert books.again(lease).state is LeaseState.RELEASING
        books.report(lease, c.ReportStatus.GONE)
        lease = books.again(lease)
        assert (lease.state, lease.end_reason) == (LeaseState.ENDED, EndReason.OVER_LIMIT)
        assert "1900 ms" in lease.end_detail
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_what_an_agent_says_of_the_tier_later_is_taken_up_while_the_lease_runs(books: Books) -> None:
    lease = books.activate(books.allocate(request(500)))
    books.report(lease, c.ReportStatus.ACTIVE, tier=3)
    assert [piece.tier for piece in books.again(lease).slices] == [3]
    before = len(books.facts)
    books.report(lease, c.ReportStatus.ACTIVE, tier=3)
    assert len(books.facts) == before
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.ACTIVE, tier=1)
    assert [piece.tier for piece in books.again(lease).slices] == [3]


def test_a_lease_that_fails_again_and_again_waits_a_minute_at_most(books: Books) -> None:
    lease = books.allocate(request(500))
    waits = []
    for _ in range(8):
        books.report(lease, c.ReportStatus.FAILED, reason="ECC")
        waits.append(books.again(lease).not_before_ms - books.now_ms)
        books.advance(waits[-1] - 1)
        assert books.again(lease).waiting
        books.advance(1)
        assert books.again(lease).state is LeaseState.GRANTED
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000]


def test_a_grant_that_nobody_confirms_is_tried_elsewhere(books: Books) -> None:
    lease = books.allocate(request(1000))
    books.advance(30_000)
    lease = books.again(lease)
    assert lease.state is LeaseState.QUEUED
    assert lease.slices[0].state is SliceState.RELEASING
    books.advance(1_000)
    assert books.again(lease).state is LeaseState.GRANTED
    assert books.again(lease).slices[1].plan.device_uuid != lease.slices[0].plan.device_uuid


def test_a_time_limit_ends_the_lease(books: Books) -> None:
    lease = books.activate(books.allocate(request(500, time_limit_ms=60_000)))
    books.advance(59_999)
    assert books.again(lease).state is LeaseState.ACTIVE
    books.advance(1)
    assert books.again(lease).end_reason == EndReason.TIME_LIMIT


@pytest.mark.parametrize(("time_limit_ms", "first"), [(20_000, 0), (40_000, 1)])
def test_what_was_due_first_comes_first_whatever_it_is(books: Books, time_limit_ms: int, first: int) -> None:
    timed = books.activate(books.allocate(request(500, time_limit_ms=time_limit_ms)))
    silent = books.allocate(request(500))
    books.now_ms += 60_000
    done = books.do(c.Tick())
    assert done.outcome.more
    assert {getattr(fact, "lease_id", "") for fact in done.facts} == {(timed, silent)[first].lease_id}


def test_cancelling_a_waiting_request_frees_its_place(books: Books) -> None:
    books.allocate(request(1000, count=4))
    waiting = books.allocate(request(500))
    books.do(c.Release(waiting.lease_id))
    waiting = books.again(waiting)
    assert waiting.state is LeaseState.ENDED
    assert waiting.end_reason == EndReason.CANCELLED
    assert len(books.state.lines) == 0


def test_a_gang_comes_whole_or_not_at_all(books: Books) -> None:
    books.connect(node("two", 2))
    gang = books.allocate(request(1000, count=2, gang_size=3))
    assert len(gang.slices) == 6
    assert {piece.member for piece in gang.slices} == {0, 1, 2}
    second = books.allocate(request(1000, count=2, gang_size=2))
    assert second.state is LeaseState.QUEUED
    assert books.held(SliceState.GRANTED) == 6


def test_explaining_changes_nothing_and_says_what_is_missing(books: Books) -> None:
    books.allocate(request(1000, count=4))
    waiting = books.allocate(request(500))
    told = books.ask(ExplainLease(waiting.lease_id))
    assert not told.fits_now
    assert told.queue_position == 1
    assert told.missing
    dry = books.ask(Explain(request(1000, count=8)))
    assert dry.impossible
