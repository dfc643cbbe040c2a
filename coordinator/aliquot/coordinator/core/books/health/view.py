"""The health of cards as decisions read it: `HealthBooks`, read-only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from aliquot.coordinator.core.books.health.records import (
    Buckets,
    CauseTotals,
    CopyRate,
    Hit,
    Incident,
    Past,
    RepairStart,
)


class HealthView(Protocol):
    """See `HealthBooks`."""

    @property
    def incidents(self) -> Mapping[int, Incident]:
        """Those that are open."""

    @property
    def closed(self) -> Sequence[Incident]:
        """The latest of those that are over."""

    @property
    def next_number(self) -> int:
        """Of the next incident."""

    @property
    def past(self) -> Mapping[str, tuple[Past, ...]]:
        """By unit."""

    @property
    def starts(self) -> Sequence[RepairStart]:
        """Automatic repairs of about the last hour."""

    @property
    def hits(self) -> Mapping[str, tuple[Hit, ...]]:
        """By card."""

    @property
    def totals(self) -> Mapping[str, CauseTotals]:
        """By cause."""

    @property
    def copies(self) -> Mapping[str, CopyRate]:
        """By unit: how fast it copies."""

    @property
    def repairs(self) -> Buckets:
        """From the first bad sign until service."""

    @property
    def of_unit(self) -> Mapping[str, int]:
        """Unit -> its open incident."""

    @property
    def bad_links(self) -> Mapping[str, tuple[int, ...]]:
        """Node -> the open incidents about its links."""

    @property
    def cards(self) -> Mapping[tuple[str, str], int]:
        """How many there are, by (pool, model)."""

    @property
    def out(self) -> Mapping[tuple[str, str], int]:
        """How many are out of service."""

    @property
    def under_repair(self) -> Mapping[tuple[str, str], int]:
        """How many are being repaired or tested after it."""

    @property
    def intervals(self) -> Buckets:
        """Between two incidents of one unit."""
