"""Nodes: declared, heard of, and what their agents report."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.core.commands.base import Command
from aliquot.coordinator.core.values.types import NodeSpec


class DeclareNode(Command[None], frozen=True):
    """An administrator describes a node, or several: all of them become known, or none."""

    spec: NodeSpec
    others: tuple[NodeSpec, ...] = ()


class RemoveNode(Command[None], frozen=True):
    """Forget a node that holds nothing; with `force` also a LOST one, whose slices are written off."""

    node_id: str
    force: bool = False


class Cordon(Command[None], frozen=True):
    """Close (or with `cordoned=False` open) a node for new grants; `drain` also ends its leases."""

    node_id: str
    cordoned: bool = True
    drain: bool = False
    reason: str = ""
    grace_ms: int = 0
    """For drained leases; 0: each lease's own."""


class WriteOff(Command[None], frozen=True):
    """Have slices ended which a node's agent holds and the books do not know."""

    node_id: str
    slice_ids: tuple[str, ...]


class DeclareMaintenance(Command[None], frozen=True):
    """An administrator says when nodes are to be left alone. Nodes may be named by id or name.

    The same again changes nothing; something else under the same name is refused.
    """

    spec: WindowSpec


class EndMaintenance(Command[None], frozen=True):
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


class RegisterNode(Command[None], frozen=True):
    """An agent has connected and described its node; the session layer gave it this epoch."""

    spec: NodeSpec
    session_epoch: int


class ReconcileNode(Command[None], frozen=True):
    """The agent's full list of slices: adopt, revoke or quarantine each, then the node is READY."""

    node_id: str
    session_epoch: int
    reports: tuple[SliceReport, ...]


class ReportSlices(Command[None], frozen=True):
    """Confirmations on a running session."""

    node_id: str
    session_epoch: int
    reports: tuple[SliceReport, ...]


class NodeSilent(Command[None], frozen=True):
    """The node has not been heard: SUSPECT, or with `lost` LOST."""

    node_id: str
    session_epoch: int
    lost: bool
    reason: str = ""


class NodeHeard(Command[None], frozen=True):
    """A SUSPECT node spoke again on the same session."""

    node_id: str
    session_epoch: int
