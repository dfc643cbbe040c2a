"""The waiting lines for those who only read: what decides is given these, and mypy refuses the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from aliquot.coordinator.core.leases.records import Lease
from aliquot.coordinator.core.queueing.lines import Head, LineKey, Place, Rank


class TenantLinesView(Protocol):
    """`TenantLines`."""

    @property
    def lines(self) -> Mapping[LineKey, Sequence[tuple[Rank, str]]]: ...  # noqa: D102
    @property
    def heads(self) -> Sequence[tuple[Rank, str, LineKey]]: ...  # noqa: D102
    @property
    def priorities(self) -> Mapping[int, int]: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102
    def after(self, rank: Rank | None) -> Head | None: ...  # noqa: D102


class LinesView(Protocol):
    """`WaitingLines`."""

    def __len__(self) -> int: ...
    @property
    def queues(self) -> Mapping[str, Mapping[str, TenantLinesView]]: ...  # noqa: D102
    @property
    def resting(self) -> int: ...  # noqa: D102
    def is_resting(self, lease_id: str) -> bool: ...  # noqa: D102
    def is_first(self, lease_id: str) -> bool: ...  # noqa: D102
    def place_of(self, lease_id: str) -> Place | None: ...  # noqa: D102
    def ahead_of(self, lease: Lease, limit: int) -> tuple[int, list[str]]: ...  # noqa: D102
    def waiting_below(self, tenant: str) -> int: ...  # noqa: D102
    def length_of(self, queue: str) -> int: ...  # noqa: D102
    def has_line(self, queue: str, tenant: str, key: LineKey) -> bool: ...  # noqa: D102
    def ids(self) -> Iterator[str]: ...  # noqa: D102
