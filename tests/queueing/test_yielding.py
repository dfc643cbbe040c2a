"""Who is about to break up what a larger request could use lets that one go first, for a while."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy, QueueSpec
from aliquot.coordinator.core.commands.queries import ExplainLease
from aliquot.coordinator.core.queueing.slowdown import STRETCH_MAX, YIELDS_DIVISOR, slack_ms, yields_ms
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, root, tenant

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Pool:
    """Nodes that one lease each keeps busy, and a queue that orders by slowdown."""

    def __init__(self, devices: int = 1, *, policy: QueuePolicy = QueuePolicy.SLOWDOWN) -> None:
        self.books = Books()
        self.books.connect(node("n", devices))
        declare(self.books, root(QueuePolicy.PRIORITY), QueueSpec("default", policy=policy, reserve_after_ms=0))
        self.running = self.ask(1000, count=devices)

    def ask(self, share: int, **more: object) -> Lease:
        """A request; it runs at once where there is room."""
        more.setdefault("time_limit_ms", HOUR_MS)
        lease = self.books.allocate(request(share, **more))  # type: ignore[arg-type]
        self.books.settle()
        lease = self.books.again(lease)
        return self.books.activate(lease) if lease.slices else lease

    def wait(self, milliseconds: int) -> None:
        """Time passes."""
        self.books.advance(milliseconds)

    def free(self) -> None:
        """What is busy becomes free."""
        lease = self.books.again(self.running)
        self.books.do(c.Release(lease.lease_id))
        self.books.report(lease, c.ReportStatus.GONE)
        self.books.settle()

    def runs(self, lease: Lease) -> bool:
        """Whether it was granted."""
        return self.books.again(lease).state is not LeaseState.QUEUED


def test_a_part_leaves_an_idle_device_to_who_uses_it_whole() -> None:
    pool = Pool()
    whole = pool.ask(1000, time_limit_ms=2 * HOUR_MS)
    pool.wait(20 * MINUTE_MS)
    part = pool.ask(300)
    assert pool.books.state.lines.is_first(part.lease_id), "it is due sooner"
    pool.free()
    assert (pool.runs(whole), pool.runs(part)) == (True, False)


def test_a_single_device_leaves_an_idle_node_to_who_needs_all_of_it() -> None:
    pool = Pool(2)
    both = pool.ask(1000, count=2, time_limit_ms=2 * HOUR_MS)
    pool.wait(20 * MINUTE_MS)
    single = pool.ask(1000, time_limit_ms=HOUR_MS)
    assert pool.books.state.lines.is_first(single.lease_id)
    pool.free()
    assert (pool.runs(both), pool.runs(single)) == (True, False)


def test_nobody_waits_for_who_fits_beside_it() -> None:
    pool = Pool(2)
    whole = pool.ask(1000, time_limit_ms=2 * HOUR_MS)
    pool.wait(20 * MINUTE_MS)
    part = pool.ask(300)
    pool.free()
    assert (pool.runs(whole), pool.runs(part)) == (True, True)


def test_of_two_parts_the_one_that_leaves_less_goes_first() -> None:
    pool = Pool()
    large = pool.ask(900, time_limit_ms=2 * HOUR_MS)
    pool.wait(20 * MINUTE_MS)
    small = pool.ask(300)
    pool.free()
    assert (pool.runs(large), pool.runs(small)) == (True, False)


@pytest.mark.parametrize(
    ("of_part", "of_whole"),
    [
        ({"priority": 1}, {}),
        ({"tenant": "owner"}, {}),
        ({}, {"models": (("H100",),)}),
        ({}, {"share": 500}),
    ],
    ids=["a priority stays above it", "so does a guarantee", "the other has no use for it", "both fit"],
)
def test_who_does_not_let_others_go_first(of_part: dict[str, object], of_whole: dict[str, object]) -> None:
    pool = Pool()
    pool.books.connect(node("other", 1, model="H100"))
    declare(pool.books, tenant("owner", 1))
    pool.ask(1000, models=(("H100",),))
    whole = pool.ask(of_whole.pop("share", 1000), **{"time_limit_ms": 2 * HOUR_MS, **of_whole})  # type: ignore[arg-type]
    pool.wait(20 * MINUTE_MS)
    part = pool.ask(300, **of_part)
    pool.free()
    assert pool.runs(part)
    assert not pool.runs(whole) or whole.request.demand.share_milli == 500


def test_other_queues_do_not() -> None:
    pool = Pool(policy=QueuePolicy.FIFO)
    part = pool.ask(300)
    whole = pool.ask(1000)
    pool.wait(20 * MINUTE_MS)
    pool.free()
    assert (pool.runs(part), pool.runs(whole)) == (True, False)


def test_who_has_waited_longer_for_its_size_and_run_does_not() -> None:
    pool = Pool()
    part = pool.ask(300)
    whole = pool.ask(1000, time_limit_ms=2 * HOUR_MS)
    pool.wait(20 * MINUTE_MS)
    pool.free()
    assert (pool.runs(part), pool.runs(whole)) == (True, False)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 60))
@settings(max_examples=20, deadline=None)
def test_it_is_bounded_whatever_waits(runs_minutes: int, before_minutes: int, after_minutes: int) -> None:
    """From the moment on to which it lets others go first, who is due first goes first."""
    pool = Pool()
    whole = pool.ask(1000, time_limit_ms=24 * HOUR_MS)
    pool.wait(before_minutes * MINUTE_MS)
    part = pool.ask(300, time_limit_ms=runs_minutes * MINUTE_MS)
    pool.wait(after_minutes * MINUTE_MS)
    pool.free()
    assert pool.runs(whole) != pool.runs(part)
    if 2 * after_minutes >= runs_minutes:
        assert pool.runs(part)


@given(st.one_of(st.just(0), st.integers(1, 60 * 24 * HOUR_MS)), st.integers(1, 16), st.integers(0, 1000))
def test_it_is_a_small_part_of_the_time_that_a_request_may_wait(limit: int, count: int, knob: int) -> None:
    queue = QueueSpec("default", policy=QueuePolicy.SLOWDOWN, large_first_permille=knob)
    asked = request(1000, count=count, time_limit_ms=limit)
    assert 0 <= yields_ms(queue, asked) <= slack_ms(queue, asked) // YIELDS_DIVISOR
    assert not limit or yields_ms(queue, asked) <= limit * STRETCH_MAX // YIELDS_DIVISOR


def test_who_lets_others_go_first_is_told_until_when() -> None:
    pool = Pool()
    part = pool.ask(300)
    assert "lets larger requests go first" in " ".join(pool.books.ask(ExplainLease(part.lease_id)).notes)
    pool.wait(HOUR_MS)
    assert "lets larger requests go first" not in " ".join(pool.books.ask(ExplainLease(part.lease_id)).notes)
