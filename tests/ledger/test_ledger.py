"""The bill is right: to the millisecond, at any cut, after any restart, and the same as from the raw events alone."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.facts import (
    LeaseGranted,
    LeaseQueued,
    SliceActive,
    SliceFailed,
    SliceGone,
    SlicesAdopted,
)
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.folding import DAY_MS
from aliquot.coordinator.core.books.ledger.invoice import Invoice, balance_micro, make_invoice
from aliquot.coordinator.core.books.ledger.ledger import Extract
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard, Tier
from aliquot.coordinator.core.books.nodes import NodeStateChanged
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.values.errors import IdempotencyMismatch, InvalidField, PeriodClosed
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import NodeState
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, tenant

HOUR_MS = 3_600_000
CARD = RateCard("EUR", (ModelRate("A100-40", 2_000_000, 10_000),), minimum_ms=60_000)


@pytest.fixture
def books() -> Books:
    books = Books()
    books.now_ms = 20 * DAY_MS
    books.connect(node("one"))
    books.do(c.Apply(rates=CARD))
    books.settle()
    return books


def extract(books: Books, from_ms: int = 0, to_ms: int = 1 << 50, tenant: str = "a") -> Extract:
    return books.read().extract(tenant, from_ms, to_ms, books.now_ms)


def invoice(books: Books, from_ms: int = 0, to_ms: int = 1 << 50, tenant: str = "a") -> Invoice:
    return make_invoice(extract(books, from_ms, to_ms, tenant))


def run(books: Books, share: int = 1000, memory: int = 0, **more: object) -> Lease:
    return books.activate(books.allocate(request(share, memory, **more)))  # type: ignore[arg-type]


def end(books: Books, lease: Lease) -> None:
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)


def test_a_lease_is_charged_from_its_confirmation_until_its_capacity_is_free(books: Books) -> None:
    lease = books.allocate(request(250, 10 * GIB))
    books.now_ms += 5_000
    books.activate(lease)
    books.now_ms += HOUR_MS
    books.do(c.Release(lease.lease_id))
    books.now_ms += 7_000
    books.report(lease, c.ReportStatus.GONE)
    assert books.state.ledger.usage_entries == 1
    line = invoice(books).lines[0]
    assert line.share_milli_ms == 250 * (HOUR_MS + 7_000)
    assert line.memory_byte_ms == 10 * GIB * (HOUR_MS + 7_000)
    exact = Fraction(250 * (HOUR_MS + 7_000) * 2_000_000, 1000 * HOUR_MS)
    exact += Fraction(10 * (HOUR_MS + 7_000) * 10_000, HOUR_MS)
    assert line.amount_micro == round(exact)


def test_a_cut_in_the_middle_of_a_running_lease_is_exact_and_periods_add_up(books: Books) -> None:
    start = books.now_ms
    run(books, 333)
    books.now_ms += 10 * HOUR_MS
    cut = start + 3 * HOUR_MS + 1
    first, second = invoice(books, start, cut), invoice(books, cut, books.now_ms)
    assert first.lines[0].share_milli_ms == 333 * (3 * HOUR_MS + 1)
    assert second.lines[0].share_milli_ms == 333 * (7 * HOUR_MS - 1)
    assert invoice(books, start, books.now_ms).lines[0].share_milli_ms == 333 * 10 * HOUR_MS


def test_time_on_a_lost_node_is_not_charged(books: Books) -> None:
    lease = run(books)
    books.now_ms += 1_000
    books.do(c.NodeSilent("n-one", 1, lost=True))
    books.now_ms += HOUR_MS
    said = c.SliceReport(lease.slices[0].slice_id, 1, c.ReportStatus.ACTIVE, 2)
    books.connect(node("one"), (said,))
    books.now_ms += 2_000
    end(books, lease)
    assert sum(line.share_milli_ms for line in invoice(books).lines) == 1000 * 3_000


def test_what_never_started_costs_nothing_and_the_minimum_is_paid_once(books: Books) -> None:
    lease = books.allocate(request(1000))
    books.now_ms += 10_000
    end(books, lease)
    assert invoice(books).lines == ()
    lease = run(books)
    books.now_ms += 10_000
    assert invoice(books).lines[0].billable_share_milli_ms == 1000 * 10_000, "it may yet run for longer"
    end(books, lease)
    line = invoice(books).lines[0]
    assert (line.share_milli_ms, line.billable_share_milli_ms) == (1000 * 10_000, 1000 * 60_000)


def test_a_change_of_prices_does_not_reach_back(books: Books) -> None:
    start = books.now_ms
    run(books, 1000, 40 * GIB)
    books.now_ms += HOUR_MS
    books.do(c.Apply(rates=RateCard("EUR", (ModelRate("*", 4_000_000),))))
    books.now_ms += HOUR_MS
    lines = invoice(books, start, books.now_ms).lines
    assert sorted(line.amount_micro for line in lines) == [2_000_000 + 400_000, 4_000_000]


def test_prices_declared_twice_in_a_millisecond_charge_nothing_twice(books: Books) -> None:
    start = books.now_ms
    run(books, 1000, 40 * GIB)
    books.now_ms += HOUR_MS
    for gpu_hour_micro in (3_000_000, 4_000_000):
        books.do(c.Apply(rates=RateCard("EUR", (ModelRate("*", gpu_hour_micro),))))
    books.now_ms += HOUR_MS
    lines = invoice(books, start, books.now_ms).lines
    assert sorted((line.share_milli_ms, line.amount_micro) for line in lines) == [
        (1000 * HOUR_MS, 2_000_000 + 400_000),
        (1000 * HOUR_MS, 4_000_000),
    ]


def test_discounts_never_make_more_cost_less(books: Books) -> None:
    tiers = (Tier(100_000, 100), Tier(500_000, 200))
    books.do(c.Apply(rates=RateCard("EUR", (ModelRate("*", 2_000_000),), tiers)))
    start = books.now_ms
    run(books, 1000)
    totals = []
    for hours in (99, 100, 101, 499, 501, 700):
        books.now_ms = start + hours * HOUR_MS
        totals.append(invoice(books, start, books.now_ms).total_micro)
    assert totals == sorted(totals)
    assert totals[0] == 198_000_000
    assert totals[-1] == 2_000_000 * (100 + 400 * 9 // 10 + 200 * 8 // 10)


def test_what_has_no_price_is_listed_and_said(books: Books) -> None:
    books.connect(node("two", model="H100-80"))
    run(books, 1000, models=(("H100-80",),))
    books.now_ms += HOUR_MS
    found = invoice(books)
    assert not found.lines[0].priced
    assert "H100-80" in found.notes[0]


def test_credit_is_posted_once_and_the_balance_may_be_seen(books: Books) -> None:
    books.do(c.PostCredit("a", 5_000_000, "payment-1"))
    assert books.do(c.PostCredit("a", 5_000_000, "payment-1")).facts == ()
    run(books, 1000, 40 * GIB)
    books.now_ms += HOUR_MS
    assert balance_micro(extract(books)) == 5_000_000 - 2_400_000
    books.now_ms += 2 * HOUR_MS
    assert balance_micro(extract(books)) == 5_000_000 - 3 * 2_400_000
    with pytest.raises(InvalidField):
        books.do(c.PostCredit("a", 0, "x"))
    with pytest.raises(InvalidField):
        books.do(c.PostCredit("a", 1, ""))


def test_a_reference_that_stands_for_something_else_is_refused(books: Books) -> None:
    books.do(c.PostCredit("a", 5_000_000, "p"))
    books.do(c.CorrectUsage("a", "default", "A100-40", "-10", "0", "t"))
    assert books.do(c.CorrectUsage("a", "default", "A100-40", "-010", "0", "t", "said again")).facts == ()
    for other in (
        c.PostCredit("b", 5_000_000, "p"),
        c.PostCredit("a", 5_000_001, "p"),
        c.PostCredit("a", 5_000_000, "t"),
        c.CorrectUsage("a", "default", "A100-40", "-11", "0", "t"),
        c.CorrectUsage("a", "other", "A100-40", "-10", "0", "t"),
        c.CorrectUsage("a", "default", "A100-40", "-10", "0", "p"),
    ):
        with pytest.raises(IdempotencyMismatch, match="stands for another"):
            books.do(other)
    assert len(books.state.ledger.entries) == 2


def test_a_correction_is_a_new_entry(books: Books) -> None:
    lease = run(books)
    books.now_ms += HOUR_MS
    end(books, lease)
    before = list(books.state.ledger.entries)
    wrong = -(1000 * HOUR_MS // 2)
    books.do(c.CorrectUsage("a", "default", "A100-40", str(wrong), "0", "ticket-7", "outage"))
    books.now_ms += 1
    assert books.state.ledger.entries[: len(before)] == before
    assert sum(line.share_milli_ms for line in invoice(books).lines) == 1000 * HOUR_MS + wrong
    with pytest.raises(InvalidField):
        books.do(c.CorrectUsage("a", "", "", "1.5", "0", "r"))
    with pytest.raises(InvalidField):
        books.do(c.CorrectUsage("a", "", "", "9" * 65, "0", "r"))


def test_quantities_beyond_64_bits_survive(books: Books) -> None:
    huge = str(10**40)
    books.do(c.CorrectUsage("a", "default", "A100-40", huge, huge, "r"))
    books.now_ms += 1
    assert invoice(books).lines[0].memory_byte_ms == 10**40
    assert state_hash(books.restored()) == state_hash(books.replayed()) == state_hash(books.state)


def test_closed_days_give_the_same_invoices_by_whole_days(books: Books) -> None:
    start = books.now_ms
    for hours in (5, 30, 1, 20):
        lease = run(books, 250)
        books.now_ms += hours * HOUR_MS
        end(books, lease)
        books.now_ms += 60_000
    day = start + DAY_MS
    before = [invoice(books, start, day), invoice(books, day, start + 3 * DAY_MS), invoice(books)]
    books.do(c.CloseBooks(start + 2 * DAY_MS))
    assert len(books.state.ledger.entries) < 4
    after = [invoice(books, start, day), invoice(books, day, start + 3 * DAY_MS), invoice(books)]
    for one, other in zip(before, after, strict=True):
        assert sum(line.share_milli_ms for line in one.lines) == sum(line.share_milli_ms for line in other.lines)
        assert one.total_micro == other.total_micro
    with pytest.raises(PeriodClosed):
        invoice(books, start + 1, day)
    with pytest.raises(InvalidField):
        books.do(c.CloseBooks(start + 1))
    assert state_hash(books.restored()) == state_hash(books.replayed()) == state_hash(books.state)


def test_observed_use_stands_beside_what_was_reserved(books: Books) -> None:
    lease = run(books)
    books.do(c.ObserveUse(lease.lease_id, 400 * 60_000, 10 * GIB * 60_000, 60_000))
    books.do(c.ObserveUse(lease.lease_id, 600 * 60_000, 0, 60_000))
    books.do(c.ObserveUse("", 50 * 60_000, 0, 60_000, tenant="a"))
    assert books.do(c.ObserveUse("l-unknown", 1, 1, 1)).facts == ()
    books.advance(60_000)
    today = invoice(books, 0, books.now_ms)
    assert (today.observed_busy_milli_ms, today.observed_interval_ms) == (1050 * 60_000, 180_000)
    assert today.observed_memory_byte_ms == 10 * GIB * 60_000
    day_ms = 86_400_000
    books.advance(day_ms)
    books.do(c.ObserveUse("", 7, 0, 1, tenant="a"))
    start_ms = books.now_ms - books.now_ms % day_ms
    assert invoice(books, 0, start_ms).observed_busy_milli_ms == 1050 * 60_000
    assert invoice(books, start_ms, start_ms + day_ms).observed_busy_milli_ms == 7
    assert invoice(books, start_ms + 1, start_ms + day_ms).observed_interval_ms == 0, "whole days only"
    assert state_hash(books.restored()) == state_hash(books.replayed()) == state_hash(books.state)


def test_bytes_that_programs_elsewhere_moved_stand_on_the_invoice(books: Books) -> None:
    books.do(c.ObserveUse("", 0, 0, 0, tenant="a", up_bytes=10 << 60, down_bytes=7))
    books.do(c.ObserveUse("", 1, 0, 1, tenant="a", down_bytes=5))
    books.do(c.ObserveUse("", 1, 0, 1, tenant="b", up_bytes=3))
    assert books.do(c.ObserveUse("", 0, 0, 0, tenant="a")).facts == ()
    with pytest.raises(InvalidField):
        books.do(c.ObserveUse("", 0, 0, 1, tenant="a", up_bytes=-1))
    today = invoice(books, 0, books.now_ms + 1)
    assert (today.observed_up_bytes, today.observed_down_bytes, today.total_micro) == (10 << 60, 12, 0)
    assert state_hash(books.restored()) == state_hash(books.replayed()) == state_hash(books.state)


def test_periods_must_go_forward(books: Books) -> None:
    for from_ms, to_ms in ((10, 10), (-1, 10)):
        with pytest.raises(InvalidField):
            invoice(books, from_ms, to_ms)
        with pytest.raises(InvalidField):
            make_invoice(books.state.ledger.extract("a", (), from_ms, to_ms, books.now_ms))
    make_invoice(books.state.ledger.extract("a", (), 0, 10, books.now_ms))


# -- against an independent recomputation from the raw facts


def recompute(  # noqa: C901 - one case a fact
    journal: list[Fact], tenant: str, from_ms: int, to_ms: int, now_ms: int
) -> int:
    """share_milli·ms of a tenant in a period, from nothing but facts: a second way to the same figure."""
    owner: dict[str, str] = {}
    share: dict[str, int] = {}
    node_of: dict[str, str] = {}
    began: dict[str, int] = {}
    dark: set[str] = set()
    total = 0

    def stop(slice_id: str, at_ms: int) -> None:
        nonlocal total
        since = began.pop(slice_id, None)
        if since is not None and owner[slice_id.partition(".")[0]] == tenant:
            total += share[slice_id] * max(0, min(at_ms, to_ms) - max(since, from_ms))

    paused: set[str] = set()
    for fact in journal:
        match fact:
            case LeaseQueued():
                owner[fact.lease_id] = fact.request.tenant
            case LeaseGranted():
                for grant in fact.slices:
                    share[grant.slice_id] = grant.plan.share_milli
                    node_of[grant.slice_id] = grant.plan.node_id
            case SliceActive():
                if fact.slice_id not in began and node_of[fact.slice_id] not in dark:
                    began[fact.slice_id] = fact.at_ms
            case SliceGone() | SliceFailed():
                stop(fact.slice_id, fact.at_ms)
                paused.discard(fact.slice_id)
            case NodeStateChanged() if fact.state is NodeState.LOST:
                dark.add(fact.node_id)
                for slice_id in [i for i in began if node_of[i] == fact.node_id]:
                    stop(slice_id, fact.at_ms)
                    paused.add(slice_id)
            case NodeStateChanged():
                dark.discard(fact.node_id)
            case SlicesAdopted():
                for slice_id in fact.slice_ids:
                    if slice_id in paused:
                        paused.discard(slice_id)
                        began[slice_id] = fact.at_ms
    for slice_id in list(began):
        stop(slice_id, min(now_ms, to_ms))
    return total


@pytest.mark.no_cover  # would more than double its time
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["run", "run", "end", "ask", "lose", "back", "preempt"]),
            st.sampled_from(["a", "b"]),
            st.sampled_from([250, 500, 1000]),
            st.integers(0, 12 * HOUR_MS),
        ),
        min_size=5,
        max_size=40,
    ),
    cuts=st.lists(st.integers(0, 7 * DAY_MS), min_size=2, max_size=4, unique=True),
)
def test_a_week_of_invoices_is_what_the_raw_events_say(steps: list[tuple[str, str, int, int]], cuts: list[int]) -> None:
    books = Books()
    books.now_ms = start = 100 * DAY_MS
    books.connect(node("one"))
    books.do(c.Apply(rates=CARD))
    declare(books, tenant("a", 1))
    for what, who, share, pause_ms in steps:
        live = [lease for lease in books.state.leases.values() if lease.holding and not lease.ending]
        if what == "run" and books.state.nodes["n-one"].grantable:
            lease = books.allocate(request(share, tenant=who, preemptible=True))
            books.settle()
            if books.again(lease).holding:
                books.activate(books.again(lease))
        elif what in ("ask", "preempt"):
            books.allocate(request(share, tenant=who, priority=5 if what == "preempt" else 0))
            books.settle()
        elif what == "end" and live:
            end(books, live[pause_ms % len(live)])
        elif what == "lose":
            books.do(c.NodeSilent("n-one", books.sessions["n-one"], lost=True))
        elif what == "back":
            reports = tuple(
                c.SliceReport(p.slice_id, p.lease_epoch, c.ReportStatus.ACTIVE, 2)
                for lease in live
                for p in lease.holding
            )
            books.connect(node("one"), reports)
        books.advance(pause_ms)
        for lease in list(books.state.leases.values()):
            if lease.ending and books.state.nodes["n-one"].grantable:
                books.report(lease, c.ReportStatus.GONE)
    moments = sorted({start, *(start + cut for cut in cuts), books.now_ms})
    for who in ("a", "b"):
        parts = 0
        for low, high in itertools.pairwise(moments):
            found = sum(line.share_milli_ms for line in invoice(books, low, high, who).lines)
            assert found == recompute(books.facts, who, low, high, books.now_ms)
            parts += found
        assert parts == sum(line.share_milli_ms for line in invoice(books, start, max(moments), who).lines)
