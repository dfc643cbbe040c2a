"""Usage as exact sums for each hour or day, so that memory does not grow with the number of leases.

An entry is cut where an hour ends (UTC) and where prices change, and each part is added to the sum of its hour, price,
tenant, queue and model: in integers, so only the lease is lost. What the minimum billing period adds, and the count, go
where the entry ends. An invoice whose period cuts no such sum does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aliquot.coordinator.core.books.ledger.entries import DayTotal, Entry, HourTotal
from aliquot.coordinator.core.books.ledger.rates import PriceHistory

HOUR_MS = 3_600_000
DAY_MS = 86_400_000

Bucket = tuple[int, str, str]
"""(beginning of the hour, or day, or of the prices that began to hold within it; queue; model)."""


class Sums(NamedTuple):
    """What was used, in thousandths and bytes times milliseconds; immutable, so that invoices may keep it."""

    share: int = 0
    memory: int = 0
    billable_share: int = 0
    """With the minimum billing period applied to each slice."""
    billable_memory: int = 0
    slices: int = 0
    """Those that ended here."""

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(
            self.share + other.share,
            self.memory + other.memory,
            self.billable_share + other.billable_share,
            self.billable_memory + other.billable_memory,
            self.slices + other.slices,
        )


NOTHING = Sums()


def fold(buckets: dict[Bucket, Sums], entry: Entry, prices: PriceHistory) -> None:
    """Add an entry of usage to its tenant's sums."""
    extra_ms = prices.minimum_extra_ms(entry)
    for part, _ in prices.cut(entry):
        start = part.from_ms
        since_ms = prices.since_ms(start)
        while start < part.to_ms:
            hour_ms = start - start % HOUR_MS
            end = min(part.to_ms, hour_ms + HOUR_MS)
            share, memory = entry.share_milli * (end - start), entry.memory_bytes * (end - start)
            last = end == entry.to_ms
            late_ms = extra_ms if last else 0
            key = (max(hour_ms, since_ms), entry.queue, entry.model)
            buckets[key] = buckets.get(key, NOTHING).plus(
                Sums(
                    share, memory, share + entry.share_milli * late_ms, memory + entry.memory_bytes * late_ms, int(last)
                )
            )
            start = end


def day_of(from_ms: int, prices: PriceHistory) -> int:
    """Where the day begins, or its last price change before this hour, to which an hour's sum is added at closing."""
    return max(from_ms - from_ms % DAY_MS, prices.since_ms(from_ms))


def hour_totals(hours: dict[str, dict[Bucket, Sums]]) -> Iterator[HourTotal]:
    """As snapshots have them: sorted, and with decimals, because these quantities know no bound."""
    for tenant, buckets in sorted(hours.items()):
        for (from_ms, queue, model), sums in sorted(buckets.items()):
            yield HourTotal(from_ms, tenant, queue, model, *_decimals(sums), sums.slices)


def hours_from(totals: Iterable[HourTotal]) -> dict[str, dict[Bucket, Sums]]:
    """As a snapshot has them."""
    hours: dict[str, dict[Bucket, Sums]] = {}
    for total in totals:
        hours.setdefault(total.tenant, {})[total.from_ms, total.queue, total.model] = sums_of(total)
    return hours


def sums_of(total: HourTotal | DayTotal) -> Sums:
    """The numbers of a total."""
    return Sums(
        int(total.share_milli_ms),
        int(total.memory_byte_ms),
        int(total.billable_share_milli_ms),
        int(total.billable_memory_byte_ms),
        total.entries,
    )


def day_total(day_start_ms: int, tenant: str, queue: str, model: str, sums: Sums) -> DayTotal:
    """A closed day."""
    return DayTotal(day_start_ms, tenant, queue, model, *_decimals(sums), sums.slices)


def _decimals(sums: Sums) -> tuple[str, str, str, str]:
    return str(sums.share), str(sums.memory), str(sums.billable_share), str(sums.billable_memory)
