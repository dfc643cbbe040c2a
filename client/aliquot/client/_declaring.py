"""Nodes as an administrator declares them, before or without their agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aliquot.common.fields import Writer
from aliquot.v1 import types_pb2


@dataclass(frozen=True, slots=True)
class DeviceDeclaration:
    """One device of a declared node."""

    model: str
    """A name the catalogue knows (`A100-80`), or any other name that requests will use."""
    uuid: str = ""
    """Empty: derived from the node's id and the device's index."""
    memory_bytes: int = 0
    """0: the catalogue's figure for the model."""
    vendor: str = ""
    """Of a model that the catalogue does not know; empty: the catalogue's, else NVIDIA."""


@dataclass(frozen=True, slots=True)
class NodeDeclaration:
    """A node. Declaring it again replaces the declaration."""

    name: str
    devices: Sequence[DeviceDeclaration] = ()
    node_id: str = ""
    """Empty: the name."""
    pool: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    agentless: bool = False
    """The node has no agent: grants there are accounting only, and never become ACTIVE."""
    cpu_milli: int | None = None
    host_memory_bytes: int | None = None


_DEVICE = Writer(
    types_pb2.Device,
    DeviceDeclaration,
    {"uuid": "uuid", "model": "model", "vendor": "vendor", "memory_total_bytes": "memory_bytes"},
    rest="agents tell it; a declared device has its place in the list",
)
_DECLARED = ("name", "pool", "labels", "agentless", "cpu_milli", "host_memory_bytes")
node_to_proto = Writer(
    types_pb2.Node,
    NodeDeclaration,
    {
        **{name: name for name in _DECLARED},
        "node_id": lambda node, _: node.node_id or node.name,
        "devices": _DEVICE,
    },
    rest="agents tell it",
).message
"""The declaration as a message."""
