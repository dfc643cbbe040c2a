"""Nodes: declared, heard of, and what their agents report."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.core.commands.base import Command
from aliquot.coordinator.core.values.types import NodeSpec


@dataclass(frozen=True, slots=True)
class DeclareNode(Command[None]):
    """An administrator describes a node, or several: all of them become known, or none."""

    spec: NodeSpec
    others: tuple[NodeSpec, ...] = ()


@dataclass(frozen=True, slots=True)
class RemoveNode(Command[None]):
    """Forget a node that holds nothing; with `force` also a LOST one, whose slices are written off."""

    node_id: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Cordon(Command[None]):
    """Close (or with `cordoned=False` open) a node for new grants; `drain` also ends its leases."""

    node_id: str
    cordoned: bool = True
    drain: bool = False
    reason: str = ""
    grace_ms: int = 0
    """For drained leases; 0: each lease's own."""


@dataclass(frozen=True, slots=True)
class WriteOff(Command[None]):
    """Have slices ended which a node's agent holds and the books do not know."""

    node_id: str
    slice_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DeclareMaintenance(Command[None]):
    """An administrator says when nodes are to be left alone. Nodes may be named by id or name.

    The same again changes nothing; something else under the same name is refused.
    """

    spec: WindowSpec


@dataclass(frozen=True, slots=True)
class EndMaintenance(Command[None]):
    """Withdraw a window. Nodes that only it closed are open again at once."""

    name: str


class ReportStatus(enum.IntEnum):
    """What an agent says of a slice; numbers equal those of the contract."""

    PENDING = 1
    ACTIVE = 2
    STOPPING = 3
    GONE = 4
    FAILED = 5


@dataclass(frozen=True, slots=True)
class SliceReport:
    """One confirmation of an agent."""

    slice_id: str
    lease_epoch: int
    status: ReportStatus
    tier: int = 0
    reason: str = ""
    detail: str = ""
    endpoint: str = ""
    energy_mj: int | None = None
    """That the slice's card has drawn for it; None: not measured."""


@dataclass(frozen=True, slots=True)
class RegisterNode(Command[None]):
    """An agent has connected and described its node; the session layer gave it this epoch."""

    spec: NodeSpec
    session_epoch: int


@dataclass(frozen=True, slots=True)
class ReconcileNode(Command[None]):
    """The agent's full list of slices: adopt, revoke or quarantine each, then the node is READY."""

    node_id: str
    session_epoch: int
    reports: tuple[SliceReport, ...]


@dataclass(frozen=True, slots=True)
class ReportSlices(Command[None]):
    """Confirmations on a running session."""

    node_id: str
    session_epoch: int
    reports: tuple[SliceReport, ...]


@dataclass(frozen=True, slots=True)
class NodeSilent(Command[None]):
    """The node has not been heard: SUSPECT, or with `lost` LOST."""

    node_id: str
    session_epoch: int
    lost: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeHeard(Command[None]):
    """A SUSPECT node spoke again on the same session."""

    node_id: str
    session_epoch: int
