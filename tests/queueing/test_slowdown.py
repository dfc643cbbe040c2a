"""Queues that order by slowdown: who is due first goes first, large requests sooner, and nobody waits for ever."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import HoldKind
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy, QueueSpec
from aliquot.coordinator.core.commands.queries import ExplainLease
from aliquot.coordinator.core.evolve.snapshot import from_snapshot, to_snapshot
from aliquot.coordinator.core.queueing.lines import rank_of
from aliquot.coordinator.core.queueing.slowdown import LARGE_DEVICES, SLACK_MAX_MS, STRETCH_MAX, patience_ms, slack_ms
from aliquot.coordinator.core.values.errors import DomainError
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, root, tenant

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


def slowdown(**more: object) -> QueueSpec:
    more.setdefault("reserve_after_ms", 0)
    return QueueSpec("default", policy=QueuePolicy.SLOWDOWN, **more)  # type: ignore[arg-type]


def pool(devices: int = 1, nodes: int = 1, **more: object) -> Books:
    """A pool with one queue of this policy."""
    books = Books()
    for number in range(nodes):
        books.connect(node(f"node{number}", devices))
    declare(books, root(QueuePolicy.PRIORITY), slowdown(**more))
    books.settle()
    return books


def ask(books: Books, **more: object) -> Lease:
    lease = books.allocate(request(1000, **more))  # type: ignore[arg-type]
    books.settle()
    lease = books.again(lease)
    return books.activate(lease) if lease.slices else lease


def end(books: Books, lease: Lease) -> None:
    lease = books.again(lease)
    if lease.state is LeaseState.GRANTED:
        lease = books.activate(lease)
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.settle()


def runs(books: Books, lease: Lease) -> bool:
    return books.again(lease).state is not LeaseState.QUEUED


def order_of(books: Books, running: Lease, waiting: list[Lease]) -> list[int]:
    """The order in which these run, one after another."""
    found: list[int] = []
    while len(found) < len(waiting):
        end(books, running)
        (number,) = [n for n, lease in enumerate(waiting) if n not in found and runs(books, lease)]
        found.append(number)
        running = waiting[number]
    return found


def test_who_runs_for_a_short_time_waits_for_a_short_time() -> None:
    books = pool()
    running = ask(books)
    waiting = [ask(books, time_limit_ms=limit) for limit in (0, 8 * HOUR_MS, HOUR_MS, MINUTE_MS)]
    assert order_of(books, running, waiting) == [3, 2, 1, 0]


def test_a_long_run_is_due_in_the_end_as_well() -> None:
    books = pool()
    running = ask(books)
    long = ask(books, time_limit_ms=HOUR_MS)
    books.advance(STRETCH_MAX * (HOUR_MS - MINUTE_MS) + 1000)
    short = ask(books, time_limit_ms=MINUTE_MS)
    assert order_of(books, running, [long, short]) == [0, 1]


def test_equal_tenants_are_ordered_together() -> None:
    books = pool()
    running = ask(books)
    waiting = [
        ask(books, tenant=name, time_limit_ms=limit)
        for name, limit in (("a", HOUR_MS), ("b", 2 * HOUR_MS), ("a", 3 * HOUR_MS), ("b", MINUTE_MS))
    ]
    assert order_of(books, running, waiting) == [3, 0, 1, 2]


def test_priority_stays_above_it_and_grows_with_the_time_waited() -> None:
    books = pool(ageing_ms=MINUTE_MS)
    running = ask(books)
    low = ask(books, time_limit_ms=MINUTE_MS)
    high = ask(books, priority=1)
    assert order_of(books, running, [low, high]) == [1, 0]
    spec = slowdown(ageing_ms=MINUTE_MS)
    old = lease_of(spec, created_ms=0)
    new = lease_of(spec, created_ms=SLACK_MAX_MS + MINUTE_MS + SLACK_MAX_MS, priority=1)
    assert rank_of(old, spec) < rank_of(new, spec)


def lease_of(spec: QueueSpec, *, created_ms: int, arrival: int = 1, **more: object) -> Lease:
    """One that waits in a queue."""
    return Lease("lease", arrival, request(1000, queue=spec.name, **more), created_ms=created_ms)  # type: ignore[arg-type]


def test_a_guarantee_stays_above_it() -> None:
    books = pool(2)
    declare(books, tenant("owner", 2))
    held = [ask(books, tenant="owner") for _ in range(2)]
    short = ask(books, tenant="other", time_limit_ms=MINUTE_MS)
    entitled = ask(books, tenant="owner")
    end(books, held[0])
    assert (runs(books, short), runs(books, entitled)) == (False, True)


sizes = st.integers(1, 16)
limits = st.one_of(st.just(0), st.integers(1, 60 * 86_400_000))
knobs = st.integers(0, 1000)


@given(st.lists(st.tuples(sizes, limits, st.integers(0, 3 * SLACK_MAX_MS)), min_size=2, max_size=8), knobs)
def test_nobody_starves(asked: list[tuple[int, int, int]], large_first: int) -> None:
    """Whoever came longer ago than the longest slack goes before all that come, whatever these are."""
    spec = slowdown(large_first_permille=large_first)
    leases = [
        lease_of(spec, created_ms=at_ms, arrival=n, count=count, time_limit_ms=limit)
        for n, (count, limit, at_ms) in enumerate(asked)
    ]
    for old in leases:
        for new in leases:
            if new.created_ms > old.created_ms + SLACK_MAX_MS:
                assert rank_of(old, spec) < rank_of(new, spec)


@given(sizes, sizes, limits, knobs)
def test_the_larger_of_two_is_never_due_later(one: int, two: int, limit: int, large_first: int) -> None:
    spec = slowdown(large_first_permille=large_first, reserve_after_ms=HOUR_MS)
    small, large = (request(1000, count=count, time_limit_ms=limit) for count in sorted((one, two)))
    assert 0 <= slack_ms(spec, large) <= slack_ms(spec, small) <= SLACK_MAX_MS
    assert 0 < patience_ms(spec, large) <= patience_ms(spec, small) <= HOUR_MS
    if not large_first:
        assert slack_ms(spec, large) == slack_ms(spec, small)


def test_the_knob_says_how_much_sooner_large_requests_are_due() -> None:
    whole = request(1000, count=LARGE_DEVICES, time_limit_ms=HOUR_MS)
    gang = request(1000, gang_size=LARGE_DEVICES, time_limit_ms=HOUR_MS)
    slacks = [slack_ms(slowdown(large_first_permille=knob), whole) for knob in (0, 500, 1000)]
    assert slacks == [8 * HOUR_MS, 4 * HOUR_MS, 0]
    assert slack_ms(slowdown(), gang) == slack_ms(slowdown(), whole)


@pytest.mark.parametrize("knob", [0, 1000])
def test_devices_are_kept_for_large_requests_as_soon_as_the_knob_says(knob: int) -> None:
    books = pool(8, reserve_after_ms=HOUR_MS, large_first_permille=knob)
    ask(books, time_limit_ms=2 * HOUR_MS)
    large = ask(books, count=8, time_limit_ms=HOUR_MS)
    books.advance(1000)
    books.settle()
    hold = books.state.holds.get(large.lease_id)
    assert (hold is not None and hold.kind is HoldKind.RESERVATION) == (knob == 1000)
    books.advance(HOUR_MS)
    books.settle()
    assert large.lease_id in books.state.holds


def test_a_newcomer_that_is_due_sooner_does_not_keep_devices_from_being_kept() -> None:
    books = pool(8, reserve_after_ms=HOUR_MS, large_first_permille=0)
    ask(books)
    large = ask(books, count=8)
    books.advance(HOUR_MS - MINUTE_MS)
    sooner = ask(books, count=8, priority=1, time_limit_ms=MINUTE_MS)
    books.advance(2 * MINUTE_MS)
    books.settle()
    assert books.state.lines.is_first(sooner.lease_id)
    assert list(books.state.holds) == [large.lease_id]


def test_a_longer_limit_while_it_waits_moves_it_back_and_a_restart_changes_nothing() -> None:
    books = pool()
    running = ask(books)
    first, second = (ask(books, time_limit_ms=limit) for limit in (MINUTE_MS, HOUR_MS))
    books.do(c.ExtendLease(first.lease_id, 24 * HOUR_MS))
    again = from_snapshot(to_snapshot(books.state))
    for lines in (again.lines, books.state.lines):
        (queue,) = lines.queues.values()
        (of_tenant,) = queue.values()
        (line,) = of_tenant.lines.values()
        assert [lease_id for _, lease_id in line] == [second.lease_id, first.lease_id]
    assert order_of(books, running, [first, second]) == [1, 0]


def test_who_waits_is_told_when_it_is_due() -> None:
    books = pool()
    ask(books)
    waiting = ask(books)
    notes = " ".join(books.ask(ExplainLease(waiting.lease_id)).notes)
    assert "it is due at" in notes
    assert "with a time limit it would be due sooner" in notes


def test_a_knob_beyond_its_bounds_is_refused() -> None:
    books = pool()
    with pytest.raises(DomainError, match="large_first"):
        declare(books, msgspec.structs.replace(slowdown(), large_first_permille=1001))


def test_a_single_device_is_kept_only_for_who_is_due() -> None:
    books = pool(2, reserve_after_ms=MINUTE_MS)
    ask(books, count=2)
    single = ask(books, time_limit_ms=HOUR_MS)
    books.advance(HOUR_MS)
    books.settle()
    assert not books.state.holds
    large = ask(books, count=2, time_limit_ms=24 * HOUR_MS)
    books.advance(MINUTE_MS)
    books.settle()
    assert list(books.state.holds) == [large.lease_id]
    books.do(c.Release(large.lease_id))
    books.advance(STRETCH_MAX * HOUR_MS)
    books.settle()
    assert list(books.state.holds) == [single.lease_id]


@pytest.mark.parametrize(("policy", "nodes", "kept"), [("slowdown", 60, 2), ("slowdown", 40, 1), ("fifo", 60, 1)])
def test_as_many_have_devices_kept_as_come_to_a_small_part_of_the_pool(policy: str, nodes: int, kept: int) -> None:
    books = Books()
    for number in range(nodes):
        books.connect(node(f"node{number}", 4))
    spec = QueueSpec("default", policy=QueuePolicy(policy), reserve_after_ms=MINUTE_MS)
    declare(books, root(QueuePolicy.PRIORITY), spec)
    ask(books, gang_size=nodes, count=4)
    waiting = [ask(books, count=2, cpu_milli=cpu, time_limit_ms=HOUR_MS) for cpu in range(3)]
    books.advance(MINUTE_MS)
    books.settle()
    assert not any(runs(books, lease) for lease in waiting)
    assert len(books.state.holds) == kept
