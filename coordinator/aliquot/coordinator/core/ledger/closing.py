"""Closing the books: the usage of days long gone becomes exact sums for each day.

What is folded by the hour is added up by the day (and where prices changed within it, by each of them); entries that
ended before the closing moment are folded first. Entries that end after it stay as they are, whole.
"""

from __future__ import annotations

from aliquot.coordinator.core.ledger.books import Ledger
from aliquot.coordinator.core.ledger.entries import EntryKind
from aliquot.coordinator.core.ledger.folding import Sums, day_of, day_total, sums_of


def close(ledger: Ledger, up_to_ms: int) -> None:
    """Replace what is known of the usage before `up_to_ms`, a midnight (UTC), by sums for each day."""
    last = 0
    for entry in ledger.entries:
        if entry.to_ms > up_to_ms:
            break
        if entry.kind is EntryKind.USAGE:
            last = entry.number
    ledger.fold(last)
    days: dict[tuple[int, str, str, str], Sums] = {}
    for tenant, buckets in list(ledger.hours.items()):
        for bucket in [bucket for bucket in buckets if bucket[0] < up_to_ms]:
            from_ms, queue, model = bucket
            key = (day_of(from_ms, ledger.prices), tenant, queue, model)
            days[key] = days.get(key, Sums()).plus(buckets.pop(bucket))
        if not buckets:
            del ledger.hours[tenant]
    for key, sums in days.items():
        known = ledger.closed.get(key)
        ledger.closed[key] = day_total(*key, sums.plus(sums_of(known)) if known is not None else sums)
    ledger.closed_up_to_ms = up_to_ms
    ledger.note(lambda copy: close(copy, up_to_ms))
