"""What administrators declare, as one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aliquot.client import admin
from aliquot.client._messages import write
from aliquot.client._methods import methods_of
from aliquot.v1 import admin_pb2

ADMIN = methods_of(admin_pb2.DESCRIPTOR, "AdminService")
_Items = Sequence[admin_pb2.PoolItem | admin_pb2.TenantItem | admin_pb2.QueueItem]
_Views = Iterable[admin.PoolView | admin.TenantView | admin.QueueView]


def declaration(declared: admin.Declarations, over: admin.Tenancy | None) -> admin_pb2.ApplyRequest:
    """All of it, with the versions of what it is to replace. Raises `InvalidRequest`."""
    request = admin_pb2.ApplyRequest()
    for spec in declared.pools:
        write(spec, request.pools.add().spec)
    for tenant in declared.tenants:
        write(tenant, request.tenants.add().spec)
    for queue in declared.queues:
        write(queue, request.queues.add().spec)
    if declared.rates is not None:
        write(declared.rates, request.rates)
        request.rates.SetInParent()
    if over is not None:
        _name_versions(request.pools, over.pools)
        _name_versions(request.tenants, over.tenants)
        _name_versions(request.queues, over.queues)
        if declared.rates is not None:
            request.rates_version = over.rates_version
    return request


def _name_versions(items: _Items, views: _Views) -> None:
    versions = {view.spec.name: view.version for view in views}
    for item in items:
        item.version = versions.get(item.spec.name, 0)
