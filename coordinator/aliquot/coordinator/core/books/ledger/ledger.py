"""The ledger's books: entries in the order in which they were made, prices, credits, folded hours and closed days.

The latest usage is kept entry by entry; what is older as sums for each hour, then for each day (`folding`, `closing`).
Credits and corrections are kept for ever: people make them, and their references must never be used again.

Intervals that are still being charged are no entries yet: they stand on the slices (`billed_from_ms`), and are added up
to the moment that is asked for. So the books are exact at any moment without a clock that ticks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState
from aliquot.coordinator.core.books.ledger.entries import Entry, EntryKind, Observed
from aliquot.coordinator.core.books.ledger.folding import DAY_MS, Bucket, Folded, Sums, day_of, fold, put
from aliquot.coordinator.core.books.ledger.rates import DatedRates, PriceHistory, RateCard
from aliquot.coordinator.core.values.errors import BrokenInvariant

CHARGED = frozenset({SliceState.ACTIVE, SliceState.PREEMPTING, SliceState.RELEASING})
"""States whose time is charged, once a slice has been confirmed. UNREACHABLE is not: the pool can't vouch for it."""


class Ledger:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.next_number = 1
        self.prices = PriceHistory()
        self.hours: Folded = {}
        self.folded_up_to_ms = 0
        """No entry of usage that was folded ended after this moment."""
        self.closed: Folded = {}
        """By the day."""
        self.closed_up_to_ms = 0
        self.observed: dict[tuple[str, int], Observed] = {}
        """By tenant and the beginning of the day."""
        self.levels: dict[str, tuple[int, int]] = {}
        """Tenant -> (start of the period, permille of the budget that was last reported)."""
        self.by_tenant: dict[str, list[Entry]] = {}
        self.usage_entries = 0
        """How many of the entries are usage that is not folded."""
        self.references: set[str] = set()
        self._done: list[Change] | None = None
        """What was done since `take_changes`; None while nobody follows."""
        self.repriced = False
        """Whether prices have changed since."""

    # -- writing

    def post(self, entry: Entry) -> None:
        """Append an entry. BrokenInvariant if its number is not the next."""
        if entry.number != self.next_number:
            raise BrokenInvariant(f"entry {entry.number} follows entry {self.next_number - 1}")
        self.next_number += 1
        self._index(entry)
        self.note(lambda copy: copy.post(entry))

    def restore(self, entries: Iterable[Entry]) -> None:
        """Entries as a snapshot has them."""
        for entry in entries:
            self._index(entry)

    def _index(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.by_tenant.setdefault(entry.tenant, []).append(entry)
        self.usage_entries += entry.kind is EntryKind.USAGE
        if entry.reference:
            self.references.add(entry.reference)

    def post_usage(self, lease: Lease, piece: Slice, queue: str, to_ms: int) -> None:
        """A slice's charged interval is over."""
        self.post(usage_entry(self.next_number, lease, piece, queue, to_ms))

    def set_rates(self, at_ms: int, card: RateCard, version: int) -> None:
        """Prices that hold from this moment."""
        self.prices = PriceHistory((*self.prices.dated, DatedRates(at_ms, card, version)))
        self.repriced = True
        self.note(lambda copy: copy.set_rates(at_ms, card, version))

    def observe(self, day: Observed) -> None:
        """Replace what was measured of a tenant's use on a day."""
        self.observed[day.tenant, day.day_start_ms] = day
        self.note(lambda copy: copy.observe(day))

    def nth_usage(self, count: int) -> int:
        """The number of the `count`-th entry of usage, the oldest first; 0: there are fewer."""
        for entry in self.entries:
            count -= entry.kind is EntryKind.USAGE
            if not count:
                return entry.number
        return 0

    def fold(self, up_to_number: int) -> None:
        """Replace the entries of usage up to this number by sums for each hour."""
        sums: Folded = {}
        for entry in self.entries[: bisect_right(self.entries, up_to_number, key=attrgetter("number"))]:
            if entry.kind is EntryKind.USAGE:
                fold(sums, entry, self.prices)
        self.replace(up_to_number, sums)

    def replace(self, up_to_number: int, sums: Folded) -> None:
        """Replace the entries of usage up to this number by their sums, which a copy need not add up again."""
        folded = [entry for entry in _cut_out(self.entries, up_to_number) if entry.kind is EntryKind.USAGE]
        for tenant, buckets in sums.items():
            for bucket, more in buckets.items():
                put(self.hours, tenant, bucket, more)
        for tenant in dict.fromkeys(entry.tenant for entry in folded):
            entries = self.by_tenant[tenant]
            _cut_out(entries, up_to_number)
            if not entries:
                del self.by_tenant[tenant]
        self.usage_entries -= len(folded)
        if folded:
            self.folded_up_to_ms = max(self.folded_up_to_ms, folded[-1].to_ms)
        self.note(lambda copy: copy.replace(up_to_number, sums))

    # -- for copies

    def note(self, change: Change) -> None:
        """Remember a change for copies that follow."""
        if self._done is not None:
            self._done.append(change)

    def take_changes(self, *, whole: bool = False) -> tuple[Change, ...]:
        """The changes since the last call: applied to a copy in order, they make it equal. The first time, and with
        `whole`, they make any ledger a copy.
        """
        done, self._done, self.repriced = self._done, [], False
        if done is None or whole:
            entries = tuple(self.entries)
            hours, closed = (
                {tenant: dict(buckets) for tenant, buckets in folded.items()} for folded in (self.hours, self.closed)
            )
            observed = dict(self.observed)
            sums = (self.next_number, self.prices, self.folded_up_to_ms, self.closed_up_to_ms)
            return (lambda copy: copy.become(entries, hours, closed, observed, sums),)
        return tuple(done)

    def become(
        self,
        entries: tuple[Entry, ...],
        hours: Folded,
        closed: Folded,
        observed: dict[tuple[str, int], Observed],
        rest: tuple[int, PriceHistory, int, int],
    ) -> None:
        """Become a copy of another; see `take_changes`."""
        self.entries, self.by_tenant, self.references, self.usage_entries = [], {}, set(), 0
        self.restore(entries)
        self.hours, self.closed, self.observed = hours, closed, observed
        self.next_number, self.prices, self.folded_up_to_ms, self.closed_up_to_ms = rest

    # -- reading

    def posted(self, reference: str) -> Entry | None:
        """The credit or correction that was posted with this reference."""
        if reference not in self.references:
            return None
        return next(entry for entry in self.entries if entry.reference == reference)

    def folded(self, since_ms: int = 0) -> dict[str, list[tuple[Bucket, Sums]]]:
        """All sums of each tenant, by the hour and by the day, that begin at this moment or later."""
        found: dict[str, list[tuple[Bucket, Sums]]] = {}
        for tenant, buckets in (*self.hours.items(), *self.closed.items()):
            found.setdefault(tenant, []).extend(pair for pair in buckets.items() if pair[0][0] >= since_ms)
        return found

    def extract(self, tenant: str, open_now: Iterable[Entry], from_ms: int, to_ms: int, now_ms: int) -> Extract:
        """All that concerns a tenant in [from, to): cheap and immutable. Raises nothing."""
        entries = self.by_tenant.get(tenant, [])
        first = bisect_left(entries, from_ms, key=attrgetter("to_ms"))  # they end in the order in which they were made
        return Extract(
            tenant=tenant,
            from_ms=from_ms,
            to_ms=to_ms,
            now_ms=now_ms,
            entries=tuple(entries[first:]),
            open_entries=tuple(entry for entry in open_now if entry.tenant == tenant),
            folded=tuple(
                pair
                for folded in (self.hours, self.closed)
                for pair in folded.get(tenant, {}).items()
                if from_ms <= pair[0][0] < to_ms
            ),
            folded_up_to_ms=self.folded_up_to_ms,
            closed_up_to_ms=self.closed_up_to_ms,
            prices=self.prices,
            observed=tuple(
                day
                for (name, start_ms), day in self.observed.items()
                if name == tenant and from_ms <= start_ms and min(start_ms + DAY_MS, now_ms) <= to_ms
            ),
        )


Change = Callable[[Ledger], None]
"""A change of a ledger, to be applied to a copy."""


def _cut_out(entries: list[Entry], up_to_number: int) -> list[Entry]:
    """Take the usage up to this number out; returns everything up to there, as it was."""
    count = bisect_right(entries, up_to_number, key=attrgetter("number"))
    head = entries[:count]
    entries[:count] = [entry for entry in head if entry.kind is not EntryKind.USAGE]
    return head


class Extract(NamedTuple):
    """What an invoice is made from; immutable, so that it can be made while the books go on."""

    tenant: str
    from_ms: int
    to_ms: int
    now_ms: int
    entries: tuple[Entry, ...]
    open_entries: tuple[Entry, ...]
    folded: tuple[tuple[Bucket, Sums], ...]
    """By the hour, and by the day."""
    folded_up_to_ms: int
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


# --------------------
# Closing the books: the usage of days long gone becomes exact sums for each day. What is folded by the hour is
# added up by the day (and where prices changed within it, by each of them); entries that ended before the closing
# moment are folded first. Entries that end after it stay as they are, whole.


def close(ledger: Ledger, up_to_ms: int) -> None:
    """Replace what is known of the usage before `up_to_ms`, a midnight (UTC), by sums for each day."""
    last = 0
    for entry in ledger.entries:
        if entry.to_ms > up_to_ms:
            break
        if entry.kind is EntryKind.USAGE:
            last = entry.number
    ledger.fold(last)
    for tenant, buckets in list(ledger.hours.items()):
        for bucket in [bucket for bucket in buckets if bucket[0] < up_to_ms]:
            from_ms, queue, model = bucket
            put(ledger.closed, tenant, (day_of(from_ms, ledger.prices), queue, model), buckets.pop(bucket))
        if not buckets:
            del ledger.hours[tenant]
    ledger.closed_up_to_ms = up_to_ms
    ledger.note(lambda copy: close(copy, up_to_ms))
