"""What tenants that pay in advance have left, added up again now and then: too much work for a scrape."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from aliquot.common.clock import Clock
from aliquot.common.gauges import LABELS_MAX, Metric, gauges_by
from aliquot.coordinator.core.books.ledger.invoice import FOR_EVER_MS, balance_micro, has_paid
from aliquot.coordinator.reading.view import View

_EVERY_S = 60.0


class Balances:
    """The latest of each."""

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
            await asyncio.sleep(_EVERY_S)

    def collect(self) -> Iterator[Metric]:
        """As last added up; on any thread."""
        yield gauges_by(
            ["tenant"],
            "aliquot_tenant_balance_micro",
            "Millionths of the currency that a tenant has left",
            [([tenant], balance) for tenant, balance in list(self._latest.items())],
        )
