"""What somebody wants: the inputs of `decide`. Never journalled; ids and times come in with them.

A command names everything that `decide` can't know by itself: fresh ids, the agent's report, the launcher's wish. It is
either carried out as facts or refused with a `DomainError`. A `Command[T]` is answered with a T once it is durable.
What changes nothing is a `Query` (`queries`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.access.records import Actor, Token
from aliquot.coordinator.core.access.roles import Grant
from aliquot.coordinator.core.capacity.expectation import Forecast
from aliquot.coordinator.core.capacity.records import CapacitySpec, Order
from aliquot.coordinator.core.enrolment.records import Enrolled, Invite
from aliquot.coordinator.core.ledger.rates import RateCard
from aliquot.coordinator.core.maintenance.windows import WindowSpec
from aliquot.coordinator.core.outcomes import (
    AdmitOutcome,
    AllocateOutcome,
    ApplyOutcome,
    BalanceView,
    DefragmentView,
    SetAside,
    TickOutcome,
)
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.tenancy.specs import PoolSpec, QueueSpec, TenantSpec
from aliquot.coordinator.core.types import EndReason, NodeSpec, RequestSpec
from aliquot.coordinator.core.use.windows import Seen

T_co = TypeVar("T_co", covariant=True)


class Command(Generic[T_co]):
    """A wish to change something, and what its caller is told: `Command[T]` gives a T, `Command[None]` nothing."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class StartLeading(Command[None]):
    """A coordinator has taken over with this epoch, which must be higher than any before."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class RaiseEpoch(Command[None]):
    """The coordinator that leads goes on in a higher epoch."""

    leader_epoch: int


@dataclass(frozen=True, slots=True)
class Allocate(Command[AllocateOutcome]):
    """Ask for a lease. `lease_id` is fresh; with a known (tenant, key) the old lease is the answer instead."""

    lease_id: str
    request: RequestSpec
    key: str = ""
    body_sha256: bytes = b""
    no_queue: bool = False
    by: str = ""
    """The principal that asks."""


@dataclass(frozen=True, slots=True)
class MemberPlace:
    """Where one member is to go: a node and, unless the engine may pick them there, its devices."""

    node_id: str
    device_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrantOn(Command[AllocateOutcome]):
    """Ask for a lease exactly there, because somebody else has decided where: granted now, or refused.

    It may take what `Allocate` with `no_queue` may take, and nothing that is kept for others.
    """

    lease_id: str
    request: RequestSpec
    places: tuple[MemberPlace, ...]
    """For each member."""
    key: str = ""
    body_sha256: bytes = b""
    by: str = ""
    """The principal that asks."""


@dataclass(frozen=True, slots=True)
class Release(Command[None]):
    """End a lease for this reason. Ending a lease that has ended is answered with that lease."""

    lease_id: str
    reason: EndReason = EndReason.RELEASED
    detail: str = ""
    by: str = ""
    """The principal that ends it; empty: the pool itself."""


@dataclass(frozen=True, slots=True)
class ExtendLease(Command[None]):
    """Let a lease have a longer time limit, counted from its grant as the one that it was asked for with."""

    lease_id: str
    time_limit_ms: int
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class AcknowledgeShape(Command[None]):
    """The launcher of an elastic lease has adapted to this shape: what it gives back need not wait any longer."""

    lease_id: str
    shape: int


@dataclass(frozen=True, slots=True)
class LookAtUse(Command[None]):
    """Judge leases by what was seen of them since the last look. A bounded number at a time."""

    leases: tuple[Seen, ...]


@dataclass(frozen=True, slots=True)
class ExemptLease(Command[None]):
    """Let idleness of a lease have no consequences for so long; 0: it has again."""

    lease_id: str
    for_ms: int
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class ConfirmNotice(Command[None]):
    """A notifier has delivered a warning about a lease, and so all before it."""

    lease_id: str
    number: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class Admit(Command[AdmitOutcome]):
    """Try the next waiting requests; `attempts` bounds the turn."""

    attempts: int = 16


@dataclass(frozen=True, slots=True)
class Tick(Command[TickOutcome]):
    """Carry out what is due by now: time limits, back-offs, confirmations overdue, records to forget."""

    limit: int = 256


@dataclass(frozen=True, slots=True)
class RetrySetAside(Command[SetAside]):
    """Try again what was set aside because deciding about it failed too often."""

    subject: str = ""
    """The lease, pool, tenant or window; empty: all that was set aside."""
    carry_out: bool = True
    """False: only say what there is."""


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


@dataclass(frozen=True, slots=True)
class ReportDevice(Command[None]):
    """What a device can give has changed."""

    node_id: str
    session_epoch: int
    uuid: str
    foreign_bytes: int
    healthy: bool
    reason: str = ""
    cause: str = ""
    severity: Severity = Severity.NONE
    scope: Scope = Scope.DEVICE
    remedy: Remedy = Remedy.NONE


@dataclass(frozen=True, slots=True)
class ReportCare(Command[None]):
    """An agent has carried out an order about sick cards, or says why not."""

    node_id: str
    session_epoch: int
    number: int
    problem: str = ""
    story: str = ""
    copies: tuple[tuple[str, int], ...] = ()
    """(unit, megabytes a second) of what was tested."""


@dataclass(frozen=True, slots=True)
class ReportHit(Command[None]):
    """A fault on a device was of one lease's program, as its agent found out."""

    node_id: str
    session_epoch: int
    uuid: str
    lease_id: str
    text: str
    suspicious: bool = False
    """Whether it might be the device's after all, where others are hit as well."""


@dataclass(frozen=True, slots=True)
class QuarantineDevice(Command[None]):
    """Take a card out of service; `drain` also ends its leases."""

    uuid: str
    reason: str = ""
    drain: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class VerifyDevice(Command[None]):
    """Have a card tested."""

    uuid: str
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class ReturnDevice(Command[None]):
    """Take a card back into service."""

    uuid: str
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class ReportCut(Command[None]):
    """An agent has carried out an order to cut a card, or says why not."""

    node_id: str
    session_epoch: int
    card_uuid: str
    number: int
    problem: str = ""


# -- callers


@dataclass(frozen=True, slots=True)
class OnBehalf(Command[T_co]):
    """Carry out a command and put down for whom, if it changes anything."""

    by: Actor
    subject: str
    """What it is done to, for people."""
    command: Command[T_co]


@dataclass(frozen=True, slots=True)
class GrantRole(Command[None]):
    """Give a principal a role."""

    by: Actor
    principal: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class RevokeRole(Command[None]):
    """Take a role from a principal."""

    by: Actor
    principal: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class IssueToken(Command[Token]):
    """Let a token count. Its id and hash are fresh; when it was made, and by whom, is filled in."""

    by: Actor
    token: Token
    grants: tuple[Grant, ...] = ()
    """Roles that its principal is given in the same step."""


@dataclass(frozen=True, slots=True)
class OpenSession(Command[Token]):
    """Let a token count that has roles of its own, for somebody whom `by`, an identity provider, vouches for."""

    by: Actor
    token: Token


@dataclass(frozen=True, slots=True)
class RevokeTokens(Command[tuple[Token, ...]]):
    """End tokens: these, and all of a principal's."""

    by: Actor
    token_ids: tuple[str, ...] = ()
    principal: str = ""


# -- nodes' keys


@dataclass(frozen=True, slots=True)
class InviteNode(Command[Invite]):
    """Let a node bring a key. The invite's id and hash are fresh; when it was made and ends is filled in."""

    invite: Invite
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class JoinNode(Command[Enrolled]):
    """A node comes with an invite and a key that it has proven to have."""

    invite_id: str
    invite_sha256: bytes
    node_id: str
    node_name: str
    key_sha256: bytes


@dataclass(frozen=True, slots=True)
class DisenrolNode(Command[None]):
    """Let no key speak for a node any more."""

    node_id: str


@dataclass(frozen=True, slots=True)
class RotateAuthority(Command[int]):
    """Begin a generation of the pool's authority, made with this fresh salt. The answer is its number."""

    salt: bytes
    by: str


@dataclass(frozen=True, slots=True)
class RetireAuthority(Command[int]):
    """Let the older of two generations be trusted no more. `callers`: those with tokens trust the authority, too."""

    force: bool = False
    callers: bool = True


@dataclass(frozen=True, slots=True)
class NoteTrust(Command[None]):
    """A node or the holder of a token says which generation is the latest that it trusts."""

    number: int
    node_id: str = ""
    token_id: str = ""


# -- nodes that are ordered


@dataclass(frozen=True, slots=True)
class DeclareCapacity(Command[int]):
    """These shapes of nodes are on offer, by these rules, and no others. The answer is the new version."""

    spec: CapacitySpec
    version: int = -1
    """That it replaces; -1: whatever is there now."""


@dataclass(frozen=True, slots=True)
class TakeOrders(Command[tuple[Order, ...]]):
    """Give orders to somebody who carries them out, for a while."""

    taker: str
    orders_max: int = 8
    for_ms: int = 300_000


@dataclass(frozen=True, slots=True)
class ReportOrder(Command[Order]):
    """What became of an order, says who took it."""

    number: int
    taker: str
    accepted: bool
    """Its node is on its way, or is going. False: it failed, and is tried again."""
    reference: str = ""
    node_name: str = ""
    """Under which it will come; empty: the one that was ordered."""
    due_ms: int = 0
    """When it will come; 0: as was expected."""
    problem: str = ""
    final: bool = False
    """Trying again is of no use."""


@dataclass(frozen=True, slots=True)
class WithdrawOrder(Command[Order]):
    """An administrator wants no more of an order."""

    number: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expected:
    """One series of a forecast."""

    pool: str
    model: str
    forecast: Forecast


@dataclass(frozen=True, slots=True)
class ExpectDemand(Command[None]):
    """What is expected to be used."""

    series: tuple[Expected, ...]


# -- pools, tenants, queues, the ledger

ANY_VERSION = -1
"""Whatever is there now is replaced."""


class Declared(enum.StrEnum):
    """What can be declared, and withdrawn."""

    POOL = "pool"
    TENANT = "tenant"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Apply(Command[ApplyOutcome]):
    """Declare all of these, or nothing. Each comes with the version that it replaces: 0 for new, `ANY_VERSION`."""

    pools: tuple[tuple[PoolSpec, int], ...] = ()
    tenants: tuple[tuple[TenantSpec, int], ...] = ()
    queues: tuple[tuple[QueueSpec, int], ...] = ()
    rates: RateCard | None = None
    rates_version: int = ANY_VERSION
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class MoveQuotas(Command[None]):
    """The coordinator's own: put in force the windows of quotas that have opened or closed by now."""


@dataclass(frozen=True, slots=True)
class Withdraw(Command[None]):
    """Forget a declaration."""

    kind: Declared
    name: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Forgive(Command[int]):
    """Leases of a tenant that ended as `OVER_LIMIT` no longer count against it. Answers with how many did."""

    tenant: str


@dataclass(frozen=True, slots=True)
class Balance(Command[BalanceView]):
    """Which nodes of a pool should change hands between its projects; with `carry_out` they do."""

    pool: str
    carry_out: bool = False
    home: tuple[str, ...] = ()
    """Nodes that are to go home, instead of what is planned."""


@dataclass(frozen=True, slots=True)
class Defragment(Command[DefragmentView]):
    """Which movable leases should be granted elsewhere so that more fits; with `carry_out` they are. A bounded step."""

    carry_out: bool = False
    moves_max: int = 8
    cursor: int = 0
    by_itself: bool = False
    """Nobody asked for it: it keeps within the budget of moves, and spends of it."""


@dataclass(frozen=True, slots=True)
class PostCredit(Command[None]):
    """A tenant paid (or, below zero, was paid back)."""

    tenant: str
    money_micro: int
    reference: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class CorrectUsage(Command[None]):
    """Usage that was charged wrongly; decimals, because quantities know no bound."""

    tenant: str
    queue: str
    model: str
    share_milli_ms: str
    memory_byte_ms: str
    reference: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ObserveUse(Command[None]):
    """What a lease, or all leases of a tenant, were measured to use over an interval."""

    lease_id: str
    busy_milli_ms: int
    memory_byte_ms: int
    interval_ms: int
    """Added up over slices."""
    tenant: str = ""
    """Of whose leases together; empty: of `lease_id` alone."""
    up_bytes: int = 0
    """From programs elsewhere to the processes that served their leases."""
    down_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CloseBooks(Command[None]):
    """Sum up by day what ended before this midnight."""

    up_to_ms: int


@dataclass(frozen=True, slots=True)
class NoteDemand(Command[None]):
    """An hour (since the epoch) is over; see `core.demand`. Changes nothing where that hour is known, or was not seen
    for long enough.
    """

    hour: int
    covered_permille: int
    """Of the hour that was seen."""
    milli: tuple[tuple[str, int], ...]
    """Series -> the mean, in thousandths of devices."""


@dataclass(frozen=True, slots=True)
class LearnPrices(Command[None]):
    """New prices for the placement policy, with a version that rises."""

    table: PriceTable
