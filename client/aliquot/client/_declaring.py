"""Nodes as an administrator declares them, before or without their agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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


def node_to_proto(node: NodeDeclaration) -> types_pb2.Node:
    """The declaration as a message."""
    message = types_pb2.Node(
        node_id=node.node_id or node.name,
        name=node.name,
        pool=node.pool,
        labels=node.labels,
        agentless=node.agentless,
        devices=[
            types_pb2.Device(
                uuid=device.uuid,
                index=index,
                model=device.model,
                memory_total_bytes=device.memory_bytes,
                vendor=device.vendor,
            )
            for index, device in enumerate(node.devices)
        ],
    )
    if node.cpu_milli is not None:
        message.cpu_milli = node.cpu_milli
    if node.host_memory_bytes is not None:
        message.host_memory_bytes = node.host_memory_bytes
    return message
