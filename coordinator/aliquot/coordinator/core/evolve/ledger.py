"""How entries that people and agents cause change the ledger. Those of leases come from `counting`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aliquot.coordinator.core.books.ledger import facts as f
from aliquot.coordinator.core.books.ledger.entries import Entry, EntryKind, Observed, Total
from aliquot.coordinator.core.books.ledger.folding import DAY_MS, Folded, put_totals, totals_of
from aliquot.coordinator.core.books.ledger.ledger import close
from aliquot.coordinator.core.books.ledger.rates import DatedRates, PriceHistory
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.counting import recount_meters, watch_budget
from aliquot.coordinator.core.evolve.saving import Saved, Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind


def _rates_applied(state: State, fact: f.RatesApplied) -> None:
    state.ledger.set_rates(fact.at_ms, fact.card, fact.version)
    recount_meters(state)


def _credit_posted(state: State, fact: f.CreditPosted) -> None:
    _post(state, fact, EntryKind.CREDIT, money_micro=fact.money_micro)


def _usage_corrected(state: State, fact: f.UsageCorrected) -> None:
    fixed = {"fixed_share_milli_ms": fact.share_milli_ms, "fixed_memory_byte_ms": fact.memory_byte_ms}
    _post(state, fact, EntryKind.CORRECTION, queue=fact.queue, model=fact.model, **fixed)


def _post(state: State, fact: f.CreditPosted | f.UsageCorrected, kind: EntryKind, **more: Any) -> None:  # noqa: ANN401 - fields
    more |= {"reference": fact.reference, "note": fact.note}
    state.ledger.post(Entry(state.ledger.next_number, kind, fact.at_ms, fact.at_ms, fact.tenant, **more))


def _use_observed(state: State, fact: f.UseObserved) -> None:
    tenant = fact.tenant or state.leases[fact.lease_id].request.tenant
    day_start_ms = fact.at_ms - fact.at_ms % DAY_MS
    old = state.ledger.observed.get((tenant, day_start_ms), Observed(tenant, day_start_ms=day_start_ms))
    state.ledger.observe(old.plus(fact))


def _budget_crossed(state: State, fact: f.BudgetCrossed) -> None:
    state.ledger.levels[fact.tenant] = (fact.period_start_ms, fact.permille)
    if fact.tenant in state.meters:
        watch_budget(state, fact.tenant, fact.at_ms)


def _books_closed(state: State, fact: f.BooksClosed) -> None:
    close(state.ledger, fact.up_to_ms)


def _usage_folded(state: State, fact: f.UsageFolded) -> None:
    state.ledger.fold(fact.up_to_number)


def _set_rates(state: State, dated: tuple[DatedRates, ...]) -> None:
    state.ledger.prices = PriceHistory(dated)


def _saved_sums(name: str, of: Callable[[State], Folded]) -> Saved:
    return Saved(
        name, tuple[Total, ...], lambda state: totals_of(of(state)), lambda state, saved: put_totals(of(state), saved)
    )


SUBJECT = Subject(
    name="ledger",
    apply=by_kind(
        _rates_applied, _credit_posted, _usage_corrected, _use_observed, _budget_crossed, _books_closed, _usage_folded
    ),
    saves=(
        Saved("rates", tuple[DatedRates, ...], lambda state: state.ledger.prices.dated, _set_rates),
        Saved(
            "entries",
            tuple[Entry, ...],
            lambda state: tuple(state.ledger.entries),
            lambda state, saved: state.ledger.restore(saved),
        ),
        saving.value("next_entry", int, "ledger.next_number", 1),
        _saved_sums("hours", lambda state: state.ledger.hours),
        saving.value("folded_up_to_ms", int, "ledger.folded_up_to_ms", 0),
        saving.value("closed_up_to_ms", int, "ledger.closed_up_to_ms", 0),
        _saved_sums("closed_days", lambda state: state.ledger.closed),
        saving.records("observed", Observed, "ledger.observed", key="tenant day_start_ms"),
        saving.pairs("budget_levels", tuple[int, int], "ledger.levels"),
    ),
)
