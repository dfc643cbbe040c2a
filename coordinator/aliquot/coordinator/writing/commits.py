"""What the writer hands to the outbox once a group is durable: the records that changed, as they were when it
closed.

Records are immutable, so that a reference taken when the group closed is still what was committed while the next
group is already being decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import TypeVar

from aliquot.coordinator.core.books.access import AuditEntry, Principal, Token
from aliquot.coordinator.core.books.demand import Hour
from aliquot.coordinator.core.books.enrolment import Enrolled, Generation, Invite
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.ledger import Change
from aliquot.coordinator.core.books.ledger.meters import Meter
from aliquot.coordinator.core.books.maintenance import Window
from aliquot.coordinator.core.books.nodes import Device, Node
from aliquot.coordinator.core.books.tenancy.accounts import Held
from aliquot.coordinator.core.books.tenancy.tenancy import Declarations
from aliquot.coordinator.core.state import State, Touched

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Callers:
    """Principals and tokens that changed, and what was put down of who did what."""

    principals: tuple[tuple[str, Principal | None], ...] = ()
    tokens: tuple[tuple[str, Token | None], ...] = ()
    audit: tuple[AuditEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class BooksChange:
    """What became of declarations, accounts, budgets, holds, maintenance windows and the ledger."""

    declared: Declarations | None = None
    """All declarations, where one of them changed."""
    accounts: tuple[Held, ...] = ()
    meters: tuple[tuple[str, Meter], ...] = ()
    """Of tenants with a budget: those that changed, or all of them."""
    all_meters: bool = False
    holds: tuple[Hold, ...] | None = None
    """All there are, where one has changed: they are few."""
    windows: tuple[Window, ...] | None = None
    """The same of windows, the next one first."""
    ledger: tuple[Change, ...] = ()
    callers: Callers | None = None
    all_callers: bool = False
    """`callers` are all there are, and no others."""
    enrolled: tuple[tuple[str, Enrolled | None], ...] = ()
    """Nodes with the key that speaks for each now; None: none does."""
    invites: tuple[tuple[str, Invite | None], ...] = ()
    generations: tuple[Generation, ...] | None = None
    """Of the pool's authority: all of them, where one has begun or was retired."""
    demand: tuple[tuple[int, Hour], ...] = ()
    """Hours of demand since the last group, or all of them."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything up to fact `seq` is durable, and this is what its group changed. `None`: the record is gone."""

    seq: int
    at_ms: int
    leader_epoch: int
    leases: tuple[tuple[str, Lease | None], ...]
    nodes: tuple[tuple[str, Node | None], ...]
    devices: tuple[tuple[str, Device | None], ...]
    books: BooksChange = field(default_factory=BooksChange)


def take_commit(state: State) -> Commit:
    """Everything that changed since this was last called."""
    touched = state.take_touched()
    leases, nodes, devices = state.leases, state.nodes, state.devices
    return Commit(
        seq=state.seq,
        at_ms=state.now_ms,
        leader_epoch=state.leader_epoch,
        leases=tuple([(lease_id, leases.get(lease_id)) for lease_id in touched.leases]),
        nodes=tuple([(node_id, nodes.get(node_id)) for node_id in touched.nodes]),
        devices=tuple([(uuid, devices.get(uuid)) for uuid in touched.devices]),
        books=_take_books(state, touched),
    )


def _take_books(state: State, touched: Touched, *, whole: bool = False) -> BooksChange:
    """What changed of the books, or all of them."""
    declared, accounts = state.tenancy.take_changes(whole=whole)
    meters, all_meters = state.meters, declared is not None or state.ledger.repriced
    names: Iterable[str] = meters if all_meters else touched.meters
    plans = whole or touched.plans
    return BooksChange(
        declared=declared,
        accounts=accounts,
        meters=tuple([(name, replace(meters[name])) for name in names]),
        all_meters=all_meters,
        holds=tuple(state.holds.values()) if plans else None,
        windows=tuple(sorted(state.windows.values(), key=_start)) if plans else None,
        ledger=state.ledger.take_changes(whole=whole),
        callers=_callers(state, touched, whole=whole),
        all_callers=whole,
        enrolled=_some(state.enrolment.enrolled, None if whole else touched.enrolled),
        invites=_some(state.enrolment.invites, None if whole else touched.invites),
        generations=state.enrolment.generations if whole or touched.authority else None,
        demand=state.demand.after(-1) if whole else tuple(touched.demand),
    )


def _callers(state: State, touched: Touched, *, whole: bool) -> Callers | None:
    books = state.access
    if whole:
        return Callers(tuple(books.principals.items()), tuple(books.tokens.items()), tuple(books.audit))
    if not (touched.principals or touched.tokens or touched.audit):
        return None
    return Callers(
        tuple([(name, books.principals.get(name)) for name in touched.principals]),
        tuple([(token_id, books.tokens.get(token_id)) for token_id in touched.tokens]),
        tuple(touched.audit),
    )


def _some(records: Mapping[str, T], names: Iterable[str] | None) -> tuple[tuple[str, T | None], ...]:
    """These, or all."""
    return tuple([(name, records.get(name)) for name in (records if names is None else names)])


def _start(window: Window) -> tuple[int, str]:
    return window.starts_ms, window.spec.name


def whole_state(state: State) -> Commit:
    """All of the State as one commit, for a View that starts from nothing."""
    touched = state.take_touched()
    return Commit(
        seq=state.seq,
        at_ms=state.now_ms,
        leader_epoch=state.leader_epoch,
        leases=tuple((lease.lease_id, lease) for lease in sorted(state.leases.values(), key=attrgetter("arrival"))),
        nodes=tuple(state.nodes.items()),
        devices=tuple(state.devices.items()),
        books=_take_books(state, touched, whole=True),
    )
