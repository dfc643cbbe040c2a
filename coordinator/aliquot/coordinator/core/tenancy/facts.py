"""What has happened to pools, tenants, queues, and the nodes that they lend each other; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.tenancy.specs import Amount, PoolSpec, QueueSpec, TenantSpec


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


class PoolRemoved(Fact, frozen=True, tag="pool-"):
    """A pool's declaration was withdrawn."""

    name: str


class TenantRemoved(Fact, frozen=True, tag="tenant-"):
    """A tenant's declaration was withdrawn. Its ledger stays."""

    name: str


class QueueRemoved(Fact, frozen=True, tag="queue-"):
    """A queue's declaration was withdrawn."""

    name: str


class NodeLent(Fact, frozen=True, tag="lent"):
    """A node serves another project from now on (its label is a `NodePut` of the same group), or its own again.

    `guaranteed` went along from the home's guarantee to the borrower's; a node that goes home takes it back.
    """

    node_id: str
    pool: str
    label: str
    lender: str
    borrower: str
    home: str
    guaranteed: Amount
    reason: str
