"""A machine of the pool and its devices, as the journal has them."""

from __future__ import annotations

import msgspec

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.books.health.records import OUT, CareOrder, Sign, Standing
from aliquot.coordinator.core.books.maintenance import Closure
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Cut, NodeSpec, NodeState

WRITTEN_OFF_KEPT = 1_000


class Node(msgspec.Struct, frozen=True):
    """A machine of the pool, as far as the coordinator is concerned."""

    spec: NodeSpec
    state: NodeState
    cordoned: bool = False
    draining: bool = False
    reason: str = ""
    session_epoch: int = 0
    registered: bool = False
    seq: int = 0
    cuts: tuple[Cut, ...] = ()
    """The last order to cut each of its cards."""
    closure: Closure | None = None
    """The maintenance window that closes it; what an administrator closed by hand is `cordoned`, and stays so."""
    care: tuple[CareOrder, ...] = ()
    """What its agent is to do to cards that are not well."""
    written_off: tuple[str, ...] = ()
    """Slices that nobody knows and its agent is to end if it holds them: the latest `WRITTEN_OFF_KEPT`."""

    @property
    def grantable(self) -> bool:
        """Whether new slices may be placed there."""
        return self.closure is None and self.open

    @property
    def open(self) -> bool:
        """Whether they might be, were it not for a maintenance window."""
        if self.cordoned:
            return False
        return self.state is NodeState.READY or (self.state is NodeState.DECLARED and self.spec.agentless)

    @property
    def counted_on(self) -> bool:
        """Whether promises rest on its devices: also while its agent is not heard and not given up yet, as none is when
        a coordinator takes over, because what is there is not lost.
        """
        silent = self.state in (NodeState.SUSPECT, NodeState.RECONCILING)
        return self.grantable or (silent and self.closure is None and not self.cordoned)


class Device(msgspec.Struct, frozen=True):
    """What the journal remembers of a device beside its spec."""

    foreign_bytes: int = 0
    healthy: bool = True
    """As its agent sees it."""
    reason: str = ""
    cause: str = ""
    """Of what is not well, for machines; empty: well, or its agent does not say."""
    severity: Severity = Severity.NONE
    scope: Scope = Scope.DEVICE
    remedy: Remedy = Remedy.NONE
    standing: Standing = Standing.HEALTHY
    """What the pool has made of it."""
    incident: int = 0
    """The open incident that covers it; 0: none."""
    overruled: str = ""
    """The cause that an operator does not believe: until its agent says something else, it counts as well."""

    @property
    def well(self) -> bool:
        """Whether nothing is believed to be wrong with it now."""
        return self.healthy or (bool(self.cause) and self.cause == self.overruled)

    @property
    def usable(self) -> bool:
        """Whether anything may be placed on it. Where its agent names a cause, the incident decides."""
        return self.standing not in OUT and (self.healthy or bool(self.cause))

    @property
    def sign(self) -> Sign | None:
        """What its agent says is wrong with it; None: nothing, or it does not say what."""
        if self.healthy or not self.cause:
            return None
        return Sign(self.cause, self.severity, self.scope, self.remedy, self.reason)


# --------------------
# What has happened to nodes and their devices.


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


class SlicesWrittenOff(Fact, frozen=True, tag="swrittenoff"):
    """Somebody has decided that slices which only a node's agent knows are to end."""

    node_id: str
    slice_ids: tuple[str, ...]


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


# --------------------
# What has happened to orders to cut cards in MIG mode.


class CutOrdered(Fact, frozen=True, tag="cut"):
    """A card of a node is to be cut anew, for somebody who waits. Its agent may refuse."""

    node_id: str
    cut: Cut


class CutSettled(Fact, frozen=True, tag="cut!"):
    """The card was cut as ordered; or, with a problem, it was not."""

    node_id: str
    card_uuid: str
    number: int
    problem: str = ""
