"""The calls of administrators, each as a flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from aliquot.client import admin
from aliquot.client._flow import Context, Flow, call
from aliquot.client._messages import read, write
from aliquot.client._methods import (
    GET_HEALTH,
    QUARANTINE_DEVICE,
    RETURN_DEVICE,
    VERIFY_DEVICE,
    Answer,
    Method,
    Request,
)
from aliquot.client.health import Health, Incident
from aliquot.v1 import admin_pb2, pool_pb2

T = TypeVar("T")
_Items = Sequence[admin_pb2.PoolItem | admin_pb2.TenantItem | admin_pb2.QueueItem]
_Views = Iterable[admin.PoolView | admin.TenantView | admin.QueueView]


def _admin(name: str, request: type[Request], answer: type[Answer]) -> Method[Request, Answer]:
    return Method(f"/aliquot.v1.AdminService/{name}", request, answer)


_APPLY = _admin("Apply", admin_pb2.ApplyRequest, admin_pb2.ApplyResponse)
_WITHDRAW = _admin("Withdraw", admin_pb2.WithdrawRequest, admin_pb2.WithdrawResponse)
_TENANCY = _admin("GetTenancy", admin_pb2.GetTenancyRequest, admin_pb2.Tenancy)
_DECLARE_MAINTENANCE = _admin(
    "DeclareMaintenance", admin_pb2.DeclareMaintenanceRequest, admin_pb2.DeclareMaintenanceResponse
)
_END_MAINTENANCE = _admin("EndMaintenance", admin_pb2.EndMaintenanceRequest, admin_pb2.EndMaintenanceResponse)
_MAINTENANCE = _admin("ListMaintenance", admin_pb2.ListMaintenanceRequest, admin_pb2.ListMaintenanceResponse)
_INVOICE = _admin("GetInvoice", admin_pb2.GetInvoiceRequest, admin_pb2.Invoice)
_CREDIT = _admin("PostCredit", admin_pb2.PostCreditRequest, admin_pb2.PostCreditResponse)
_CORRECT = _admin("CorrectUsage", admin_pb2.CorrectUsageRequest, admin_pb2.CorrectUsageResponse)
_CLOSE_BOOKS = _admin("CloseBooks", admin_pb2.CloseBooksRequest, admin_pb2.CloseBooksResponse)
_SET_ASIDE = _admin("RetrySetAside", admin_pb2.RetrySetAsideRequest, admin_pb2.RetrySetAsideResponse)
_FORGIVE = _admin("Forgive", admin_pb2.ForgiveRequest, admin_pb2.ForgiveResponse)


def ask(
    context: Context, method: Method[Request, Answer], request: Request, kind: type[T], timeout_s: float
) -> Flow[T]:
    """Call, and read the answer as a value."""
    return read((yield from call(context, method, request, timeout_s)), kind)


def apply(
    context: Context, declared: admin.Declarations, over: admin.Tenancy | None, timeout_s: float, *, dry_run: bool
) -> Flow[admin.Applied]:
    """Declare all of it, or nothing."""
    request = admin_pb2.ApplyRequest(dry_run=dry_run)
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
    return ask(context, _APPLY, request, admin.Applied, timeout_s)


def _name_versions(items: _Items, views: _Views) -> None:
    versions = {view.spec.name: view.version for view in views}
    for item in items:
        item.version = versions.get(item.spec.name, 0)


def withdraw(context: Context, kind: str, name: str, version: int | None, timeout_s: float) -> Flow[None]:
    """Withdraw one declaration."""
    request = admin_pb2.WithdrawRequest(kind=kind, name=name, version=version)
    yield from call(context, _WITHDRAW, request, timeout_s)


def tenancy(context: Context, timeout_s: float) -> Flow[admin.Tenancy]:
    """Everything declared."""
    return ask(context, _TENANCY, admin_pb2.GetTenancyRequest(), admin.Tenancy, timeout_s)


def declare_maintenance(context: Context, window: admin.MaintenanceWindow, timeout_s: float) -> Flow[admin.Maintenance]:
    """Declare a maintenance window."""
    request = admin_pb2.DeclareMaintenanceRequest(window=write(window, admin_pb2.MaintenanceWindow()))
    answer = yield from call(context, _DECLARE_MAINTENANCE, request, timeout_s)
    return read(answer.maintenance, admin.Maintenance)


def end_maintenance(context: Context, name: str, timeout_s: float) -> Flow[None]:
    """Withdraw a window."""
    yield from call(context, _END_MAINTENANCE, admin_pb2.EndMaintenanceRequest(name=name), timeout_s)


def maintenance(context: Context, timeout_s: float) -> Flow[tuple[admin.Maintenance, ...]]:
    """All windows."""
    answer = yield from call(context, _MAINTENANCE, admin_pb2.ListMaintenanceRequest(), timeout_s)
    return tuple(read(view, admin.Maintenance) for view in answer.windows)


def health(context: Context, incident: int, timeout_s: float) -> Flow[Health]:
    """What is wrong with cards."""
    return ask(context, GET_HEALTH, pool_pb2.GetHealthRequest(incident=incident), Health, timeout_s)


def quarantine_device(
    context: Context, uuid: str, reason: str, timeout_s: float, *, drain: bool
) -> Flow[Incident | None]:
    """Take a card out of service."""
    request = pool_pb2.QuarantineDeviceRequest(uuid=uuid, reason=reason, drain=drain)
    return _incident_of((yield from call(context, QUARANTINE_DEVICE, request, timeout_s)))


def verify_device(context: Context, uuid: str, reason: str, timeout_s: float) -> Flow[Incident | None]:
    """Have a card tested."""
    request = pool_pb2.VerifyDeviceRequest(uuid=uuid, reason=reason)
    return _incident_of((yield from call(context, VERIFY_DEVICE, request, timeout_s)))


def return_device(context: Context, uuid: str, reason: str, timeout_s: float) -> Flow[Incident | None]:
    """Take a card back into service."""
    request = pool_pb2.ReturnDeviceRequest(uuid=uuid, reason=reason)
    return _incident_of((yield from call(context, RETURN_DEVICE, request, timeout_s)))


def _incident_of(answer: pool_pb2.DeviceCareResponse) -> Incident | None:
    return read(answer.incident, Incident) if answer.HasField("incident") else None


def invoice(context: Context, tenant: str, from_ms: int, to_ms: int, timeout_s: float) -> Flow[admin.Invoice]:
    """What a tenant owes."""
    request = admin_pb2.GetInvoiceRequest(tenant=tenant, from_ms=from_ms, to_ms=to_ms)
    return ask(context, _INVOICE, request, admin.Invoice, timeout_s)


def post_credit(
    context: Context, tenant: str, money_micro: int, reference: str, note: str, timeout_s: float
) -> Flow[int]:
    """Post money; the balance afterwards, in millionths."""
    request = admin_pb2.PostCreditRequest(tenant=tenant, money_micro=money_micro, reference=reference, note=note)
    answer = yield from call(context, _CREDIT, request, timeout_s)
    return int(answer.balance_micro or 0)


def correct_usage(
    context: Context,
    timeout_s: float,
    *,
    tenant: str,
    queue: str,
    model: str,
    share_milli_ms: int,
    memory_byte_ms: int,
    reference: str,
    note: str,
) -> Flow[None]:
    """Correct a wrong charge. Amounts are decimal strings in the contract, because they know no bound."""
    request = admin_pb2.CorrectUsageRequest(
        tenant=tenant,
        queue=queue,
        model=model,
        share_milli_ms=str(share_milli_ms),
        memory_byte_ms=str(memory_byte_ms),
        reference=reference,
        note=note,
    )
    yield from call(context, _CORRECT, request, timeout_s)


def close_books(context: Context, up_to_ms: int, timeout_s: float) -> Flow[None]:
    """Sum up the entries of old days."""
    yield from call(context, _CLOSE_BOOKS, admin_pb2.CloseBooksRequest(up_to_ms=up_to_ms), timeout_s)


def set_aside(context: Context, subject: str, timeout_s: float, *, retry: bool) -> Flow[tuple[admin.SetAside, ...]]:
    """What deciding failed on too often, the one that failed first at the front; tried again with `retry`."""
    request = admin_pb2.RetrySetAsideRequest(subject=subject, carry_out=retry)
    answer = yield from call(context, _SET_ASIDE, request, timeout_s)
    return tuple(read(found, admin.SetAside) for found in answer.found)


def forgive(context: Context, tenant: str, timeout_s: float) -> Flow[int]:
    """Hold nothing against a tenant any more; how much there was."""
    answer = yield from call(context, _FORGIVE, admin_pb2.ForgiveRequest(tenant=tenant), timeout_s)
    return answer.offences
