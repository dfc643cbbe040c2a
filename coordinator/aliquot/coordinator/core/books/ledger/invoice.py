"""Invoices: what a tenant used in a period, what that costs, and what it has paid.

Amounts are exact fractions until the end: each line is rounded once, half to even, to a millionth of the currency.
Discounts by volume are marginal: each applies to what is used beyond its threshold within the invoice, so that using
more never costs less. Intervals that are still open are charged up to the end of the period; an interval that crosses
a boundary of the period is cut there, so that invoices of adjacent periods add up. The minimum billing period adds to
the invoice in which a slice ended, once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from aliquot.coordinator.core.books.ledger.entries import QUANTITIES, Entry, EntryKind
from aliquot.coordinator.core.books.ledger.folding import DAY_MS, HOUR_MS, NOTHING, Sums
from aliquot.coordinator.core.books.ledger.ledger import Extract
from aliquot.coordinator.core.books.ledger.meters import GIB_HOUR, GPU_HOUR
from aliquot.coordinator.core.books.ledger.rates import PriceHistory, RateCard, Tier
from aliquot.coordinator.core.values.errors import InvalidField, PeriodClosed

MILLI_HOUR = GPU_HOUR // 1000
"""share_milli_ms of a thousandth of a device-hour."""
FOR_EVER_MS = 1 << 62
"""The end of a period that is not over as long as there is a pool."""


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One queue, model and price."""

    queue: str
    model: str
    share_milli_ms: int
    memory_byte_ms: int
    billable_share_milli_ms: int
    """With the minimum billing period."""
    billable_memory_byte_ms: int
    gpu_hour_micro: int
    gib_hour_micro: int
    slices: int
    amount_micro: int
    priced: bool


class Discount(NamedTuple):
    """What a tier that was reached takes off."""

    above_gpu_milli_hours: int
    discount_permille: int
    discount_micro: int


@dataclass(frozen=True, slots=True)
class Invoice:
    """See the module's docstring. Money in millionths of `currency`."""

    invoice_id: str
    tenant: str
    from_ms: int
    to_ms: int
    made_ms: int
    currency: str
    lines: tuple[InvoiceLine, ...]
    subtotal_micro: int
    discounts: tuple[Discount, ...]
    total_micro: int
    paid_micro: int
    """Credits posted within the period."""
    notes: tuple[str, ...]
    observed_busy_milli_ms: int = 0
    """What agents measured on the whole days (UTC) of the period, beside what was reserved: never charged."""
    observed_memory_byte_ms: int = 0
    observed_interval_ms: int = 0
    """Time measured, added up over slices; 0: nothing was."""
    observed_up_bytes: int = 0
    """Likewise, from programs elsewhere to the processes that served their leases."""
    observed_down_bytes: int = 0
    observed_energy_mj: int = 0
    """Likewise, that cards drew for its leases, where they count it."""
    observed_energy_interval_ms: int = 0


_Key = tuple[str, str, int, int, bool]


def check_period(extract: Extract) -> None:
    """Raises InvalidField for no period, PeriodClosed for one that cuts through a closed day."""
    if not 0 <= extract.from_ms < extract.to_ms:
        raise InvalidField("to_ms", "the period must end after it begins")
    for moment in (extract.from_ms, extract.to_ms):
        if moment < extract.folded_up_to_ms and moment % HOUR_MS:
            raise PeriodClosed(
                "the use of that time is known by whole hours (UTC) only",
                hint="let the period begin and end on the hour, or later",
            )
        if moment < extract.closed_up_to_ms and moment % DAY_MS:
            raise PeriodClosed(
                "the books of that time are closed: it is known by whole days (UTC) only",
                hint="let the period begin and end at midnight UTC",
            )


def has_paid(entries: Iterable[Entry]) -> set[str]:
    """The tenants that money was ever posted of."""
    return {entry.tenant for entry in entries if entry.kind is EntryKind.CREDIT}


def balance_micro(extract: Extract) -> int | None:
    """What a tenant has paid less what it owes, over the extract's period: below zero, it owes; None: it never paid."""
    if not has_paid(extract.entries):
        return None
    invoice = make_invoice(extract)
    return invoice.paid_micro - invoice.total_micro


def make_invoice(extract: Extract) -> Invoice:
    """What a tenant owes for the extract's [from_ms, to_ms). Raises InvalidField, PeriodClosed."""
    tenant, prices = extract.tenant, extract.prices
    from_ms, to_ms, now_ms = extract.from_ms, extract.to_ms, extract.now_ms
    check_period(extract)
    sums: dict[_Key, Sums] = {}
    paid, currency = 0, "credits"
    for entry in (*extract.entries, *extract.open_entries):
        part = entry.within(from_ms, to_ms)
        if part is None:
            continue
        if entry.kind is EntryKind.CREDIT:
            paid += entry.money_micro
        else:
            _add_entry(prices, sums, entry, part)
    for (start_ms, queue, model), folded in extract.folded:  # prices never change within a bucket
        _add(sums, _key(prices.at(start_ms), queue, model), folded)
    card = prices.at(min(to_ms, now_ms)) or prices.latest
    lines = _lines(sums)
    subtotal = sum(line.amount_micro for line in lines)
    discounts = _discounts(card.tiers, lines) if card is not None else ()
    total = subtotal - sum(discount for _, _, discount in discounts)
    if card is not None:
        currency = card.currency
    notes = []
    unpriced = sorted({line.model for line in lines if not line.priced})
    if unpriced:
        notes.append(f"no price was declared for {', '.join(unpriced)}: listed, not charged")
    if to_ms > now_ms:
        notes.append("the period is not over: open use is charged up to now")
    return Invoice(
        invoice_id=f"INV-{tenant.replace('/', '.')}-{from_ms}-{to_ms}",
        tenant=tenant,
        from_ms=from_ms,
        to_ms=to_ms,
        made_ms=now_ms,
        currency=currency,
        lines=lines,
        subtotal_micro=subtotal,
        discounts=discounts,
        total_micro=total,
        paid_micro=paid,
        notes=tuple(notes),
        **{f"observed_{name}": sum(int(getattr(day, name)) for day in extract.observed) for name in QUANTITIES},
    )


def _key(card: RateCard | None, queue: str, model: str) -> _Key:
    rate = card.rate_of(model) if card is not None else None
    if rate is None:
        return queue, model, 0, 0, False
    return queue, model, rate.gpu_hour_micro, rate.gib_hour_micro, True


def _add(sums: dict[_Key, Sums], key: _Key, more: Sums) -> None:
    sums[key] = sums.get(key, NOTHING).plus(more)


def _add_entry(prices: PriceHistory, sums: dict[_Key, Sums], entry: Entry, part: Entry) -> None:
    last: _Key | None = None
    for priced, card in prices.cut(part):
        last = _key(card, entry.queue, entry.model)
        used = priced.share_milli_ms, priced.memory_byte_ms
        _add(sums, last, Sums(*used, *used))
    if last is not None and part.to_ms == entry.to_ms and entry.kind is EntryKind.USAGE:
        # An open interval may yet reach the minimum by itself.
        extra_ms = prices.minimum_extra_ms(entry) if entry.number else 0
        _add(sums, last, Sums(0, 0, entry.share_milli * extra_ms, entry.memory_bytes * extra_ms, 1))


def _lines(sums: dict[_Key, Sums]) -> tuple[InvoiceLine, ...]:
    lines = []
    for (queue, model, gpu_hour, gib_hour, priced), row in sorted(sums.items()):
        amount = Fraction(row.billable_share_milli_ms * gpu_hour, GPU_HOUR)
        amount += Fraction(row.billable_memory_byte_ms * gib_hour, GIB_HOUR)
        lines.append(
            InvoiceLine(
                queue=queue,
                model=model,
                gpu_hour_micro=gpu_hour,
                gib_hour_micro=gib_hour,
                amount_micro=round(amount),
                priced=priced,
                **row._asdict(),
            )
        )
    return tuple(lines)


def _discounts(tiers: tuple[Tier, ...], lines: Iterable[InvoiceLine]) -> tuple[Discount, ...]:
    """What each tier takes off: its rate, on its part of the whole, at the average price of what was used."""
    lines = list(lines)
    volume = sum(line.billable_share_milli_ms for line in lines if line.priced)
    cost = sum(line.amount_micro for line in lines)
    if volume <= 0:
        return ()
    found = []
    for number, tier in enumerate(tiers):
        low = tier.above_gpu_milli_hours * MILLI_HOUR
        high = tiers[number + 1].above_gpu_milli_hours * MILLI_HOUR if number + 1 < len(tiers) else volume
        within = min(volume, high) - low
        if within > 0:
            discount = round(Fraction(cost * within * tier.discount_permille, volume * 1000))
            found.append(Discount(tier.above_gpu_milli_hours, tier.discount_permille, discount))
    return tuple(found)
