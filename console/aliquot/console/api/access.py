"""Who is who, roles, tokens, and the record of who did what."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Query, Response

from aliquot.client import access
from aliquot.client.documents import plain
from aliquot.console.api.answers import answer, shows
from aliquot.console.api.asking import Grant, Moment, NewToken
from aliquot.console.api.callers import AllPools, Pool, nobody

router = APIRouter(tags=["access"])


@router.get("/login", responses=shows(access.LoginOffer))
async def login(pools: AllPools) -> Response:
    """Who vouches for people here. Everybody is told."""
    async with nobody(pools) as pool:
        return answer(await pool.access.describe_login())


@router.get("/whoami", responses=shows(access.Identity))
async def whoami(pool: Pool) -> Response:
    """Who the caller is, and what it may do."""
    return answer(await pool.access.whoami())


@router.get("/principals", responses=shows(tuple[access.Principal, ...]))
async def principals(pool: Pool) -> Response:
    """Everybody with a role or a token, by name, as far as the caller may know."""
    return answer(await pool.access.principals())


@router.put("/grants", responses=shows(access.Principal))
async def grant(pool: Pool, given: Grant) -> Response:
    """Give a role. Nobody gives more than they have."""
    return answer(await pool.access.grant_role(given.principal, given.role, scope=given.scope))


@router.delete("/grants", responses=shows(access.Principal))
async def revoke(pool: Pool, principal: str, role: access.Role, scope: str = "") -> Response:
    """Take a role away."""
    return answer(await pool.access.revoke_role(principal, role, scope=scope))


@router.get("/tokens", responses=shows(tuple[access.Token, ...]))
async def tokens(pool: Pool, principal: str = "") -> Response:
    """Tokens that the caller may end, without their texts."""
    return answer(await pool.access.tokens(principal))


@router.post("/tokens", status_code=HTTPStatus.CREATED, responses=shows(access.IssuedToken, HTTPStatus.CREATED))
async def issue_token(pool: Pool, wanted: NewToken) -> Response:
    """A new token. The answer is the only place that has its text."""
    grants = [access.RoleGrant(each.role, each.scope) for each in wanted.grants]
    issued = await pool.access.issue_token(wanted.principal, grants=grants, ttl_ms=wanted.ttl_ms, note=wanted.note)
    return answer(plain(issued), HTTPStatus.CREATED)


@router.delete("/tokens/{token_id}", responses=shows(tuple[access.Token, ...]))
async def revoke_token(pool: Pool, token_id: str) -> Response:
    """End a token, and within a second the streams that were opened with it."""
    return answer(await pool.access.revoke_tokens([token_id]))


@router.get("/audit", responses=shows(access.Audit))
async def audit(
    pool: Pool, principal: str = "", since_ms: Moment = 0, entries: Annotated[int, Query(ge=1, le=20_000)] = 1_000
) -> Response:
    """Who changed what, the latest first."""
    return answer(await pool.access.audit(principal, since_ms=since_ms, entries_max=entries))


@router.get("/denials", responses=shows(tuple[access.Denial, ...]))
async def denials(pool: Pool) -> Response:
    """What was refused lately, the latest first."""
    return answer(await pool.access.denials())
