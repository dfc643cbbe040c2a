"""What agents report and nobody journals: the last reading of each device, versions, when a node was last heard.

It is all lost with the process and all comes back with the agents' next snapshots. Readings of 80,000 devices are
kept in one flat array of integers; a device's row is found by its UUID. What is no longer of the pool is forgotten.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.values.types import NodeSpec
from aliquot.v1 import agent_pb2, types_pb2

_FIELDS = {field.number: field.name for field in types_pb2.DeviceTelemetry.DESCRIPTOR.fields}
_WIDTH = max(_FIELDS)
"""A field's place in its device's row is its number in the contract, so that one more there makes rows wider here."""
_UTILISATION = types_pb2.DeviceTelemetry.GPU_UTILISATION_PERCENT_FIELD_NUMBER - 1
_UNKNOWN = -(1 << 62)
_BLANK = array("q", [_UNKNOWN] * _WIDTH)


@dataclass(slots=True)
class AboutNode:
    """What an agent said of itself when it connected, and when it was last heard (coordinator's clock)."""

    agent_version: str = ""
    driver_version: str = ""
    last_heard_ms: int = 0
    conditions: tuple[tuple[str, str], ...] = ()
    """(subject, text): what keeps the node from being as it should."""
    unknown: Mapping[str, agent_pb2.SliceReport] = field(default_factory=dict)
    """Slices that it holds and the books do not know: its session's."""


@dataclass(frozen=True, slots=True)
class AboutDevice:
    """Facts about a driver that are shown to people and decide nothing."""

    product_name: str = ""
    pci_bus_id: str = ""
    tiers: tuple[int, ...] = ()


_NO_NODE = AboutNode()
_NO_DEVICE = AboutDevice()


class Telemetry:
    """See the module's docstring."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._values = array("q")
        self._nodes: dict[str, AboutNode] = {}
        self._devices: dict[str, AboutDevice] = {}
        self._specs: dict[str, NodeSpec] = {}
        """Nodes of the pool as they were last described."""

    def __len__(self) -> int:
        return len(self._nodes) + len(self._devices) + len(self._rows)

    def node(self, node_id: str) -> AboutNode:
        """What is known of a node; blank when nothing is."""
        return self._nodes.get(node_id, _NO_NODE)

    def put_node(self, node_id: str, about: AboutNode) -> None:
        """A node's agent has introduced itself."""
        self._nodes[node_id] = about

    def put_driver(self, node_id: str, version: str) -> None:
        """A node's agent has told which driver is there."""
        about = self._nodes.get(node_id)
        if about is not None:
            about.driver_version = version

    def put_conditions(self, node_id: str, conditions: tuple[tuple[str, str], ...]) -> None:
        """A node's agent has told what it can't do or perceive there."""
        about = self._nodes.get(node_id)
        if about is not None:
            about.conditions = conditions

    def unknown_slices(self) -> Iterator[tuple[str, agent_pb2.SliceReport]]:
        """What agents hold and the books do not know, with the node; on any thread."""
        for node_id, about in list(self._nodes.items()):
            for report in list(about.unknown.values()):
                yield node_id, report

    def heard(self, node_id: str, at_ms: int) -> None:
        """A node was last heard then."""
        about = self._nodes.get(node_id)
        if about is not None:
            about.last_heard_ms = at_ms

    def about_device(self, uuid: str) -> AboutDevice:
        """What is known of a device; blank when nothing is."""
        return self._devices.get(uuid, _NO_DEVICE)

    def put_device(self, uuid: str, about: AboutDevice) -> None:
        """A device was described."""
        self._devices[uuid] = about

    def record(self, uuid: str, reading: types_pb2.DeviceTelemetry) -> None:
        """Keep a reading. The fields it lacks are unknown now."""
        row = self._rows.get(uuid)
        if row is None:
            if self._free:
                row = self._free.pop()
            else:
                row = len(self._values)
                self._values.extend(_BLANK)
            self._rows[uuid] = row
        else:
            self._values[row : row + _WIDTH] = _BLANK
        values = self._values
        for described, value in reading.ListFields():
            values[row + described.number - 1] = value

    def device_message(self, uuid: str) -> types_pb2.DeviceTelemetry | None:
        """The last reading; None when there was none."""
        row = self._rows.get(uuid)
        if row is None:
            return None
        values = self._values
        known: dict[str, Any] = {
            name: value for number, name in _FIELDS.items() if (value := values[row + number - 1]) != _UNKNOWN
        }
        return types_pb2.DeviceTelemetry(**known)

    def utilisation(self, uuid: str) -> int | None:
        """How busy a device was at the last reading, in percent; None: nobody knows."""
        row = self._rows.get(uuid)
        if row is None or (value := self._values[row + _UTILISATION]) == _UNKNOWN:
            return None
        return value

    def node_changed(self, node_id: str, node: Node | None) -> None:
        """Follow nodes: forget the devices that one does not have any more, and those that are no more."""
        old = self._specs.get(node_id)
        if node is None:
            self._specs.pop(node_id, None)
            self._nodes.pop(node_id, None)
        elif node.spec is old:
            return
        else:
            self._specs[node_id] = node.spec
        if old is not None:
            kept = {device.uuid for device in node.spec.devices} if node is not None else set()
            self._forget_devices(device.uuid for device in old.devices if device.uuid not in kept)

    def gone(self, node_id: str) -> None:
        """Its agent has no session any more. Of one that never became a node nothing is kept."""
        if node_id not in self._specs:
            self._nodes.pop(node_id, None)

    def _forget_devices(self, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._devices.pop(uuid, None)
            row = self._rows.pop(uuid, None)
            if row is not None:
                self._values[row : row + _WIDTH] = _BLANK
                self._free.append(row)
