"""Logging in at the pool's OpenID provider, in a browser: there, and back with a code that the coordinator judges.

What the answer must belong to is kept by the browser, in a cookie that pages can't read, until it is back.
"""

from __future__ import annotations

import asyncio
import html
import time
from http import HTTPStatus
from typing import Final

import msgspec
from fastapi import APIRouter, Request, Response

from aliquot.client import NotLoggedIn
from aliquot.client.access import LoginOffer
from aliquot.client.oidc import Attempt, Provider
from aliquot.common.errors import AliquotError
from aliquot.console.api.callers import AllPools, nobody
from aliquot.console.api.session import Reached, keep_session

router = APIRouter(include_in_schema=False)
COOKIE: Final = "aliquot-login"
CALLBACK: Final = "/login/oidc/callback"
_PATIENCE_S: Final = 600
_KNOWN_S: Final = 60.0
_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>aliquot</title>
<h1>{title}</h1><p>{text}</p><p>{hint}</p><p><a href="/login">Log in</a></p></html>"""


class Providers:
    """What the pool's provider says of itself, asked once in a while, however many want to log in."""

    def __init__(self) -> None:
        self._known: Provider | None = None
        self._until_s = 0.0
        self._asking = asyncio.Lock()

    async def of(self, offer: LoginOffer) -> Provider:
        """The one of this pool. Raises HttpError."""
        async with self._asking:
            if self._known is None or self._known.offer != offer or time.monotonic() > self._until_s:
                self._known = await asyncio.to_thread(Provider.discover, offer)
                self._until_s = time.monotonic() + _KNOWN_S
            return self._known


class _UnderWay(msgspec.Struct):
    state: str
    nonce: str
    verifier: str
    back: str


@router.get("/login/oidc")
async def begin(request: Request, pools: AllPools, origin: Reached, back: str = "/") -> Response:
    """To the provider's page."""
    authority = request.headers.get("host", "")
    try:
        async with nobody(pools) as pool:
            offer = await pool.access.describe_login()
        if not offer.issuer:
            raise NotLoggedIn("this pool has no OpenID provider", hint="log in with a token")
        provider = await request.app.state.providers.of(offer)
        attempt = Attempt.new()
        url = provider.page(attempt, origin.base(authority) + CALLBACK)
    except AliquotError as error:
        return _failed(error)
    kept = msgspec.json.encode(_UnderWay(attempt.state, attempt.nonce, attempt.verifier, _own_path(back)))
    # The way back begins at another site: a stricter cookie would not come along.
    response = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": url})
    origin.set_cookie(response, COOKIE, kept.hex(), authority, max_age_s=_PATIENCE_S, same_site="lax")
    return response


@router.get(CALLBACK)
async def end(request: Request, pools: AllPools, origin: Reached) -> Response:
    """Back from there."""
    authority = request.headers.get("host", "")
    answer = dict(request.query_params)
    try:
        under_way = _read(request.cookies.get(origin.cookie(COOKIE, authority), ""))
        async with nobody(pools) as pool:
            offer = await pool.access.describe_login()
            attempt = Attempt(under_way.state, under_way.nonce, under_way.verifier)
            if not attempt.is_mine(answer, offer.issuer):
                raise NotLoggedIn("this is not the answer to a login that is under way here", hint="log in again")
            provider = await request.app.state.providers.of(offer)
            vouchers = await asyncio.to_thread(provider.redeem, answer, attempt, origin.base(authority) + CALLBACK)
            issued = await pool.access.login(id_token=vouchers.id_token, nonce=vouchers.nonce)
    except AliquotError as error:
        return _failed(error)
    response = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": _own_path(under_way.back)})
    keep_session(request, response, origin, issued.token)
    origin.set_cookie(response, COOKIE, "", authority, max_age_s=0, same_site="lax")
    return response


def _read(kept: str) -> _UnderWay:
    try:
        return msgspec.json.decode(bytes.fromhex(kept), type=_UnderWay)
    except (ValueError, msgspec.DecodeError):
        raise NotLoggedIn("no login is under way in this browser, or it took too long", hint="log in again") from None


def _own_path(back: str) -> str:
    """Where to go afterwards: a path of this console, whatever a link has said."""
    plain = back.startswith("/") and not back.startswith(("//", "/\\")) and len(back) <= 2000
    return back if plain and back.isascii() and back.isprintable() and " " not in back else "/"


def _failed(error: AliquotError) -> Response:
    said = {"title": "You are not logged in", "text": error.message, "hint": error.hint or ""}
    page = _PAGE.format(**{name: html.escape(text) for name, text in said.items()})
    return Response(page, HTTPStatus.UNAUTHORIZED, media_type="text/html; charset=utf-8")
