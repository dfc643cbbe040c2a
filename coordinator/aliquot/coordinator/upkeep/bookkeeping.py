"""Closes the books of past days, so that the ledger in memory does not grow without bound, and follows balances.

A lease that has ended leaves an entry in the ledger for each of its slices. Beyond a number of them they become sums
for each hour by themselves (`core.ledger.folding`); once old enough, sums for each day (`core.ledger.closing`), exactly
as when an administrator closes the books by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.common.gauges import LABELS_MAX, Metric, gauges_by
from aliquot.coordinator.core.books.ledger.entries import EntryKind
from aliquot.coordinator.core.books.ledger.folding import DAY_MS
from aliquot.coordinator.core.books.ledger.invoice import FOR_EVER_MS, balance_micro, has_paid
from aliquot.coordinator.core.books.ledger.ledger import Ledger
from aliquot.coordinator.core.commands import CloseBooks
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.writing.writer import Writer

_EVERY_S = 3600.0
_BALANCES_EVERY_S = 60.0


async def close_books(writer: Writer, clock: Clock, *, keep_days: int) -> None:
    """Once an hour, until cancelled. What can't be done now is done the next time."""
    while True:
        up_to_ms = closable_ms(clock.now_ms(), keep_days)
        if writer.state is not None and is_worth_closing(writer.state.ledger, up_to_ms):
            with contextlib.suppress(AliquotError):
                await writer.submit(CloseBooks(up_to_ms))
        await asyncio.sleep(_EVERY_S)


def closable_ms(now_ms: int, keep_days: int) -> int:
    """The midnight (UTC) up to which books can be closed when that many whole days are kept."""
    return max(0, now_ms - now_ms % DAY_MS - keep_days * DAY_MS)


def is_worth_closing(ledger: Ledger, up_to_ms: int) -> bool:
    """Whether there is usage of so long ago. Entries are in the order of their ends."""
    oldest = next((entry for entry in ledger.entries if entry.kind is EntryKind.USAGE), None)
    if oldest is not None and oldest.to_ms <= up_to_ms:
        return True
    return any(bucket[0] < up_to_ms for buckets in ledger.hours.values() for bucket in buckets)


class Balances:
    """What tenants that pay in advance have left, added up again now and then: too much work for a scrape."""

    def __init__(self, view: View, clock: Clock) -> None:
        self._view = view
        self._clock = clock
        self._latest: dict[str, int] = {}

    async def follow(self) -> None:
        """For as long as the coordinator leads. One tenant after the other, each in a thread."""
        while True:
            tenants = await asyncio.to_thread(has_paid, list(self._view.books.ledger.entries))
            for tenant in sorted(tenants)[:LABELS_MAX]:
                extract = self._view.extract(tenant, 0, FOR_EVER_MS, self._clock.now_ms())
                if (balance := await asyncio.to_thread(balance_micro, extract)) is not None:
                    self._latest[tenant] = balance
            await asyncio.sleep(_BALANCES_EVERY_S)

    def collect(self) -> Iterator[Metric]:
        """As last added up; on any thread."""
        yield gauges_by(
            ["tenant"],
            "aliquot_tenant_balance_micro",
            "Millionths of the currency that a tenant has left",
            [([tenant], balance) for tenant, balance in list(self._latest.items())],
        )
