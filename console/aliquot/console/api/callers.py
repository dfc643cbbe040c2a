"""Who asks: the bearer token of a request, and the connection that goes with it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from aliquot.client import AsyncPool, NotLoggedIn
from aliquot.common.errors import ConfigError
from aliquot.common.tokens import check_token
from aliquot.console.pools import Pools

_bearer = HTTPBearer(auto_error=False, description="A token of `aliquot access token` or of a login: alq_…")


def token_of(request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]) -> str:
    """The caller's token. Raises `NotLoggedIn` where there is none, or what can't be one."""
    return token_in(request.headers.get("authorization", ""))


def token_in(header: str) -> str:
    """The same, in the header `Authorization`."""
    scheme, _, text = header.partition(" ")
    if not text or scheme.lower() != "bearer":
        raise NotLoggedIn(
            "no token came with the request",
            hint="send it as `Authorization: Bearer alq_…`; `aliquot access token` makes one",
        )
    try:
        return check_token(text, "the header Authorization")
    except ConfigError as error:
        raise NotLoggedIn(error.message, hint=error.hint, reason="TOKEN_UNKNOWN") from error


def pools_of(request: Request) -> Pools:
    """The connections of this console."""
    pools: Pools = request.app.state.pools
    return pools


Token = Annotated[str, Depends(token_of)]
AllPools = Annotated[Pools, Depends(pools_of)]


async def pool_of(token: Token, pools: AllPools) -> AsyncIterator[AsyncPool]:
    """The connection of the request's caller."""
    async with pools.of(token) as pool:
        yield pool


Pool = Annotated[AsyncPool, Depends(pool_of)]


@contextlib.asynccontextmanager
async def nobody(pools: Pools) -> AsyncIterator[AsyncPool]:
    """A connection without a token, for what everybody is told."""
    async with pools.of("") as pool:
        yield pool
