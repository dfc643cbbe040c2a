"""A tenant's ceilings: on the priority that is asked for in its name, and on how many of its requests wait.

Both hold for every tenant below it too, so the least of a tenant's own and of those above it counts. They are looked at
when something is asked for: what was accepted before a ceiling was lowered stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from aliquot.coordinator.core.books.tenancy.specs import Tenant, TenantSpec, upwards
from aliquot.coordinator.core.values.errors import InvalidField, QueueFull, QuotaExceeded
from aliquot.coordinator.core.values.types import RequestSpec


class Ceiling(NamedTuple):
    """The highest value that is allowed, and which tenant's it is."""

    most: int
    owner: str


class Waiting(Protocol):
    """`WaitingLines`."""

    def waiting_below(self, tenant: str) -> int:
        """How many requests of a tenant and all below it wait."""


def priority_ceiling(tenants: Mapping[str, Tenant], tenant: str) -> Ceiling | None:
    """What bounds the priorities that a tenant may ask for; None: nothing."""
    found = None
    for name in upwards(tenant):
        most = tenants[name].spec.priority_max if name in tenants else None
        if most is not None and (found is None or most < found.most):
            found = Ceiling(most, name)
    return found


def waiting_ceilings(tenants: Mapping[str, Tenant], tenant: str) -> Iterator[Ceiling]:
    """What bounds the requests that wait, of a tenant and of each above it: all of them hold."""
    for name in upwards(tenant):
        most = tenants[name].spec.waiting_max if name in tenants else None
        if most is not None:
            yield Ceiling(most, name)


def check_priority(tenants: Mapping[str, Tenant], request: RequestSpec) -> None:
    """Raises QuotaExceeded for a request above its tenant's ceiling."""
    ceiling = priority_ceiling(tenants, request.tenant)
    if ceiling is not None and request.priority > ceiling.most:
        raise QuotaExceeded(
            f"tenant {ceiling.owner}",
            f"priority {request.priority} was asked for; that of tenant {ceiling.owner} and all below it is at most "
            f"{ceiling.most}",
            f"ask for priority {ceiling.most} or less, or have `priority_max` raised; waiting will not help",
        )


def full(tenants: Mapping[str, Tenant], lines: Waiting, tenant: str) -> QueueFull | None:
    """Why another request of a tenant may not wait now; None: it may."""
    for most, owner in waiting_ceilings(tenants, tenant):
        waiting = lines.waiting_below(owner)
        if waiting >= most:
            return QueueFull(
                f"{waiting} requests of tenant {owner} and those below it wait; at most {most} may (`waiting_max`)",
                hint="try again when one of them has been granted, give up others, or have `waiting_max` raised",
            )
    return None


def check_within(tenants: Mapping[str, Tenant], spec: TenantSpec, path: str) -> None:
    """Whoever may declare only what is below its own tenant stays within what holds there. Raises InvalidField."""
    parent = spec.name.rpartition("/")[0]
    above = priority_ceiling(tenants, parent)
    if spec.priority_max is not None and above is not None and spec.priority_max > above.most:
        raise _too_high(f"{path}.priority_max", spec.priority_max, above)
    for ceiling in waiting_ceilings(tenants, parent):
        if spec.waiting_max is not None and spec.waiting_max > ceiling.most:
            raise _too_high(f"{path}.waiting_max", spec.waiting_max, ceiling)


def _too_high(path: str, asked: int, ceiling: Ceiling) -> InvalidField:
    said = f"{asked} is above the {ceiling.most} of tenant {ceiling.owner}, which holds for all below it"
    return InvalidField(path, said, hint=f"{ceiling.most} or less, or leave it out: then that holds")
