"""The ledger and the meters for those who only read: what decides is given these, and mypy refuses the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aliquot.coordinator.core.ledger.entries import Entry
from aliquot.coordinator.core.ledger.rates import PriceHistory
from aliquot.coordinator.core.tenancy.specs import Budget


class LedgerView(Protocol):
    """`Ledger`."""

    @property
    def prices(self) -> PriceHistory: ...  # noqa: D102
    @property
    def levels(self) -> Mapping[str, tuple[int, int]]: ...  # noqa: D102
    @property
    def closed_up_to_ms(self) -> int: ...  # noqa: D102
    @property
    def usage_entries(self) -> int: ...  # noqa: D102
    def nth_usage(self, count: int) -> int: ...  # noqa: D102
    def posted(self, reference: str) -> Entry | None: ...  # noqa: D102


class MeterView(Protocol):
    """`Meter`."""

    @property
    def budget(self) -> Budget: ...  # noqa: D102
    @property
    def period_start_ms(self) -> int: ...  # noqa: D102
    def permille(self, now_ms: int) -> int: ...  # noqa: D102
    def period_end_ms(self, now_ms: int) -> int: ...  # noqa: D102
