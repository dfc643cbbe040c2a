"""The inventory for those who only read: what decides is given this, and mypy refuses the rest, but on trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from aliquot.coordinator.core.inventory.changes import ChangeLog
from aliquot.coordinator.core.inventory.inventory import Inventory
from aliquot.coordinator.core.inventory.records import DeviceClass, DeviceRecord, DeviceView, NodeRecord, Totals
from aliquot.coordinator.core.inventory.table import DeviceTable
from aliquot.coordinator.core.values.types import NodeSpec


class InventoryView(Protocol):
    """`Inventory`."""

    @property
    def table(self) -> DeviceTable: ...  # noqa: D102
    @property
    def changes(self) -> ChangeLog: ...  # noqa: D102
    @property
    def structure_version(self) -> int: ...  # noqa: D102
    @property
    def layout_version(self) -> int: ...  # noqa: D102
    @property
    def classes(self) -> Sequence[DeviceClass]: ...  # noqa: D102
    @property
    def domains(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def pools(self) -> Sequence[str]: ...  # noqa: D102
    @property
    def groups(self) -> Mapping[str, Mapping[str, int]]: ...  # noqa: D102
    @property
    def partitioned(self) -> bool: ...  # noqa: D102
    @property
    def restricted(self) -> bool: ...  # noqa: D102
    def has_node(self, node_id: str) -> bool: ...  # noqa: D102
    def has_device(self, uuid: str) -> bool: ...  # noqa: D102
    def node_ids(self) -> Iterator[str]: ...  # noqa: D102
    def device_uuids(self) -> Iterator[str]: ...  # noqa: D102
    def node(self, node_id: str) -> NodeRecord: ...  # noqa: D102
    def device_record(self, uuid: str) -> DeviceRecord: ...  # noqa: D102
    def device(self, uuid: str) -> DeviceView: ...  # noqa: D102
    def nodes_with_cards(self) -> Iterator[NodeSpec]: ...  # noqa: D102
    def totals(self) -> Mapping[tuple[str, str], Totals]: ...  # noqa: D102

    def trial(self) -> AbstractContextManager[Inventory]:
        """The inventory itself, to change it as a "what if": undone at the end, however it is left."""
