"""The books of ordered nodes for those who only read: what decides is given these, and mypy refuses the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from aliquot.coordinator.core.capacity.records import CapacitySpec, Order, Rest, Slot, Spell
from aliquot.coordinator.core.types import Demand


class CapacityView(Protocol):
    """`CapacityBooks`."""

    @property
    def spec(self) -> CapacitySpec | None: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102
    @property
    def next_order(self) -> int: ...  # noqa: D102
    @property
    def orders(self) -> Mapping[int, Order]: ...  # noqa: D102
    @property
    def closed(self) -> Iterable[Order]: ...  # noqa: D102
    @property
    def slots(self) -> Mapping[str, Slot]: ...  # noqa: D102
    @property
    def changes(self) -> int: ...  # noqa: D102
    @property
    def rests(self) -> Mapping[str, Rest]: ...  # noqa: D102
    @property
    def spells(self) -> Iterable[Spell]: ...  # noqa: D102


class RecentDemandView(Protocol):
    """`RecentDemand`."""

    def since(self, from_ms: int) -> Iterator[tuple[int, Demand]]: ...  # noqa: D102
