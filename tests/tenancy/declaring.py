"""Short ways to declare tenants, queues and pools in tests."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import (
    UNLIMITED,
    Amount,
    PoolSpec,
    QueuePolicy,
    QueueSpec,
    Quota,
    TenantSpec,
)
from tests.core.harness import Books


def quota(guaranteed: int = 0, limit: int = UNLIMITED, *, weight: int = 1) -> Quota:
    """Of whole devices; memory is not bounded."""
    return Quota(
        guaranteed=Amount(guaranteed * 1000),
        limit=Amount(limit * 1000 if limit >= 0 else UNLIMITED, UNLIMITED),
        weight=weight,
    )


def tenant(name: str, guaranteed: int = 0, limit: int = UNLIMITED, *, weight: int = 1, **more: object) -> TenantSpec:
    """A tenant with so many whole devices."""
    return TenantSpec(name=name, quota=quota(guaranteed, limit, weight=weight), **more)  # type: ignore[arg-type]


def queue(name: str, guaranteed: int = 0, limit: int = UNLIMITED, *, weight: int = 1, **more: object) -> QueueSpec:
    """A queue with so many whole devices."""
    return QueueSpec(name=name, quota=quota(guaranteed, limit, weight=weight), **more)  # type: ignore[arg-type]


def root(policy: QueuePolicy, **more: object) -> QueueSpec:
    """The root queue."""
    return QueueSpec(name="root", parent="", policy=policy, **more)  # type: ignore[arg-type]


def declare(books: Books, *specs: PoolSpec | TenantSpec | QueueSpec) -> None:
    """Apply all of them, whatever was there before."""
    books.do(
        c.Apply(
            pools=tuple((spec, c.ANY_VERSION) for spec in specs if isinstance(spec, PoolSpec)),
            tenants=tuple((spec, c.ANY_VERSION) for spec in specs if isinstance(spec, TenantSpec)),
            queues=tuple((spec, c.ANY_VERSION) for spec in specs if isinstance(spec, QueueSpec)),
        )
    )
