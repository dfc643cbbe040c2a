"""Which account a lease counts against, and with what: questions that deciding and counting share."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.coordinator.core.leases.records import Lease, Slice
from aliquot.coordinator.core.tenancy.accounts import Owner
from aliquot.coordinator.core.tenancy.ranking import Part
from aliquot.coordinator.core.tenancy.view import TenancyView


def queue_of(tenancy: TenancyView, lease: Lease) -> str:
    """The queue a lease waits in and counts against."""
    return tenancy.queue_of(lease.request.tenant, lease.request.queue)


def owner_of(lease: Lease) -> Owner:
    """The owner of a lease's slices."""
    return Owner(lease.lease_id, lease.request.tenant, lease.request.queue)


def parts_of(slices: Iterable[Slice]) -> list[Part]:
    """What slices hold, as accounts count it."""
    return [(piece.kind, piece.plan.share_milli, piece.plan.memory_bytes) for piece in slices]
