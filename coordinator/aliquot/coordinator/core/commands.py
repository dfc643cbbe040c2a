"""What somebody wants: the inputs of `decide`. Never journalled; ids and times come in with them.

A command names everything that `decide` can't know by itself: fresh ids, the agent's report, the launcher's wish. It is
either carried out as facts or refused with a `DomainError`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from aliquot.coordinator.core.facts import EndReason, RequestSpec
from aliquot.coordinator.core.ledger.rates import RateCard
from aliquot.coordinator.core.maintenance.windows import WindowSpec
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.tenancy.specs import PoolSpec, QueueSpec, TenantSpec
from aliquot.coordinator.core.types import NodeSpec


@dataclass(frozen=True, slots=True)
class StartLeading:
    """A coordinator has taken over with this epoch, which must be higher than any before."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch:
    """The coordinator that leads goes on in a higher epoch."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Allocate:
    """Ask for a lease. `lease_id` is fresh; with a known (tenant, key) the old lease is the answer instead."""

    lease_id: str
    request: RequestSpec
    key: str = ""
    body_sha256: bytes = b""
    no_queue: bool = False


@dataclass(frozen=True, slots=True)
class Explain:
    """What would become of this request now? Ends before anything changes."""

    request: RequestSpec


@dataclass(frozen=True, slots=True)
class ExplainLease:
    """Why is this lease where it is?"""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Release:
    """End a lease for this reason. Ending a lease that has ended is answered with that lease."""

    lease_id: str
    reason: EndReason = EndReason.RELEASED
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AcknowledgeShape:
    """The launcher of an elastic lease has adapted to this shape: what it gives back need not wait any longer."""

    lease_id: str
    shape: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Try the next waiting requests; `attempts` bounds the turn."""

    attempts: int = 16


@dataclass(frozen=True, slots=True)
class Tick:
    """Carry out what is due by now: time limits, back-offs, confirmations overdue, records to forget."""

    limit: int = 256


@dataclass(frozen=True, slots=True)
class RetrySetAside:
    """Try again what was set aside because deciding about it failed too often."""

    subject: str = ""
    """The lease, pool, tenant or window that it is about; empty: all of it."""
    carry_out: bool = True
    """False: only say what there is."""


@dataclass(frozen=True, slots=True)
class DeclareNode:
    """An administrator describes a node."""

    spec: NodeSpec


@dataclass(frozen=True, slots=True)
class RemoveNode:
    """Forget a node that holds nothing; with `force` also a LOST one, whose slices are written off."""

    node_id: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Cordon:
    """Close (or with `cordoned=False` open) a node for new grants; `drain` also ends its leases."""

    node_id: str
    cordoned: bool = True
    drain: bool = False
    reason: str = ""
    grace_ms: int = 0
    """For drained leases; 0: each lease's own."""


@dataclass(frozen=True, slots=True)
class DeclareMaintenance:
    """An administrator says when nodes are to be left alone. Nodes may be named by id or name.

    The same again changes nothing; something else under the same name is refused.
    """

    spec: WindowSpec


@dataclass(frozen=True, slots=True)
class EndMaintenance:
    """Withdraw a window. Nodes that only it closed are open again at once."""

    name: str


@dataclass(frozen=True, slots=True)
class ReadMaintenance:
    """The windows there are, with the nodes they are over. Changes nothing."""


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


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """An agent has connected and described its node; the session layer gave it this epoch."""

    spec: NodeSpec
    session_epoch: int


@dataclass(frozen=True, slots=True)
class ReconcileNode:
    """The agent's full list of slices: adopt, revoke or quarantine each, then the node is READY."""

    node_id: str
    session_epoch: int
    reports: tuple[SliceReport, ...]


@dataclass(frozen=True, slots=True)
class ReportSlices:
    """Confirmations on a running session."""

    node_id: str
    session_epoch: int
    reports: tuple[SliceReport, ...]


@dataclass(frozen=True, slots=True)
class NodeSilent:
    """The node has not been heard: SUSPECT, or with `lost` LOST."""

    node_id: str
    session_epoch: int
    lost: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeHeard:
    """A SUSPECT node spoke again on the same session."""

    node_id: str
    session_epoch: int


@dataclass(frozen=True, slots=True)
class ReportDevice:
    """What a device can give has changed."""

    node_id: str
    session_epoch: int
    uuid: str
    foreign_bytes: int
    healthy: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReportCut:
    """An agent has carried out an order to cut a card, or says why not."""

    node_id: str
    session_epoch: int
    card_uuid: str
    number: int
    problem: str = ""


# -- pools, tenants, queues, the ledger

ANY_VERSION = -1
"""Whatever is there now is replaced."""


class Declared(enum.StrEnum):
    """What can be declared, and withdrawn."""

    POOL = "pool"
    TENANT = "tenant"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Apply:
    """Declare all of these, or nothing. Each comes with the version that it replaces: 0 for new, `ANY_VERSION`."""

    pools: tuple[tuple[PoolSpec, int], ...] = ()
    tenants: tuple[tuple[TenantSpec, int], ...] = ()
    queues: tuple[tuple[QueueSpec, int], ...] = ()
    rates: RateCard | None = None
    rates_version: int = ANY_VERSION
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Forget a declaration."""

    kind: Declared
    name: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Balance:
    """Which nodes of a pool should change hands between its projects; with `carry_out` they do."""

    pool: str
    carry_out: bool = False
    home: tuple[str, ...] = ()
    """Nodes that are to go home, instead of what is planned."""


@dataclass(frozen=True, slots=True)
class Defragment:
    """Which movable leases should be granted elsewhere so that more fits; with `carry_out` they are. A bounded step."""

    carry_out: bool = False
    moves_max: int = 8
    cursor: int = 0


@dataclass(frozen=True, slots=True)
class PostCredit:
    """A tenant paid (or, below zero, was paid back)."""

    tenant: str
    money_micro: int
    reference: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class CorrectUsage:
    """Usage that was charged wrongly; decimals, because quantities know no bound."""

    tenant: str
    queue: str
    model: str
    share_milli_ms: str
    memory_byte_ms: str
    reference: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ObserveUse:
    """What a lease, or all leases of a tenant, were measured to use over an interval."""

    lease_id: str
    busy_milli_ms: int
    memory_byte_ms: int
    interval_ms: int
    """Added up over slices."""
    tenant: str = ""
    """Of whose leases together; empty: of `lease_id` alone."""


@dataclass(frozen=True, slots=True)
class CloseBooks:
    """Sum up by day what ended before this midnight."""

    up_to_ms: int


@dataclass(frozen=True, slots=True)
class ExtractLedger:
    """What an invoice for a tenant and a period is made from (`ledger.invoice.make_invoice`). Changes nothing."""

    tenant: str
    from_ms: int
    to_ms: int


@dataclass(frozen=True, slots=True)
class ReadTenancy:
    """Everything declared, with what is held and waits. Changes nothing."""


@dataclass(frozen=True, slots=True)
class LearnPrices:
    """New prices for the placement policy, with a version that rises."""

    table: PriceTable


Command = (
    StartLeading
    | RaiseEpoch
    | Allocate
    | Explain
    | ExplainLease
    | Release
    | AcknowledgeShape
    | Admit
    | Tick
    | RetrySetAside
    | DeclareNode
    | RemoveNode
    | Cordon
    | DeclareMaintenance
    | EndMaintenance
    | ReadMaintenance
    | RegisterNode
    | ReconcileNode
    | ReportSlices
    | NodeSilent
    | NodeHeard
    | ReportDevice
    | ReportCut
    | Apply
    | Withdraw
    | Balance
    | Defragment
    | PostCredit
    | CorrectUsage
    | ObserveUse
    | CloseBooks
    | ExtractLedger
    | ReadTenancy
    | LearnPrices
)
