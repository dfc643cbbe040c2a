"""What has happened to pools, tenants, queues, and the nodes that they lend each other."""

from __future__ import annotations

from aliquot.coordinator.core.books.tenancy.in_force import InForce
from aliquot.coordinator.core.books.tenancy.specs import PoolSpec, QueueSpec, TenantSpec
from aliquot.coordinator.core.values.fact import Fact


class PoolApplied(Fact, frozen=True, tag="pool"):
    """A pool was declared, or declared anew."""

    spec: PoolSpec
    version: int


class TenantApplied(Fact, frozen=True, tag="tenant"):
    """A tenant was declared, or declared anew."""

    spec: TenantSpec
    version: int


class QueueApplied(Fact, frozen=True, tag="queue"):
    """A queue was declared, or declared anew."""

    spec: QueueSpec
    version: int


class QuotasInForce(Fact, frozen=True, tag="quotas>"):
    """These windows of quotas are in force from now on, all at once; see `in_force`."""

    items: tuple[InForce, ...]


class OffencesForgotten(Fact, frozen=True, tag="offences-"):
    """Leases of a tenant that ended as `OVER_LIMIT` until then do not count against it any more."""

    tenant: str
    up_to_ms: int
    forgiven: bool = False
    """By an administrator; otherwise by the time that has passed."""


class PoolRemoved(Fact, frozen=True, tag="pool-"):
    """A pool's declaration was withdrawn."""

    name: str


class TenantRemoved(Fact, frozen=True, tag="tenant-"):
    """A tenant's declaration was withdrawn. Its ledger stays."""

    name: str


class QueueRemoved(Fact, frozen=True, tag="queue-"):
    """A queue's declaration was withdrawn."""

    name: str
