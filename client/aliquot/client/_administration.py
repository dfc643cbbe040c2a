"""What administrators do through the SDK: declare tenants, queues, pools and prices; look at them; invoices and credit.

Messages are those of the contract (`aliquot.v1.admin_pb2`): a declaration is data, and has the same shape everywhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aliquot.client._flow import Context, Flow, call
from aliquot.client._methods import Method
from aliquot.v1 import admin_pb2

_APPLY = Method("/aliquot.v1.AdminService/Apply", admin_pb2.ApplyRequest, admin_pb2.ApplyResponse)
_WITHDRAW = Method("/aliquot.v1.AdminService/Withdraw", admin_pb2.WithdrawRequest, admin_pb2.WithdrawResponse)
_TENANCY = Method("/aliquot.v1.AdminService/GetTenancy", admin_pb2.GetTenancyRequest, admin_pb2.Tenancy)
_DEFRAGMENT = Method("/aliquot.v1.AdminService/Defragment", admin_pb2.DefragmentRequest, admin_pb2.DefragmentResponse)
_BALANCE = Method("/aliquot.v1.AdminService/Balance", admin_pb2.BalanceRequest, admin_pb2.BalanceResponse)
_DECLARE_MAINTENANCE = Method(
    "/aliquot.v1.AdminService/DeclareMaintenance",
    admin_pb2.DeclareMaintenanceRequest,
    admin_pb2.DeclareMaintenanceResponse,
)
_END_MAINTENANCE = Method(
    "/aliquot.v1.AdminService/EndMaintenance", admin_pb2.EndMaintenanceRequest, admin_pb2.EndMaintenanceResponse
)
_MAINTENANCE = Method(
    "/aliquot.v1.AdminService/ListMaintenance", admin_pb2.ListMaintenanceRequest, admin_pb2.ListMaintenanceResponse
)
_INVOICE = Method("/aliquot.v1.AdminService/GetInvoice", admin_pb2.GetInvoiceRequest, admin_pb2.Invoice)
_CREDIT = Method("/aliquot.v1.AdminService/PostCredit", admin_pb2.PostCreditRequest, admin_pb2.PostCreditResponse)


def apply(context: Context, request: admin_pb2.ApplyRequest, timeout_s: float) -> Flow[admin_pb2.ApplyResponse]:
    """Declare all of it, or nothing."""
    return (yield from call(context, _APPLY, request, timeout_s))


def withdraw(context: Context, kind: str, name: str, version: int | None, timeout_s: float) -> Flow[None]:
    """Withdraw one declaration."""
    request = admin_pb2.WithdrawRequest(kind=kind, name=name, version=version)
    yield from call(context, _WITHDRAW, request, timeout_s)


def tenancy(context: Context, timeout_s: float) -> Flow[admin_pb2.Tenancy]:
    """Everything declared."""
    return (yield from call(context, _TENANCY, admin_pb2.GetTenancyRequest(), timeout_s))


def invoice(context: Context, tenant: str, from_ms: int, to_ms: int, timeout_s: float) -> Flow[admin_pb2.Invoice]:
    """What a tenant owes."""
    request = admin_pb2.GetInvoiceRequest(tenant=tenant, from_ms=from_ms, to_ms=to_ms)
    return (yield from call(context, _INVOICE, request, timeout_s))


def balance(
    context: Context, pool: str, home: Iterable[str], timeout_s: float, *, carry_out: bool
) -> Flow[admin_pb2.BalanceResponse]:
    """Which nodes should change hands, or do."""
    request = admin_pb2.BalanceRequest(pool=pool, carry_out=carry_out, home=home)
    return (yield from call(context, _BALANCE, request, timeout_s))


def defragment(
    context: Context, moves_max: int, cursor: int, timeout_s: float, *, carry_out: bool
) -> Flow[admin_pb2.DefragmentResponse]:
    """One step of moving leases so that more fits."""
    request = admin_pb2.DefragmentRequest(carry_out=carry_out, moves_max=moves_max, cursor=cursor)
    return (yield from call(context, _DEFRAGMENT, request, timeout_s))


def declare_maintenance(
    context: Context, window: admin_pb2.MaintenanceWindow, timeout_s: float
) -> Flow[admin_pb2.MaintenanceView]:
    """Say when nodes are to be left alone."""
    request = admin_pb2.DeclareMaintenanceRequest(window=window)
    return (yield from call(context, _DECLARE_MAINTENANCE, request, timeout_s)).maintenance


def end_maintenance(context: Context, name: str, timeout_s: float) -> Flow[None]:
    """Withdraw a window."""
    yield from call(context, _END_MAINTENANCE, admin_pb2.EndMaintenanceRequest(name=name), timeout_s)


def maintenance(context: Context, timeout_s: float) -> Flow[list[admin_pb2.MaintenanceView]]:
    """All windows."""
    return list((yield from call(context, _MAINTENANCE, admin_pb2.ListMaintenanceRequest(), timeout_s)).windows)


def post_credit(
    context: Context, tenant: str, money_micro: int, reference: str, note: str, timeout_s: float
) -> Flow[int]:
    """Post money; the balance afterwards, in millionths."""
    request = admin_pb2.PostCreditRequest(tenant=tenant, money_micro=money_micro, reference=reference, note=note)
    answer = yield from call(context, _CREDIT, request, timeout_s)
    return int(answer.balance_micro)


class Admin:
    """`Pool.admin`. Each method is one call; errors are those of the pool."""

    def __init__(self, context: Context, timeout_s: float, run: Callable[[Flow[Any]], Any]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._run = run

    def apply(self, request: admin_pb2.ApplyRequest) -> admin_pb2.ApplyResponse:
        """Declare all of it, or nothing. Raises `Conflict` where a version is not the one that was named."""
        answer: admin_pb2.ApplyResponse = self._run(apply(self._context, request, self._timeout_s))
        return answer

    def withdraw(self, kind: str, name: str, *, version: int | None = None) -> None:
        """Withdraw a declaration of this kind (pool, tenant, queue). Raises `InUse` while it is needed."""
        self._run(withdraw(self._context, kind, name, version, self._timeout_s))

    def tenancy(self) -> admin_pb2.Tenancy:
        """Everything declared, what is held and waits, and what needs attention."""
        answer: admin_pb2.Tenancy = self._run(tenancy(self._context, self._timeout_s))
        return answer

    def balance(
        self, pool: str = "", *, carry_out: bool = False, home: Iterable[str] = ()
    ) -> admin_pb2.BalanceResponse:
        """Which nodes of a pool should change hands between its projects; with `carry_out` they do.

        Nodes in `home` (ids or names) go home instead of what is planned.
        """
        flow = balance(self._context, pool, home, self._timeout_s, carry_out=carry_out)
        answer: admin_pb2.BalanceResponse = self._run(flow)
        return answer

    def defragment(
        self, *, carry_out: bool = False, moves_max: int = 8, cursor: int = 0
    ) -> admin_pb2.DefragmentResponse:
        """One step: which movable leases should be granted elsewhere so that more fits; with `carry_out` they are.

        The answer's `cursor` is for the next step; 0: every node was looked at.
        """
        flow = defragment(self._context, moves_max, cursor, self._timeout_s, carry_out=carry_out)
        answer: admin_pb2.DefragmentResponse = self._run(flow)
        return answer

    def declare_maintenance(self, window: admin_pb2.MaintenanceWindow) -> admin_pb2.MaintenanceView:
        """Say when nodes are to be left alone, once or every week. The same again changes nothing.

        Raises `NameTaken` where another window has this name, `InvalidRequest` for times or a zone that can't be read.
        """
        answer: admin_pb2.MaintenanceView = self._run(declare_maintenance(self._context, window, self._timeout_s))
        return answer

    def end_maintenance(self, name: str) -> None:
        """Withdraw a window; nodes that only it closed are open again. Raises `MaintenanceNotFound`."""
        self._run(end_maintenance(self._context, name, self._timeout_s))

    def maintenance(self) -> list[admin_pb2.MaintenanceView]:
        """All windows, the next one first."""
        answer: list[admin_pb2.MaintenanceView] = self._run(maintenance(self._context, self._timeout_s))
        return answer

    def invoice(self, tenant: str, *, from_ms: int, to_ms: int) -> admin_pb2.Invoice:
        """What a tenant owes for [from_ms, to_ms), milliseconds since the Unix epoch."""
        answer: admin_pb2.Invoice = self._run(invoice(self._context, tenant, from_ms, to_ms, self._timeout_s))
        return answer

    def post_credit(self, tenant: str, money_micro: int, *, reference: str, note: str = "") -> int:
        """Post money, once for each reference; the balance afterwards, in millionths of the currency."""
        answer: int = self._run(post_credit(self._context, tenant, money_micro, reference, note, self._timeout_s))
        return answer


class AsyncAdmin:
    """`AsyncPool.admin`: the same, to be awaited."""

    def __init__(self, context: Context, timeout_s: float, run: Callable[[Flow[Any]], Awaitable[Any]]) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._run = run

    async def apply(self, request: admin_pb2.ApplyRequest) -> admin_pb2.ApplyResponse:
        """See `Admin.apply`."""
        answer: admin_pb2.ApplyResponse = await self._run(apply(self._context, request, self._timeout_s))
        return answer

    async def withdraw(self, kind: str, name: str, *, version: int | None = None) -> None:
        """See `Admin.withdraw`."""
        await self._run(withdraw(self._context, kind, name, version, self._timeout_s))

    async def tenancy(self) -> admin_pb2.Tenancy:
        """See `Admin.tenancy`."""
        answer: admin_pb2.Tenancy = await self._run(tenancy(self._context, self._timeout_s))
        return answer

    async def balance(
        self, pool: str = "", *, carry_out: bool = False, home: Iterable[str] = ()
    ) -> admin_pb2.BalanceResponse:
        """See `Admin.balance`."""
        flow = balance(self._context, pool, home, self._timeout_s, carry_out=carry_out)
        answer: admin_pb2.BalanceResponse = await self._run(flow)
        return answer

    async def defragment(
        self, *, carry_out: bool = False, moves_max: int = 8, cursor: int = 0
    ) -> admin_pb2.DefragmentResponse:
        """See `Admin.defragment`."""
        flow = defragment(self._context, moves_max, cursor, self._timeout_s, carry_out=carry_out)
        answer: admin_pb2.DefragmentResponse = await self._run(flow)
        return answer

    async def declare_maintenance(self, window: admin_pb2.MaintenanceWindow) -> admin_pb2.MaintenanceView:
        """See `Admin.declare_maintenance`."""
        flow = declare_maintenance(self._context, window, self._timeout_s)
        answer: admin_pb2.MaintenanceView = await self._run(flow)
        return answer

    async def end_maintenance(self, name: str) -> None:
        """See `Admin.end_maintenance`."""
        await self._run(end_maintenance(self._context, name, self._timeout_s))

    async def maintenance(self) -> list[admin_pb2.MaintenanceView]:
        """See `Admin.maintenance`."""
        answer: list[admin_pb2.MaintenanceView] = await self._run(maintenance(self._context, self._timeout_s))
        return answer

    async def invoice(self, tenant: str, *, from_ms: int, to_ms: int) -> admin_pb2.Invoice:
        """See `Admin.invoice`."""
        answer: admin_pb2.Invoice = await self._run(invoice(self._context, tenant, from_ms, to_ms, self._timeout_s))
        return answer

    async def post_credit(self, tenant: str, money_micro: int, *, reference: str, note: str = "") -> int:
        """See `Admin.post_credit`."""
        flow = post_credit(self._context, tenant, money_micro, reference, note, self._timeout_s)
        answer: int = await self._run(flow)
        return answer
