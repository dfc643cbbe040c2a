"""What has happened to nodes and their devices. See `core.facts`."""

from __future__ import annotations

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.types import NodeSpec, NodeState


class NodePut(Fact, frozen=True, tag="node"):
    """A node was declared, or registered by its agent, or its hardware changed."""

    spec: NodeSpec
    registered: bool


class NodeStateChanged(Fact, frozen=True, tag="nstate"):
    """A node's liveness changed. LOST makes its slices UNREACHABLE; see `leases.TRANSITIONS`."""

    node_id: str
    state: NodeState
    session_epoch: int = 0
    reason: str = ""


class NodeCordoned(Fact, frozen=True, tag="cordon"):
    """An administrator opened or closed a node for new grants."""

    node_id: str
    cordoned: bool
    draining: bool = False
    reason: str = ""


class NodeRemoved(Fact, frozen=True, tag="nremove"):
    """A node that held nothing was forgotten."""

    node_id: str


class DeviceChanged(Fact, frozen=True, tag="device"):
    """What a device can give has changed: its health, or what processes outside any lease hold on it."""

    uuid: str
    foreign_bytes: int
    healthy: bool
    reason: str = ""
    cause: str = ""
    severity: Severity = Severity.NONE
    scope: Scope = Scope.DEVICE
    remedy: Remedy = Remedy.NONE
