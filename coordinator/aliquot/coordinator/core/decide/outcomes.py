"""What a decision gives beside its facts."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.balancing import Move
from aliquot.coordinator.core.facts import Fact
from aliquot.coordinator.core.holds import Hold
from aliquot.coordinator.core.ledger.books import Extract
from aliquot.coordinator.core.ledger.rates import RateCard
from aliquot.coordinator.core.maintenance.windows import Window
from aliquot.coordinator.core.planning import Work
from aliquot.coordinator.core.tenancy.lending import NodeMove
from aliquot.coordinator.core.tenancy.specs import Amount, Balancing, Pool, QueueSpec, TenantSpec
from aliquot.coordinator.core.troubles import Trouble
from aliquot.coordinator.core.types import Missing, Placement


@dataclass(frozen=True, slots=True)
class AllocateOutcome:
    """The lease that answers an Allocate: `replayed` when its key had been used before."""

    lease_id: str
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class AdmitOutcome:
    """One step of the walk over the waiting lines. `more`: call again."""

    granted: bool
    more: bool


@dataclass(frozen=True, slots=True)
class TickOutcome:
    """One step of what was due. `more`: call again, something else is due already."""

    more: bool


@dataclass(frozen=True, slots=True)
class SetAside:
    """Work that had been set aside, and may be tried again now."""

    found: tuple[Trouble, ...]


@dataclass(frozen=True, slots=True)
class Explained:
    """Why a request would be granted, wait or be refused."""

    fits_now: bool
    impossible: bool
    summary: str
    missing: tuple[Missing, ...] = ()
    placement: Placement | None = None
    queue_position: int = 0
    queue_length: int = 0
    ahead: tuple[str, ...] = ()
    would_preempt: tuple[str, ...] = ()
    """Who would have to end for it to start at once, where somebody may be ended for it."""
    expected_start_ms: int = 0
    """From the time limits of what runs; 0: unknown."""
    expected_uncertainty_ms: int = 0
    """How much of the wait is guessed, because leases without a time limit must end first."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """What was (or, in a dry run, would be) declared, with the new versions; and what is so already."""

    changed: tuple[tuple[str, int], ...]
    unchanged: tuple[str, ...]


_NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class AccountView:
    """What a tenant or queue was promised, holds and waits for."""

    name: str
    spec: TenantSpec | QueueSpec
    version: int
    """0: never declared; it exists because it has, or had, leases."""
    share_milli: int
    memory_bytes: int
    waiting: int
    fair_share_billionths: int
    """Decayed and present dominant share over weight: what `fair_share` compares."""
    guaranteed_scaled: Amount = _NOTHING
    """What of the guarantee the pool can keep now."""
    budget_permille: int = 0


@dataclass(frozen=True, slots=True)
class TenancyView:
    """Everything declared, as of now."""

    pools: tuple[Pool, ...]
    tenants: tuple[AccountView, ...]
    queues: tuple[AccountView, ...]
    rates: RateCard | None
    rates_version: int
    guarantee_scale_millionths: int
    alerts: tuple[str, ...]
    holds: tuple[Hold, ...]


@dataclass(frozen=True, slots=True)
class ProjectView:
    """A project of a pool that is balanced."""

    name: str
    node_ids: tuple[str, ...]
    borrowed: tuple[str, ...]
    """Those of its nodes that others have lent it."""
    use_permille: int
    waited_ms: int
    """How long somebody of it has waited whom no limit keeps waiting."""


@dataclass(frozen=True, slots=True)
class BalanceView:
    """What balancing would do, or has done, and what it did before."""

    pool: str
    spec: Balancing
    projects: tuple[ProjectView, ...]
    moves: tuple[Move, ...]
    notes: tuple[str, ...]
    """Why there is no other move."""
    log: tuple[NodeMove, ...]
    carried_out: bool


@dataclass(frozen=True, slots=True)
class MovedLease:
    """One lease that should be, or was, granted elsewhere."""

    lease_id: str
    tenant: str
    source: Placement
    target: Placement


@dataclass(frozen=True, slots=True)
class DefragmentView:
    """One step of defragmentation."""

    moves: tuple[MovedLease, ...]
    gained_milli: int
    cursor: int
    """Where to go on; 0: every node was looked at."""
    mix_known: bool


@dataclass(frozen=True, slots=True)
class WindowView:
    """A maintenance window with the nodes it is over."""

    window: Window
    node_ids: tuple[str, ...]
    slices: int
    """What is held on them."""


@dataclass(frozen=True, slots=True)
class MaintenanceView:
    """All windows."""

    windows: tuple[WindowView, ...]


Outcome = (
    AllocateOutcome
    | AdmitOutcome
    | TickOutcome
    | SetAside
    | Explained
    | ApplyOutcome
    | TenancyView
    | BalanceView
    | DefragmentView
    | MaintenanceView
    | Extract
    | None
)


@dataclass(frozen=True, slots=True)
class Decision:
    """Facts to journal and apply together, or not at all."""

    facts: tuple[Fact, ...] = ()
    outcome: Outcome = None
    taken: tuple[Work, ...] = ()
    """What was due and is done with once the facts are applied."""


NOTHING = Decision()

__all__ = [
    "NOTHING",
    "AccountView",
    "AdmitOutcome",
    "AllocateOutcome",
    "ApplyOutcome",
    "Decision",
    "Explained",
    "Outcome",
    "SetAside",
    "TenancyView",
    "TickOutcome",
]
