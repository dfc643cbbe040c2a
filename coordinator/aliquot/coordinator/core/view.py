"""The State as deciding sees it: everything can be read, nothing can be written.

A trial on the inventory is the one exception: it is undone before the decision is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from aliquot.coordinator.core.holds.records import Hold
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.leases.records import Lease
from aliquot.coordinator.core.ledger.books import Ledger
from aliquot.coordinator.core.ledger.meters import Meter
from aliquot.coordinator.core.lending.loans import NodeMove
from aliquot.coordinator.core.maintenance.windows import Closure, Window
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.queueing import WaitingLines
from aliquot.coordinator.core.state import Device, Node
from aliquot.coordinator.core.tenancy.books import Tenancy


class StateView(Protocol):
    """Books and indexes, read only; `State` says what each of them is."""

    @property
    def seq(self) -> int: ...  # noqa: D102
    @property
    def now_ms(self) -> int: ...  # noqa: D102
    @property
    def leader_epoch(self) -> int: ...  # noqa: D102
    @property
    def next_arrival(self) -> int: ...  # noqa: D102
    @property
    def leases(self) -> Mapping[str, Lease]: ...  # noqa: D102
    @property
    def nodes(self) -> Mapping[str, Node]: ...  # noqa: D102
    @property
    def devices(self) -> Mapping[str, Device]: ...  # noqa: D102
    @property
    def ended(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def tenancy(self) -> Tenancy: ...  # noqa: D102
    @property
    def ledger(self) -> Ledger: ...  # noqa: D102
    @property
    def holds(self) -> Mapping[str, Hold]: ...  # noqa: D102
    @property
    def node_moves(self) -> Sequence[NodeMove]: ...  # noqa: D102
    @property
    def node_moved_ms(self) -> Mapping[str, int]: ...  # noqa: D102
    @property
    def disruptions(self) -> Mapping[str, tuple[int, ...]]: ...  # noqa: D102
    @property
    def windows(self) -> Mapping[str, Window]: ...  # noqa: D102
    @property
    def prices(self) -> PriceTable | None: ...  # noqa: D102
    @property
    def inventory(self) -> Inventory: ...  # noqa: D102
    @property
    def lines(self) -> WaitingLines: ...  # noqa: D102
    @property
    def keys(self) -> Mapping[tuple[str, str], str]: ...  # noqa: D102
    @property
    def node_ids_by_name(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def slice_ids_by_node(self) -> Mapping[str, Mapping[str, None]]: ...  # noqa: D102
    @property
    def meters(self) -> Mapping[str, Meter]: ...  # noqa: D102
    @property
    def hold_of_device(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def ready_holds(self) -> Mapping[str, None]: ...  # noqa: D102
    @property
    def holding_by_priority(self) -> Mapping[int, int]: ...  # noqa: D102
    @property
    def movable_slices(self) -> int: ...  # noqa: D102
    @property
    def ending(self) -> Mapping[str, None]: ...  # noqa: D102
    @property
    def elastic(self) -> Mapping[str, None]: ...  # noqa: D102
    @property
    def closed(self) -> Mapping[str, Closure]: ...  # noqa: D102
    @property
    def emptying(self) -> Mapping[str, None]: ...  # noqa: D102
    @property
    def cutting(self) -> Mapping[str, None]: ...  # noqa: D102
    @property
    def capacity_version(self) -> int: ...  # noqa: D102
    @property
    def freed_version(self) -> int: ...  # noqa: D102
    @property
    def node_versions(self) -> Mapping[str, int]: ...  # noqa: D102

    def lease(self, lease_id: str) -> Lease:
        """The lease of this id. Raises LeaseNotFound."""

    def node(self, node_id: str) -> Node:
        """The node of this id or, failing that, of this name. Raises NodeNotFound."""
