"""What a watcher is told."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.client._values.leases import Lease
from aliquot.client._values.nodes import Node


@dataclass(frozen=True, slots=True)
class LeaseChanged:
    """A lease, after a durable change."""

    seq: int
    at_ms: int
    lease: Lease


@dataclass(frozen=True, slots=True)
class NodeChanged:
    """A node, after a durable change."""

    seq: int
    at_ms: int
    node: Node


@dataclass(frozen=True, slots=True)
class Resynced:
    """Changes were missed, so everything was listed again: these are all live leases at `seq`.

    None of them, where the watch was told not to list.
    """

    seq: int
    leases: tuple[Lease, ...]


Event = LeaseChanged | NodeChanged | Resynced
