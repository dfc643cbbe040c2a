"""Reads that programs make often, past the framework, whose work for each request costs more than theirs.

A route here answers as the one of the same path does that stands in the document: both call the same function.
"""

from __future__ import annotations

import re

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from aliquot.common.errors import AliquotError
from aliquot.console.api.answers import refusal
from aliquot.console.api.callers import token_in
from aliquot.console.api.leases import one_lease
from aliquot.console.pools import Pools

_LEASES = "/api/v1/leases/"
_ID = re.compile(r"[0-9A-Za-z-]{1,64}")


class Hot:
    """Answers `GET /api/v1/leases/{lease_id}`, and passes the rest on."""

    def __init__(self, app: ASGIApp, pools: Pools) -> None:
        self._app = app
        self._pools = pools

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] == "http" and scope["method"] == "GET":
            path: str = scope["path"]
            if path.startswith(_LEASES) and _ID.fullmatch(lease_id := path[len(_LEASES) :]):
                response = await self._lease(scope, lease_id)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _lease(self, scope: Scope, lease_id: str) -> Response:
        headers = dict(scope["headers"])
        try:
            token = token_in(headers.get(b"authorization", b"").decode("latin-1"))
            async with self._pools.of(token) as pool:
                return await one_lease(pool, lease_id, headers.get(b"if-none-match", b"").decode("latin-1"))
        except AliquotError as error:
            return refusal(error)
