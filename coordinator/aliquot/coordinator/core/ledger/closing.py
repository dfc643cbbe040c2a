"""Closing the books: entries of days long gone are replaced by exact sums for each day, so that memory stays bounded.

An entry that spans midnight is cut there. The minimum billing period is applied to whole entries, and what it adds is
put on the day on which the entry ended. Entries that end after the closing moment stay as they are, whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from aliquot.coordinator.core.ledger.books import DAY_MS, Ledger
from aliquot.coordinator.core.ledger.entries import DayTotal, Entry, EntryKind


def by_day(entry: Entry) -> Iterator[Entry]:
    """An entry cut at each midnight (UTC)."""
    start = entry.from_ms
    while start < entry.to_ms:
        end = min(entry.to_ms, start - start % DAY_MS + DAY_MS)
        part = entry.within(start, end)
        assert part is not None
        yield part
        start = end


def day_totals(ledger: Ledger, up_to_ms: int) -> list[DayTotal]:
    """The sums by which the entries that ended before `up_to_ms` are replaced."""
    sums: dict[tuple[int, str, str, str], list[int]] = {}
    for key, total in ledger.closed.items():
        sums[key] = [
            int(total.share_milli_ms),
            int(total.memory_byte_ms),
            int(total.billable_share_milli_ms),
            int(total.billable_memory_byte_ms),
            total.entries,
        ]
    for entry in ledger.entries:
        if entry.kind is not EntryKind.USAGE or entry.to_ms > up_to_ms:
            continue
        key = (0, "", "", "")
        for part in by_day(entry):
            day_ms = part.from_ms - part.from_ms % DAY_MS
            key = (day_ms, entry.tenant, entry.queue, entry.model)
            row = sums.setdefault(key, [0] * 5)
            for position, amount in enumerate((part.share_milli_ms, part.memory_byte_ms)):
                row[position] += amount
                row[position + 2] += amount
        extra_ms = ledger.prices.minimum_extra_ms(entry)
        sums[key][2] += entry.share_milli * extra_ms
        sums[key][3] += entry.memory_bytes * extra_ms
        sums[key][4] += 1
    return [
        DayTotal(*key, str(row[0]), str(row[1]), str(row[2]), str(row[3]), row[4]) for key, row in sorted(sums.items())
    ]
