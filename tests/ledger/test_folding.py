"""Usage that became sums by the hour, and then by the day, is charged to the last millionth like usage by the lease."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.entries import Entry, EntryKind
from aliquot.coordinator.core.books.ledger.folding import DAY_MS, HOUR_MS
from aliquot.coordinator.core.books.ledger.invoice import Invoice, make_invoice
from aliquot.coordinator.core.books.ledger.ledger import Ledger, close
from aliquot.coordinator.core.books.ledger.meters import meter_of
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.tenancy.specs import Budget, Period
from aliquot.coordinator.core.deciding import ledger as ledger_deciding
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known import known
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import PeriodClosed
from tests.core.harness import GIB, Books, node, request

BEGAN_MS = 100 * DAY_MS

_MOMENTS = st.integers(1, 3 * DAY_MS)
_USES = st.lists(
    st.tuples(
        _MOMENTS,  # when it ended
        st.one_of(st.integers(1, 2 * HOUR_MS), st.integers(1, 3 * DAY_MS)),  # how long it was charged
        st.sampled_from(["a", "b"]),
        st.sampled_from(["default", "night"]),
        st.sampled_from(["A100-40", "H100-80"]),
        st.integers(1, 1000),
        st.integers(0, 80 * GIB),
    ),
    max_size=12,
)
_PRICES = st.lists(
    st.tuples(_MOMENTS, st.integers(0, 10**7), st.integers(0, 10**6), st.integers(0, 7_200_000)), max_size=4
)


def history(uses: list[tuple[int, int, str, str, str, int, int]], prices: list[tuple[int, int, int, int]]) -> Ledger:
    ledger = Ledger()
    for version, (at_ms, gpu, gib, minimum_ms) in enumerate(sorted(prices, key=lambda price: price[0])):
        card = RateCard("EUR", (ModelRate("A100-40", gpu, gib),), minimum_ms=minimum_ms)
        ledger.set_rates(BEGAN_MS + at_ms, card, version)
    for end_ms, took_ms, tenant, queue, model, share, memory in sorted(uses):
        entry = Entry(
            number=ledger.next_number,
            kind=EntryKind.USAGE,
            from_ms=max(BEGAN_MS, BEGAN_MS + end_ms - took_ms),
            to_ms=BEGAN_MS + end_ms,
            tenant=tenant,
            queue=queue,
            model=model,
            lease_id="l-1",
            slice_id="l-1.1.0",
            share_milli=share,
            memory_bytes=memory,
        )
        ledger.post(entry)
        ledger.post(Entry(ledger.next_number, EntryKind.CREDIT, entry.to_ms, entry.to_ms, "a", money_micro=7))
    return ledger


def invoices(ledger: Ledger, moments: list[int]) -> list[Invoice]:
    now_ms = BEGAN_MS + 4 * DAY_MS
    return [
        make_invoice(ledger.extract(tenant, (), from_ms, to_ms, now_ms))
        for tenant in ("a", "b")
        for from_ms, to_ms in itertools.combinations(moments, 2)
    ]


@pytest.mark.no_cover  # would more than double its time
@given(
    _USES, _PRICES, st.lists(st.integers(0, 30), max_size=3), st.lists(st.integers(0, 3 * 24), min_size=2, unique=True)
)
def test_invoices_by_whole_hours_do_not_change_when_usage_is_folded(
    uses: list[tuple[int, int, str, str, str, int, int]],
    prices: list[tuple[int, int, int, int]],
    folds: list[int],
    hours: list[int],
) -> None:
    plain, folded = history(uses, prices), history(uses, prices)
    for up_to in folds:
        folded.fold(up_to)
    moments = sorted(BEGAN_MS + hour * HOUR_MS for hour in hours)
    later = [folded.folded_up_to_ms + 1, BEGAN_MS + 3 * DAY_MS + 17]  # beyond what is folded any moment will do
    assert invoices(folded, sorted({*moments, *later})) == invoices(plain, sorted({*moments, *later}))
    assert folded.usage_entries == sum(entry.kind is EntryKind.USAGE for entry in folded.entries)
    assert [entry for entry in folded.entries if entry.kind is EntryKind.CREDIT] == [
        entry for entry in plain.entries if entry.kind is EntryKind.CREDIT
    ]


@given(_USES, _PRICES, st.integers(0, 30), st.integers(1, 3))
def test_invoices_by_whole_days_do_not_change_when_books_are_closed(
    uses: list[tuple[int, int, str, str, str, int, int]], prices: list[tuple[int, int, int, int]], up_to: int, day: int
) -> None:
    plain, closed = history(uses, prices), history(uses, prices)
    close(closed, BEGAN_MS + DAY_MS)
    closed.fold(up_to)
    close(closed, BEGAN_MS + day * DAY_MS)
    moments = [BEGAN_MS + number * DAY_MS for number in range(5)]
    assert invoices(closed, moments) == invoices(plain, moments)


@given(_USES, _PRICES, st.integers(0, 30), st.sampled_from(Period), st.integers(0, 2))
def test_budgets_know_what_was_folded(
    uses: list[tuple[int, int, str, str, str, int, int]],
    prices: list[tuple[int, int, int, int]],
    up_to: int,
    period: Period,
    days: int,
) -> None:
    found = []
    now_ms = BEGAN_MS + 3 * DAY_MS
    for fold in (False, True):
        ledger = history(uses, prices)
        if fold:
            close(ledger, BEGAN_MS + days * DAY_MS)
            ledger.fold(up_to)
        priced = (part for entry in ledger.by_tenant.get("a", ()) for part in ledger.prices.cut(entry))
        budget = Budget(period=period, share_milli_ms=1)
        found.append(meter_of(budget, priced, ledger.folded().get("a", ()), ledger.prices, now_ms))
    if period is not Period.HOUR or found[0].period_start_ms >= BEGAN_MS + days * DAY_MS:
        assert found[0] == found[1]


@pytest.mark.no_cover  # would more than double its time
def test_the_core_keeps_so_many_entries_and_folds_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = 32
    for module in (known, ledger_deciding):
        monkeypatch.setattr(module, "FOLDED_AT_ONCE", at_once)
    books = Books(CoreConfig(ledger_entries_max=10))
    books.now_ms = BEGAN_MS
    books.connect(node("one"))
    books.do(c.Apply(rates=RateCard("EUR", (ModelRate("*", 2_000_000),))))
    used = 0
    for _ in range(10 + 2 * at_once):
        lease = books.activate(books.allocate(request(250)))
        books.now_ms += 30_000
        books.do(c.Release(lease.lease_id))
        books.report(lease, c.ReportStatus.GONE)
        books.advance(0)
        used += 250 * 30_000
        assert books.state.ledger.usage_entries < 10 + at_once
    ledger = books.state.ledger
    assert ledger.usage_entries == 10
    (line,) = make_invoice(ledger.extract("a", (), 0, books.now_ms, books.now_ms)).lines
    assert (line.share_milli_ms, line.slices) == (used, 10 + 2 * at_once)
    assert line.billable_share_milli_ms == 2 * used, "the minimum is a minute"
    assert state_hash(books.restored()) == state_hash(books.replayed()) == state_hash(books.state)
    with pytest.raises(PeriodClosed, match="whole hours"):
        books.read().extract("a", BEGAN_MS + 1, books.now_ms, books.now_ms)
    books.read().extract("a", BEGAN_MS, books.now_ms, books.now_ms)
    books.read().extract("a", ledger.folded_up_to_ms, books.now_ms, books.now_ms)
