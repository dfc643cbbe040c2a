"""Whose queue is it? A queue that is declared for somebody is for nobody else, by whatever name a request asks for it.

A queue belongs to the tenants that it lists; else to those whose own queue it is (`default_queue`), and to the tenants
below these; else to whom the queue above it belongs; else to everybody. A tenant that has a queue of its own uses that,
those below it, and queues that list it: what nobody declared for it is no way around its limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from aliquot.common.text import nearest
from aliquot.coordinator.core.books.tenancy.specs import DEFAULT_QUEUE, upwards
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.values.errors import InvalidField, QueueNotFound, TenantNotFound

# Their names are not told here: whoever asks may be of one of them only.
_NAME_ONE = "name one (--tenant); `aliquot tenants` lists those that you may see"


def check_owner(tenancy: Tenancy, tenant: str, queue: str, *, strict: bool | None) -> None:
    """Whether a request in this tenant's name may wait in this queue (empty: the tenant's own). `strict`: only names
    that are declared count; None: where any tenant is, these and names below them, which share their limits. Raises
    TenantNotFound, QueueNotFound, InvalidField.
    """
    known = (tenant,) if strict else tuple(upwards(tenant))
    if tenancy.tenants.keys().isdisjoint(known) and (bool(tenancy.tenants) if strict is None else strict):
        if not tenant:
            raise TenantNotFound("no tenant is named, and here tenants are declared", hint=_NAME_ONE)
        raise TenantNotFound(f"there is no tenant {tenant!r}", hint=_meant(tenant, tenancy.tenants, "tenants"))
    name = tenancy.queue_of(tenant, queue)
    declared = bool(tenancy.queues) if strict is None else strict
    if queue and declared and queue not in tenancy.queues and queue != DEFAULT_QUEUE:
        raise QueueNotFound(f"there is no queue {queue!r}", hint=_meant(queue, tenancy.queues, "queues"))
    if not may_use(tenancy, tenant, name):
        raise InvalidField(
            "queue",
            f"tenant {tenant} may not use queue {name}",
            hint=f"leave the queue out, or have an administrator list {tenant} under `tenants` of {name}",
        )


def may_use(tenancy: Tenancy, tenant: str, queue: str, *, apart_from: str = "") -> bool:
    """Whether a queue is this tenant's to use. `apart_from`: claims of tenants below this one don't count."""
    path = tenancy.path(queue)
    if tenancy.queue_spec(queue).tenants:
        return tenant in tenancy.queue_spec(queue).tenants
    above = tuple(upwards(tenant))
    for name in path:
        owners: Collection[str] = tenancy.queue_spec(name).tenants or _claims(tenancy, name, apart_from)
        if owners:
            return not set(above).isdisjoint(owners)
    own = next((spec for each in above if (spec := tenancy.tenant_spec(each).default_queue)), "")
    return not own or own in path


def _claims(tenancy: Tenancy, queue: str, apart_from: str) -> list[str]:
    found: Iterable[str] = tenancy.claims.get(queue, ())
    return [each for each in found if not (apart_from and each.startswith(f"{apart_from}/"))]


def _meant(word: str, known: Collection[str], kind: str) -> str:
    close = nearest(word, known)
    return (f"did you mean {close[0]}? " if close else "") + f"`aliquot {kind}` lists those there are"
