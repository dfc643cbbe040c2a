"""The books as one value: for snapshots on disk, for hashes, and for starting again from them.

Only what can't be derived is in it. The order of everything is fixed, so equal books give equal bytes, whatever
the order of events or the hash seed was.
"""

from __future__ import annotations

import hashlib

import msgspec

from aliquot.coordinator.core.books.access import AuditEntry, Principal, Token
from aliquot.coordinator.core.books.capacity import CapacityBooks, CapacityRecord
from aliquot.coordinator.core.books.demand import Hour
from aliquot.coordinator.core.books.enrolment import FIRST_GENERATION, Enrolled, Generation, Invite
from aliquot.coordinator.core.books.health.records import (
    Buckets,
    CauseTotals,
    CopyRate,
    Hit,
    Incident,
    Past,
    RepairStart,
)
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.entries import DayTotal, Entry, HourTotal, Observed
from aliquot.coordinator.core.books.ledger.folding import hour_totals, hours_from
from aliquot.coordinator.core.books.ledger.rates import DatedRates, PriceHistory
from aliquot.coordinator.core.books.maintenance import Window
from aliquot.coordinator.core.books.nodes import Device, Node
from aliquot.coordinator.core.books.tenancy.accounts import Average
from aliquot.coordinator.core.books.tenancy.in_force import InForce
from aliquot.coordinator.core.books.tenancy.loans import Loan, NodeMove
from aliquot.coordinator.core.books.tenancy.specs import Pool, Queue, Tenant
from aliquot.coordinator.core.evolve import rebuild_indexes
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.state import State

FORMAT = 6
"""Raised when a version that reads the one before would lose something."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable, as of fact number `seq`."""

    format: int = FORMAT
    seq: int
    now_ms: int
    leader_epoch: int
    next_arrival: int
    leases: tuple[Lease, ...]
    """Sorted by arrival."""
    nodes: tuple[Node, ...]
    """In the order in which they first came: it is the rank that breaks placement's ties."""
    devices: tuple[tuple[str, Device], ...]
    """Sorted by UUID."""
    ended: tuple[str, ...]
    """Ended leases, in the order of their ends."""
    pools: tuple[Pool, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    queues: tuple[Queue, ...] = ()
    """These three sorted by name."""
    averages: tuple[Average, ...] = ()
    holds: tuple[Hold, ...] = ()
    """In the order in which they were made."""
    disruptions: tuple[tuple[str, tuple[int, ...]], ...] = ()
    rates: tuple[DatedRates, ...] = ()
    entries: tuple[Entry, ...] = ()
    next_entry: int = 1
    closed_up_to_ms: int = 0
    closed_days: tuple[DayTotal, ...] = ()
    observed: tuple[Observed, ...] = ()
    loans: tuple[Loan, ...] = ()
    """Sorted by node."""
    node_moves: tuple[NodeMove, ...] = ()
    node_moved_ms: tuple[tuple[str, int], ...] = ()
    budget_levels: tuple[tuple[str, tuple[int, int]], ...] = ()
    prices: PriceTable | None = None
    hours: tuple[HourTotal, ...] = ()
    """Sorted by tenant, time, queue and model."""
    folded_up_to_ms: int = 0
    windows: tuple[Window, ...] = ()
    """Sorted by name."""
    principals: tuple[Principal, ...] = ()
    """Sorted by name."""
    tokens: tuple[Token, ...] = ()
    """Sorted by id."""
    audit: tuple[AuditEntry, ...] = ()
    next_audit: int = 1
    enrolled: tuple[Enrolled, ...] = ()
    """Sorted by node id."""
    invites: tuple[Invite, ...] = ()
    """Sorted by id."""
    offences: tuple[tuple[str, tuple[int, ...]], ...] = ()
    incidents: tuple[Incident, ...] = ()
    """Open ones, by number."""
    incidents_closed: tuple[Incident, ...] = ()
    next_incident: int = 1
    past: tuple[tuple[str, tuple[Past, ...]], ...] = ()
    """Sorted by unit."""
    repair_starts: tuple[RepairStart, ...] = ()
    hits: tuple[tuple[str, tuple[Hit, ...]], ...] = ()
    cause_totals: tuple[tuple[str, CauseTotals], ...] = ()
    copies: tuple[tuple[str, CopyRate], ...] = ()
    """By unit, sorted."""
    repair_times: Buckets = Buckets()
    incident_intervals: Buckets = Buckets()
    generations: tuple[Generation, ...] = (FIRST_GENERATION,)
    """Of the pool's authority, the oldest first."""
    demand: tuple[tuple[int, Hour], ...] = ()
    """By the hour since the epoch, rising."""
    capacity: CapacityRecord | None = None
    """None: nothing was ever on offer."""
    in_force: tuple[InForce, ...] = ()
    """Windows of quotas; tenants' and queues', sorted."""


def to_snapshot(state: State) -> Snapshot:
    """The State's books. Cheap per lease: records are shared, not copied."""
    tenancy, ledger = state.tenancy, state.ledger
    return Snapshot(
        seq=state.seq,
        now_ms=state.now_ms,
        leader_epoch=state.leader_epoch,
        next_arrival=state.next_arrival,
        leases=tuple(sorted(state.leases.values(), key=lambda lease: lease.arrival)),
        nodes=tuple(state.nodes.values()),
        devices=tuple(sorted(state.devices.items())),
        ended=tuple(state.ended),
        pools=tuple(pool for _, pool in sorted(tenancy.pools.items())),
        tenants=tuple(tenant for _, tenant in sorted(tenancy.tenants.items())),
        queues=tuple(queue for _, queue in sorted(tenancy.queues.items())),
        averages=tenancy.averages(state.now_ms),
        holds=tuple(state.holds.values()),
        disruptions=tuple(sorted(state.disruptions.items())),
        rates=ledger.prices.dated,
        entries=tuple(ledger.entries),
        next_entry=ledger.next_number,
        closed_up_to_ms=ledger.closed_up_to_ms,
        closed_days=tuple(total for _, total in sorted(ledger.closed.items())),
        observed=tuple(observed for _, observed in sorted(ledger.observed.items())),
        loans=tuple(loan for _, loan in sorted(tenancy.loans.items())),
        node_moves=tuple(state.node_moves),
        node_moved_ms=tuple(sorted(state.node_moved_ms.items())),
        budget_levels=tuple(sorted(ledger.levels.items())),
        prices=state.prices,
        hours=tuple(hour_totals(ledger.hours)),
        folded_up_to_ms=ledger.folded_up_to_ms,
        windows=tuple(window for _, window in sorted(state.windows.items())),
        principals=tuple(principal for _, principal in sorted(state.access.principals.items())),
        tokens=tuple(token for _, token in sorted(state.access.tokens.items())),
        audit=tuple(state.access.audit),
        next_audit=state.access.next_entry,
        enrolled=tuple(enrolled for _, enrolled in sorted(state.enrolment.enrolled.items())),
        invites=tuple(invite for _, invite in sorted(state.enrolment.invites.items())),
        offences=tuple(sorted(tenancy.offences.items())),
        incidents=tuple(incident for _, incident in sorted(state.health.incidents.items())),
        incidents_closed=tuple(state.health.closed),
        next_incident=state.health.next_number,
        past=tuple(sorted(state.health.past.items())),
        repair_starts=tuple(state.health.starts),
        hits=tuple(sorted(state.health.hits.items())),
        cause_totals=tuple(sorted(state.health.totals.items())),
        copies=tuple(sorted(state.health.copies.items())),
        repair_times=state.health.repairs,
        incident_intervals=state.health.intervals,
        generations=state.enrolment.generations,
        demand=state.demand.after(-1),
        capacity=_capacity_record(state.capacity),
        in_force=tuple(item for _, item in sorted(tenancy.in_force.items())),
    )


def _capacity_record(books: CapacityBooks) -> CapacityRecord | None:
    if not books.version:
        return None
    return CapacityRecord(
        books.spec,
        books.version,
        books.next_order,
        tuple(order for _, order in sorted(books.orders.items())),
        tuple(books.closed),
        tuple(sorted(books.slots.items())),
        tuple(sorted(books.rests.items())),
        tuple(books.spells),
    )


def _restore_capacity(books: CapacityBooks, record: CapacityRecord) -> None:
    books.spec, books.version, books.next_order = record.spec, record.version, record.next_order
    books.orders = {order.number: order for order in record.orders}
    books.closed.extend(record.closed)
    books.slots = dict(record.slots)
    books.rests = dict(record.rests)
    books.spells.extend(record.spells)


def from_snapshot(snapshot: Snapshot) -> State:
    """A State with these books and fresh indexes."""
    state = State.fresh()
    state.seq = snapshot.seq
    state.now_ms = snapshot.now_ms
    state.leader_epoch = snapshot.leader_epoch
    state.next_arrival = snapshot.next_arrival
    state.nodes = {node.spec.node_id: node for node in snapshot.nodes}
    state.devices = dict(snapshot.devices)
    state.leases = {lease.lease_id: lease for lease in snapshot.leases}
    state.ended.extend(snapshot.ended)
    state.tenancy.pools = {pool.spec.name: pool for pool in snapshot.pools}
    state.tenancy.tenants = {tenant.spec.name: tenant for tenant in snapshot.tenants}
    state.tenancy.queues = {queue.spec.name: queue for queue in snapshot.queues}
    state.tenancy.loans = {loan.node_id: loan for loan in snapshot.loans}
    state.tenancy.offences = dict(snapshot.offences)
    state.tenancy.set_in_force(snapshot.in_force)
    state.node_moves = list(snapshot.node_moves)
    state.node_moved_ms = dict(snapshot.node_moved_ms)
    state.tenancy.set_averages(snapshot.averages)
    state.holds = {hold.owner: hold for hold in snapshot.holds}
    state.disruptions = dict(snapshot.disruptions)
    state.windows = {window.spec.name: window for window in snapshot.windows}
    access = state.access
    access.principals = {principal.name: principal for principal in snapshot.principals}
    access.tokens = {token.token_id: token for token in snapshot.tokens}
    access.audit.extend(snapshot.audit)
    access.next_entry = snapshot.next_audit
    state.enrolment.enrolled = {enrolled.node_id: enrolled for enrolled in snapshot.enrolled}
    state.enrolment.invites = {invite.invite_id: invite for invite in snapshot.invites}
    state.enrolment.generations = snapshot.generations
    health = state.health
    health.incidents = {incident.number: incident for incident in snapshot.incidents}
    health.closed.extend(snapshot.incidents_closed)
    health.next_number = snapshot.next_incident
    health.past = dict(snapshot.past)
    health.starts.extend(snapshot.repair_starts)
    health.hits = dict(snapshot.hits)
    health.totals = dict(snapshot.cause_totals)
    health.copies = dict(snapshot.copies)
    health.repairs, health.intervals = snapshot.repair_times, snapshot.incident_intervals
    for number, hour in snapshot.demand:
        state.demand.note(number, hour)
    if snapshot.capacity is not None:
        _restore_capacity(state.capacity, snapshot.capacity)
    ledger = state.ledger
    ledger.prices = PriceHistory(snapshot.rates)
    ledger.restore(snapshot.entries)
    ledger.next_number = snapshot.next_entry
    ledger.hours = hours_from(snapshot.hours)
    ledger.folded_up_to_ms = snapshot.folded_up_to_ms
    ledger.closed_up_to_ms = snapshot.closed_up_to_ms
    ledger.closed = {(t.day_start_ms, t.tenant, t.queue, t.model): t for t in snapshot.closed_days}
    ledger.observed = {(observed.tenant, observed.day_start_ms): observed for observed in snapshot.observed}
    ledger.levels = dict(snapshot.budget_levels)
    rebuild_indexes(state)
    state.prices = snapshot.prices
    return state


def state_hash(state: State) -> str:
    """SHA-256 of the books, in hexadecimal."""
    return hashlib.sha256(msgspec.msgpack.encode(to_snapshot(state), order="deterministic")).hexdigest()
