"""How entries that people and agents cause change the ledger. Those of leases come from `counting`."""

from __future__ import annotations

from aliquot.coordinator.core.books.ledger import facts as f
from aliquot.coordinator.core.books.ledger.entries import DayTotal, Entry, EntryKind, HourTotal, Observed
from aliquot.coordinator.core.books.ledger.folding import DAY_MS, hour_totals, hours_from
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
    state.ledger.post(
        Entry(
            number=state.ledger.next_number,
            kind=EntryKind.CREDIT,
            from_ms=fact.at_ms,
            to_ms=fact.at_ms,
            tenant=fact.tenant,
            money_micro=fact.money_micro,
            reference=fact.reference,
            note=fact.note,
        )
    )


def _usage_corrected(state: State, fact: f.UsageCorrected) -> None:
    state.ledger.post(
        Entry(
            number=state.ledger.next_number,
            kind=EntryKind.CORRECTION,
            from_ms=fact.at_ms,
            to_ms=fact.at_ms,
            tenant=fact.tenant,
            queue=fact.queue,
            model=fact.model,
            fixed_share_milli_ms=fact.share_milli_ms,
            fixed_memory_byte_ms=fact.memory_byte_ms,
            reference=fact.reference,
            note=fact.note,
        )
    )


def _use_observed(state: State, fact: f.UseObserved) -> None:
    tenant = fact.tenant or state.leases[fact.lease_id].request.tenant
    day_start_ms = fact.at_ms - fact.at_ms % DAY_MS
    old = state.ledger.observed.get((tenant, day_start_ms), Observed(tenant))
    state.ledger.observe(
        Observed(
            tenant,
            str(int(old.busy_milli_ms) + int(fact.busy_milli_ms)),
            str(int(old.memory_byte_ms) + int(fact.memory_byte_ms)),
            old.interval_ms + fact.interval_ms,
            day_start_ms,
            str(int(old.up_bytes) + int(fact.up_bytes)),
            str(int(old.down_bytes) + int(fact.down_bytes)),
        )
    )


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
        Saved(
            "hours",
            tuple[HourTotal, ...],
            lambda state: tuple(hour_totals(state.ledger.hours)),
            lambda state, saved: state.ledger.hours.update(hours_from(saved)),
        ),
        saving.value("folded_up_to_ms", int, "ledger.folded_up_to_ms", 0),
        saving.value("closed_up_to_ms", int, "ledger.closed_up_to_ms", 0),
        saving.records("closed_days", DayTotal, "ledger.closed", key="day_start_ms tenant queue model"),
        saving.records("observed", Observed, "ledger.observed", key="tenant day_start_ms"),
        saving.pairs("budget_levels", tuple[int, int], "ledger.levels"),
    ),
)
