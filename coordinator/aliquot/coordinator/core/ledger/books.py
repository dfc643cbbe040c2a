"""The ledger's books: entries in the order in which they were made, prices, credits and closed days.

Intervals that are still being charged are not entries yet: they stand on the slices (`billed_from_ms`), and whoever
asks for the usage up to some moment adds them up to that moment. So nothing has to tick for the books to be exact at
any cut.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from aliquot.coordinator.core.errors import BrokenInvariant
from aliquot.coordinator.core.leases import Lease, Slice, SliceState
from aliquot.coordinator.core.ledger.entries import DayTotal, Entry, EntryKind, Observed
from aliquot.coordinator.core.ledger.rates import DatedRates, PriceHistory, RateCard

DAY_MS = 86_400_000

CHARGED = frozenset({SliceState.ACTIVE, SliceState.PREEMPTING, SliceState.RELEASING})
"""States whose time is charged, once a slice has been confirmed. UNREACHABLE is not: the pool can't vouch for it."""


class Ledger:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.next_number = 1
        self.prices = PriceHistory()
        self.closed: dict[tuple[int, str, str, str], DayTotal] = {}
        self.closed_up_to_ms = 0
        self.observed: dict[tuple[str, int], Observed] = {}
        """By tenant and the beginning of the day."""
        self.levels: dict[str, tuple[int, int]] = {}
        """Tenant -> (start of the period, permille of the budget that was last reported)."""
        self.by_tenant: dict[str, list[Entry]] = {}
        self.references: set[str] = set()

    # -- writing

    def post(self, entry: Entry) -> None:
        """Append an entry. BrokenInvariant if its number is not the next."""
        if entry.number != self.next_number:
            raise BrokenInvariant(f"entry {entry.number} follows entry {self.next_number - 1}")
        self.next_number += 1
        self._index(entry)

    def restore(self, entries: Iterable[Entry]) -> None:
        """Entries as a snapshot has them."""
        for entry in entries:
            self._index(entry)

    def _index(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.by_tenant.setdefault(entry.tenant, []).append(entry)
        if entry.reference:
            self.references.add(entry.reference)

    def post_usage(self, lease: Lease, piece: Slice, queue: str, to_ms: int) -> None:
        """A slice's charged interval is over."""
        self.post(usage_entry(self.next_number, lease, piece, queue, to_ms))

    def set_rates(self, at_ms: int, card: RateCard, version: int) -> None:
        """Prices that hold from this moment."""
        self.prices = PriceHistory((*self.prices.dated, DatedRates(at_ms, card, version)))

    def close(self, up_to_ms: int, totals: Iterable[DayTotal]) -> None:
        """Replace the usage entries that ended before `up_to_ms` by their sums."""
        for total in totals:
            self.closed[total.day_start_ms, total.tenant, total.queue, total.model] = total
        kept = [e for e in self.entries if e.kind is not EntryKind.USAGE or e.to_ms > up_to_ms]
        self.entries, self.by_tenant = [], {}
        self.restore(kept)
        self.closed_up_to_ms = up_to_ms

    # -- reading

    def extract(self, tenant: str, open_now: Iterable[Entry], from_ms: int, to_ms: int, now_ms: int) -> Extract:
        """All that concerns a tenant in [from, to): cheap to take, and true for ever. Raises nothing."""
        entries = self.by_tenant.get(tenant, [])
        first = bisect_left(entries, from_ms, key=_ended)  # they end in the order in which they were made
        return Extract(
            tenant=tenant,
            from_ms=from_ms,
            to_ms=to_ms,
            now_ms=now_ms,
            entries=tuple(entries[first:]),
            open_entries=tuple(entry for entry in open_now if entry.tenant == tenant),
            closed=tuple(t for t in self.closed.values() if t.tenant == tenant and from_ms <= t.day_start_ms < to_ms),
            closed_up_to_ms=self.closed_up_to_ms,
            prices=self.prices,
            observed=tuple(
                day
                for (name, start_ms), day in self.observed.items()
                if name == tenant and from_ms <= start_ms and min(start_ms + DAY_MS, now_ms) <= to_ms
            ),
        )


def _ended(entry: Entry) -> int:
    return entry.to_ms


class Extract(NamedTuple):
    """What an invoice is made from; immutable, so that making it never holds up the writer."""

    tenant: str
    from_ms: int
    to_ms: int
    now_ms: int
    entries: tuple[Entry, ...]
    open_entries: tuple[Entry, ...]
    closed: tuple[DayTotal, ...]
    closed_up_to_ms: int
    prices: PriceHistory
    observed: tuple[Observed, ...] = ()
    """Of the whole days (UTC) within the period, and of today if it is over with today."""


def usage_entry(number: int, lease: Lease, piece: Slice, queue: str, to_ms: int) -> Entry:
    """What a slice has used since its charged interval began, up to `to_ms`."""
    return Entry(
        number=number,
        kind=EntryKind.USAGE,
        from_ms=piece.billed_from_ms,
        to_ms=to_ms,
        tenant=lease.request.tenant,
        queue=queue,
        model=piece.model,
        lease_id=lease.lease_id,
        slice_id=piece.slice_id,
        share_milli=piece.plan.share_milli,
        memory_bytes=piece.plan.memory_bytes,
    )


def open_entries(leases: Iterable[Lease], queue_of: Callable[[Lease], str], now_ms: int) -> Iterator[Entry]:
    """What is being charged right now, as if it ended now. Numbered 0: these are no entries yet."""
    for lease in leases:
        for piece in lease.slices:
            if piece.billed_from_ms and piece.billed_from_ms < now_ms:
                yield usage_entry(0, lease, piece, queue_of(lease), now_ms)
