"""How much of its budget a tenant has used up in the present period: known at any moment, without adding anything up.

Use grows in a straight line between two events, so a sum, a slope and the time of the last event say everything, also
when a bound will be reached. Meters exist only for tenants that have a budget; they are an index, rebuilt from the
entries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from aliquot.coordinator.core.books.ledger.entries import Entry
from aliquot.coordinator.core.books.ledger.folding import Bucket, Sums
from aliquot.coordinator.core.books.ledger.rates import PriceHistory, RateCard
from aliquot.coordinator.core.books.tenancy.specs import Budget

GPU_HOUR = 1000 * 3_600_000
"""share_milli_ms of a device-hour."""
GIB_HOUR = (1 << 30) * 3_600_000
"""memory_byte_ms of a GiB-hour."""
MONEY_SCALE = GPU_HOUR * (1 << 30)
"""Money is summed in 1/MONEY_SCALE of a micro: a common multiple of both denominators, so that nothing is rounded."""
ALERT_PERMILLE = (800, 1000)


def money_slope(card: RateCard | None, model: str, share_milli: int, memory_bytes: int) -> int:
    """Cost per millisecond of holding so much, or of so much times milliseconds, in 1/MONEY_SCALE of a micro. 0 where
    there is no price.
    """
    rate = card.rate_of(model) if card is not None else None
    if rate is None:
        return 0
    by_share = share_milli * rate.gpu_hour_micro * (MONEY_SCALE // GPU_HOUR)
    return by_share + memory_bytes * rate.gib_hour_micro * (MONEY_SCALE // GIB_HOUR)


@dataclass(slots=True)
class Meter:
    """One tenant's period so far."""

    budget: Budget
    period_start_ms: int
    at_ms: int
    share_milli_ms: int = 0
    money: int = 0
    """In 1/MONEY_SCALE of a micro, at list price."""
    share_slope: int = 0
    money_slope: int = 0
    armed_ms: int = 0
    """When the earliest look at it is due."""

    def accrue(self, at_ms: int) -> None:
        """Add what was used since; a new period starts from nothing."""
        if at_ms > self.at_ms:
            self.share_milli_ms, self.money = self.used(at_ms)
            self.at_ms, self.period_start_ms = at_ms, at_ms - at_ms % self.budget.period.length_ms

    def used(self, now_ms: int) -> tuple[int, int]:
        """(share_milli_ms, money) in the period of `now_ms`; changes nothing."""
        length_ms = self.budget.period.length_ms
        start_ms = now_ms - now_ms % length_ms
        if start_ms > self.period_start_ms:
            return self.share_slope * (now_ms - start_ms), self.money_slope * (now_ms - start_ms)
        elapsed_ms = max(0, now_ms - self.at_ms)
        return self.share_milli_ms + self.share_slope * elapsed_ms, self.money + self.money_slope * elapsed_ms

    def permille(self, now_ms: int) -> int:
        """How much of the budget is used up, in thousandths: of GPU time or of money, whichever is more."""
        share, money = self.used(now_ms)
        found = 0
        if self.budget.share_milli_ms:
            found = share * 1000 // self.budget.share_milli_ms
        if self.budget.money_micro:
            found = max(found, money * 1000 // (self.budget.money_micro * MONEY_SCALE))
        return found

    def reaches_ms(self, permille: int, now_ms: int) -> int | None:
        """When it will have used up so much, at the present pace; None: not within this period."""
        share, money = self.used(now_ms)
        times = []
        for bound, used, slope in (
            (self.budget.share_milli_ms, share, self.share_slope),
            (self.budget.money_micro * MONEY_SCALE, money, self.money_slope),
        ):
            wanted = -(-bound * permille // 1000)
            if bound and used >= wanted:
                return now_ms
            if bound and slope:
                times.append(now_ms + -(-(wanted - used) // slope))
        end_ms = self.period_end_ms(now_ms)
        return min((time for time in times if time < end_ms), default=None)

    def period_end_ms(self, now_ms: int) -> int:
        """When the next period begins."""
        length_ms = self.budget.period.length_ms
        return now_ms - now_ms % length_ms + length_ms


def meter_of(
    budget: Budget,
    priced: Iterable[tuple[Entry, RateCard | None]],
    folded: Iterable[tuple[Bucket, Sums]],
    prices: PriceHistory,
    now_ms: int,
) -> Meter:
    """A meter from the entries of a tenant (cut where prices changed) and its sums by hour and day, without its slopes.
    Periods begin and end where hours do, and longer ones where days do.
    """
    start_ms = now_ms - now_ms % budget.period.length_ms
    meter = Meter(budget, start_ms, now_ms)
    for entry, card in priced:
        part = entry.within(start_ms, now_ms)
        if part is not None and part.to_ms > part.from_ms:
            meter.share_milli_ms += part.share_milli_ms
            slope = money_slope(card, part.model, part.share_milli, part.memory_bytes)
            meter.money += slope * (part.to_ms - part.from_ms)
    for (from_ms, _, model), sums in folded:
        if from_ms >= start_ms:
            meter.share_milli_ms += sums.share_milli_ms
            meter.money += money_slope(prices.at(from_ms), model, sums.share_milli_ms, sums.memory_byte_ms)
    return meter
