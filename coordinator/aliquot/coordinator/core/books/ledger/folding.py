"""Usage as exact sums for each hour or day, so that memory does not grow with the number of leases.

An entry is cut where an hour ends (UTC) and where prices change, and each part is added to the sum of its hour, price,
tenant, queue and model: in integers, so only the lease is lost. What the minimum billing period adds, and the count, go
where the entry ends. An invoice whose period cuts no such sum does not change.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import add
from typing import NamedTuple

from msgspec.structs import astuple

from aliquot.coordinator.core.books.ledger.entries import Entry, Total
from aliquot.coordinator.core.books.ledger.rates import PriceHistory

HOUR_MS = 3_600_000
DAY_MS = 86_400_000

Bucket = tuple[int, str, str]
"""(beginning of the hour, or day, or of the prices that began to hold within it; queue; model)."""


class Sums(NamedTuple):
    """What was used, in thousandths and bytes times milliseconds; immutable, so that invoices may keep it."""

    share_milli_ms: int = 0
    memory_byte_ms: int = 0
    billable_share_milli_ms: int = 0
    """With the minimum billing period applied to each slice."""
    billable_memory_byte_ms: int = 0
    slices: int = 0
    """Those that ended here."""

    def plus(self, other: Sums) -> Sums:
        """Both together."""
        return Sums(*map(add, self, other))


Folded = dict[str, dict[Bucket, Sums]]
"""By tenant."""
NOTHING = Sums()


def fold(folded: Folded, entry: Entry, prices: PriceHistory) -> None:
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
            late = entry.share_milli * late_ms, entry.memory_bytes * late_ms
            put(folded, entry.tenant, key, Sums(share, memory, share + late[0], memory + late[1], int(last)))
            start = end


def day_of(from_ms: int, prices: PriceHistory) -> int:
    """Where the day begins, or its last price change before this hour, to which an hour's sum is added at closing."""
    return max(from_ms - from_ms % DAY_MS, prices.since_ms(from_ms))


def put(into: Folded, tenant: str, bucket: Bucket, sums: Sums) -> None:
    """Add so much to a tenant's sums."""
    buckets = into.setdefault(tenant, {})
    buckets[bucket] = buckets.get(bucket, NOTHING).plus(sums)


def totals_of(folded: Folded) -> tuple[Total, ...]:
    """As snapshots have them: sorted."""
    return tuple(
        Total(*bucket[:1], tenant, *bucket[1:], *_decimals(sums), sums.slices)
        for tenant, buckets in sorted(folded.items())
        for bucket, sums in sorted(buckets.items())
    )


def put_totals(into: Folded, totals: Iterable[Total]) -> None:
    """As a snapshot has them."""
    for total in totals:
        _, _, _, _, *amounts = astuple(total)
        put(into, total.tenant, (total.from_ms, total.queue, total.model), Sums(*map(int, amounts)))


def _decimals(sums: Sums) -> tuple[str, str, str, str]:
    share, memory, billable_share, billable_memory = map(str, sums[:4])
    return share, memory, billable_share, billable_memory
