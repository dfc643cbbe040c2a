"""Tenants, queues, prices, bills and maintenance windows."""

from __future__ import annotations

from enum import StrEnum
from http import HTTPStatus

from fastapi import APIRouter, Response

from aliquot.client.admin import Applied, Invoice, Maintenance, SetAside, Tenancy
from aliquot.console.api.answers import answer, shows
from aliquot.console.api.asking import Credit, Declared, Moment, Window
from aliquot.console.api.callers import Pool

router = APIRouter(tags=["tenancy"])


class Kind(StrEnum):
    """What can be declared under a name."""

    POOL = "pool"
    TENANT = "tenant"
    QUEUE = "queue"


@router.get("/tenancy", responses=shows(Tenancy))
async def tenancy(pool: Pool) -> Response:
    """Everything declared, what is held and waits, and what needs attention."""
    return answer(await pool.admin.tenancy())


@router.put("/tenancy", responses=shows(Applied))
async def apply(pool: Pool, declared: Declared, dry_run: bool = False) -> Response:  # type: ignore[valid-type]  # noqa: FBT001
    """Declare all of it, or nothing. What is not named stays as it is."""
    return answer(await pool.admin.apply(declared, dry_run=dry_run))


@router.delete(
    "/tenancy/{kind}/{name:path}", status_code=HTTPStatus.NO_CONTENT, responses=shows(None, HTTPStatus.NO_CONTENT)
)
async def withdraw(pool: Pool, kind: Kind, name: str) -> Response:
    """Withdraw a declaration."""
    await pool.admin.withdraw(kind.value, name)
    return Response(status_code=HTTPStatus.NO_CONTENT)


@router.get("/set-aside", responses=shows(tuple[SetAside, ...]))
async def set_aside(pool: Pool, subject: str = "") -> Response:
    """Work that is left alone because deciding on it failed too often."""
    return answer(await pool.admin.set_aside(subject))


@router.get("/invoices/{tenant:path}", tags=["money"], responses=shows(Invoice))
async def invoice(pool: Pool, tenant: str, from_ms: Moment, to_ms: Moment) -> Response:
    """What a tenant owes for a period."""
    return answer(await pool.admin.invoice(tenant, from_ms=from_ms, to_ms=to_ms))


@router.post("/credits/{tenant:path}", tags=["money"], responses=shows(dict[str, str]))
async def post_credit(pool: Pool, tenant: str, credit: Credit) -> Response:
    """Post money, once for each reference. Answers the balance, in millionths of the currency."""
    balance_micro = await pool.admin.post_credit(
        tenant, credit.money_micro, reference=credit.reference, note=credit.note
    )
    return answer({"balance_micro": str(balance_micro)})


@router.get("/maintenance", tags=["maintenance"], responses=shows(tuple[Maintenance, ...]))
async def maintenance(pool: Pool) -> Response:
    """All windows, the next one first."""
    return answer(await pool.admin.maintenance())


@router.put("/maintenance", tags=["maintenance"], responses=shows(Maintenance))
async def declare_maintenance(pool: Pool, window: Window) -> Response:  # type: ignore[valid-type]
    """Declare a window. Declaring the same again changes nothing."""
    return answer(await pool.admin.declare_maintenance(window))


@router.delete(
    "/maintenance/{name}",
    tags=["maintenance"],
    status_code=HTTPStatus.NO_CONTENT,
    responses=shows(None, HTTPStatus.NO_CONTENT),
)
async def end_maintenance(pool: Pool, name: str) -> Response:
    """Withdraw a window."""
    await pool.admin.end_maintenance(name)
    return Response(status_code=HTTPStatus.NO_CONTENT)
