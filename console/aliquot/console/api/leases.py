"""Leases: ask, look, explain, end."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from aliquot.client import AsyncPool, Explanation, Lease, LeaseState, Request
from aliquot.client import Timeline as LeaseTimeline
from aliquot.client.documents import plain
from aliquot.client.use import UseReport
from aliquot.console.api.answers import answer, page_of, require_match, shows, shows_page
from aliquot.console.api.asking import (
    Allocation,
    Asked,
    Exemption,
    Extension,
    Fields,
    IfMatch,
    Key,
    PageSize,
    Reason,
    Shape,
)
from aliquot.console.api.callers import Pool

Quiet = Annotated[bool, Query(description="Only those that do nothing with it.")]
router = APIRouter(tags=["leases"])


@router.get("/leases", responses=shows_page(Lease))
async def list_leases(  # noqa: PLR0917 - each is a name in the query
    pool: Pool,
    tenant: str = "",
    queue: str = "",
    state: Annotated[list[LeaseState] | None, Query(description="None: all but ENDED.")] = None,
    node_id: str = "",
    page_size: PageSize = 100,
    page_token: str = "",
    fields: Fields = "",
) -> Response:
    """Leases that the caller may see, in the order in which they were asked for."""
    page = await pool.leases_page(
        page_token, page_size, tenant=tenant, queue=queue, states=state or (), node_id=node_id
    )
    return page_of(page, fields)


@router.post("/leases", status_code=HTTPStatus.CREATED, responses=shows(Lease, HTTPStatus.CREATED))
async def allocate(pool: Pool, asked: Allocation, idempotency_key: Key = "") -> Response:
    """Ask for a lease. Nothing here keeps it alive: make it `detached`, or it ends `ttl_s` after the last keep-alive.

    The answer is the only one with the lease's `secret`, which programs need to attach themselves on its nodes.
    """
    request: Request = asked.request
    if asked.places:
        lease = await pool.grant_on(request, asked.places, until=asked.until, wait_s=asked.wait_s, key=idempotency_key)
    else:
        lease = await pool.allocate(request, until=asked.until, wait_s=asked.wait_s, key=idempotency_key)
    document = plain(lease) | {"secret": lease.secret}
    return answer(document, HTTPStatus.CREATED, {"Location": f"/api/v1/leases/{lease.lease_id}"})


@router.post("/leases:explain", responses=shows(Explanation))
async def explain(pool: Pool, request: Asked) -> Response:  # type: ignore[valid-type]
    """Where a request would be placed now, or what it would wait for. Changes nothing."""
    return answer(await pool.explain(request))


@router.get("/leases/{lease_id}", responses=shows(Lease))
async def get(pool: Pool, lease_id: str, if_none_match: Annotated[str, Header()] = "") -> Response:
    """One lease as it is now. Its `ETag` is the number of the fact that last changed it."""
    return await one_lease(pool, lease_id, if_none_match)


async def one_lease(pool: AsyncPool, lease_id: str, if_none_match: str) -> Response:
    """The answer of the route above, for `hot.py`, too."""
    lease = await pool.get(lease_id)
    tag = f'"{lease.seq}"'
    if tag in if_none_match:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
    return answer(lease, headers={"ETag": tag})


@router.get("/leases/{lease_id}/explanation", responses=shows(Explanation))
async def why(pool: Pool, lease_id: str) -> Response:
    """Why it waits or ended, or where it is."""
    return answer((await pool.why(lease_id))[1])


@router.get("/leases/{lease_id}/timeline", responses=shows(LeaseTimeline))
async def timeline(pool: Pool, lease_id: str) -> Response:
    """What has happened to it, from the pool's facts."""
    return answer(await pool.timeline(lease_id))


@router.post("/leases/{lease_id}:release", responses=shows(Lease))
async def release(pool: Pool, lease_id: str, why_: Reason | None = None, if_match: IfMatch = "") -> Response:
    """End a lease. Ending it twice is fine."""
    await _require_unchanged(pool, lease_id, if_match)
    return answer(await pool.release(lease_id, reason=why_.reason if why_ else ""))


@router.post("/leases/{lease_id}:extend", responses=shows(Lease))
async def extend(pool: Pool, lease_id: str, wanted: Extension, if_match: IfMatch = "") -> Response:
    """A longer time limit for a lease that has one. Asking for the same limit twice is fine."""
    await _require_unchanged(pool, lease_id, if_match)
    return answer(await pool.extend(lease_id, wanted.time_limit_s, reason=wanted.reason))


@router.post("/leases/{lease_id}:exempt", responses=shows(Lease))
async def exempt(pool: Pool, lease_id: str, wanted: Exemption) -> Response:
    """Let idleness of a lease have no consequences for a while, at most a day."""
    return answer(await pool.exempt(lease_id, wanted.for_s, reason=wanted.reason))


@router.get("/use", responses=shows(UseReport))
async def use(pool: Pool, tenant: str = "", lease_id: str = "", quiet_only: Quiet = False) -> Response:
    """What leases make of what they hold: those that waste most first."""
    return answer(await pool.use(tenant=tenant, lease_id=lease_id, quiet_only=quiet_only))


@router.post("/leases/{lease_id}:acknowledge", responses=shows(Lease))
async def acknowledge(pool: Pool, lease_id: str, shape: Shape, if_match: IfMatch = "") -> Response:
    """Say that the launcher of an elastic lease has adapted to this shape."""
    await _require_unchanged(pool, lease_id, if_match)
    return answer(await pool.acknowledge(lease_id, shape.shape))


async def _require_unchanged(pool: AsyncPool, lease_id: str, if_match: str) -> None:
    """As it was when somebody looked; what happens in the milliseconds from here on is not seen."""
    if if_match:
        require_match(if_match, f'"{(await pool.get(lease_id)).seq}"')
