"""A browser's session: its own token, in a cookie that pages can't read, which ends everywhere when it logs out.

A token that is pasted, or that a one-time code stands for, is not kept: it makes another for this browser alone, noted
as the console's. That ends after the setting `session`, and never later than the one that made it. Ten of a principal's
count.
"""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, Field

from aliquot.client import AsyncPool, NotLoggedIn, NotPermitted, PoolError
from aliquot.client.access import Identity
from aliquot.common.duration import DurationMs
from aliquot.common.errors import ConfigError
from aliquot.common.tokens import check_token
from aliquot.console.api.answers import answer, shows
from aliquot.console.api.asking import Body
from aliquot.console.api.callers import AllPools, Pool, Token
from aliquot.console.codes import CODE_S, Codes
from aliquot.console.origin import BY_COOKIE, PAGES_HEADER, SESSION, Origin
from aliquot.console.pools import Pools

router = APIRouter(tags=["session"])
NOTE = "console"
SESSIONS_MAX = 10


class Opening(Body):
    """What lets a browser in: one of the two."""

    token: str = Field("", max_length=256, description="alq_…, as `aliquot access token` or `aliquot login` give it.")
    code: str = Field("", max_length=64, description="Of `aliquot console`; it counts once.")
    principal: str = Field("", description="With a code: whom it lets in as, which the browser's user has agreed to.")


class Code(BaseModel):
    """A one-time code."""

    code: str
    url: str = Field(description="The page that takes it; what follows # is sent to nobody.")
    expires_s: int


def origin_of(request: Request) -> Origin:
    """How this console is reached."""
    origin: Origin = request.app.state.origin
    return origin


Reached = Annotated[Origin, Depends(origin_of)]


@router.post("/session", status_code=HTTPStatus.CREATED, responses=shows(Identity, HTTPStatus.CREATED))
async def open_session(request: Request, pools: AllPools, origin: Reached, opening: Opening) -> Response:
    """Let this browser in. The answer sets the cookie, and says who it is."""
    if PAGES_HEADER.decode() not in request.headers:
        raise NotPermitted(
            "a page of another site may have asked", hint="send the header X-Aliquot-Console: 1", reason="CROSS_SITE"
        )
    codes: Codes = request.app.state.codes
    text = codes.take(opening.code, opening.principal) if opening.code else opening.token
    if not text:
        raise NotLoggedIn(
            "this code has been used, is too old, or is somebody else's", hint="`aliquot console` makes another"
        )
    try:
        check_token(text, "the field token")
    except ConfigError as error:
        raise NotLoggedIn(error.message, hint=error.hint, reason="TOKEN_UNKNOWN") from error
    token, identity = await new_session(pools, text, request.app.state.session)
    response = answer(identity, HTTPStatus.CREATED)
    keep_session(request, response, origin, token)
    return response


@router.delete("/session", status_code=HTTPStatus.NO_CONTENT, responses=shows(None, HTTPStatus.NO_CONTENT))
async def close_session(request: Request, pools: AllPools, origin: Reached, token: Token) -> Response:
    """Log out: the session's token counts nowhere any more. Of a caller who is known by a header nothing is ended."""
    if BY_COOKIE not in request.scope:
        raise NotPermitted(
            "this is no browser's session",
            hint="`aliquot logout --revoke`, or DELETE /tokens/{id}",
            reason="NO_SESSION",
        )
    async with pools.of(token) as pool:
        # Who has been logged out elsewhere, meanwhile, is logged out.
        with contextlib.suppress(NotLoggedIn):
            await pool.access.revoke_tokens([(await pool.access.whoami()).token_id])
    response = Response(status_code=HTTPStatus.NO_CONTENT)
    origin.set_cookie(response, SESSION, "", request.headers.get("host", ""), max_age_s=0)
    return response


@router.post("/session/codes", status_code=HTTPStatus.CREATED, responses=shows(Code, HTTPStatus.CREATED))
async def make_code(request: Request, pool: Pool, token: Token, origin: Reached) -> Response:
    """A one-time code, by which a browser is let in as the caller."""
    principal = (await pool.access.whoami()).principal
    codes: Codes = request.app.state.codes
    code = codes.make(token, principal)
    # The page asks whether its user wants to be who this is: a link may come from anybody.
    url = f"{origin.base(request.headers.get('host', ''))}/login#{urlencode({'code': code, 'principal': principal})}"
    return answer({"code": code, "url": url, "expires_s": int(CODE_S)}, HTTPStatus.CREATED)


def keep_session(request: Request, response: Response, origin: Origin, token: str) -> None:
    """Have the browser keep a session."""
    session: DurationMs = request.app.state.session
    origin.set_cookie(response, SESSION, token, request.headers.get("host", ""), max_age_s=session // 1000)


async def new_session(pools: Pools, text: str, ttl_ms: int) -> tuple[str, Identity]:
    """A token for a browser, made by that of its owner. Raises NotLoggedIn, and what refuses to make tokens."""
    async with pools.of(text) as pool:
        who = await pool.access.whoami()
        await _end_oldest(pool, who.principal)
        made = await pool.access.issue_token(ttl_ms=ttl_ms, note=NOTE)
        async with pools.of(made.token) as as_browser:
            with contextlib.suppress(NotPermitted):  # it has no role at all
                session = await as_browser.access.whoami()
                if set(who.grants) <= set(session.grants):
                    return made.token, session
        # Roles that a provider's word gives belong to its session, and don't pass to others: keep that one.
        await pool.access.revoke_tokens([made.issued.token_id])
    return text, who


async def _end_oldest(pool: AsyncPool, principal: str) -> None:
    own = [each for each in await pool.access.tokens(principal) if each.principal == principal and each.note == NOTE]
    own.sort(key=lambda each: (each.created_ms, each.token_id))
    surplus = [each.token_id for each in own[: max(0, len(own) + 1 - SESSIONS_MAX)]]
    if surplus:
        with contextlib.suppress(PoolError):  # another login was faster
            await pool.access.revoke_tokens(surplus)
