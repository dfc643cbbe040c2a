"""What administrators declare of pools, tenants and queues, and what follows from it."""

from __future__ import annotations

import enum

from aliquot.coordinator.core.books.ledger.rates import RateCard
from aliquot.coordinator.core.books.tenancy.specs import PoolSpec, QueueSpec, TenantSpec
from aliquot.coordinator.core.commands.base import Command
from aliquot.coordinator.core.commands.outcomes import ApplyOutcome

ANY_VERSION = -1
"""Whatever is there now is replaced."""


class Declared(enum.StrEnum):
    """What can be declared, and withdrawn."""

    POOL = "pool"
    TENANT = "tenant"
    QUEUE = "queue"


class Apply(Command[ApplyOutcome], frozen=True):
    """Declare all of these, or nothing. Each comes with the version that it replaces: 0 for new, `ANY_VERSION`."""

    pools: tuple[tuple[PoolSpec, int], ...] = ()
    tenants: tuple[tuple[TenantSpec, int], ...] = ()
    queues: tuple[tuple[QueueSpec, int], ...] = ()
    rates: RateCard | None = None
    rates_version: int = ANY_VERSION
    dry_run: bool = False


class MoveQuotas(Command[None], frozen=True):
    """The coordinator's own: put in force the windows of quotas that have opened or closed by now."""


class Withdraw(Command[None], frozen=True):
    """Forget a declaration."""

    kind: Declared
    name: str
    version: int = ANY_VERSION


class Forgive(Command[int], frozen=True):
    """Leases of a tenant that ended as `OVER_LIMIT` no longer count against it. Answers with how many did."""

    tenant: str


class PostCredit(Command[None], frozen=True):
    """A tenant paid (or, below zero, was paid back)."""

    tenant: str
    money_micro: int
    reference: str
    note: str = ""


class CorrectUsage(Command[None], frozen=True):
    """Usage that was charged wrongly; decimals, because quantities know no bound."""

    tenant: str
    queue: str
    model: str
    share_milli_ms: str
    memory_byte_ms: str
    reference: str
    note: str = ""
