"""What every request passes first: names that count, pages that are our own, and headers that keep browsers careful.

A browser's session is in a cookie, which holds its token and nothing else. Here it becomes the header that programs
send, if the request comes from a page of this console: behind the door there is one way to say who asks.
"""

from __future__ import annotations

from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aliquot.console.origin import SESSION, Origin

PAGES_HEADER: Final = b"x-aliquot-console"
"""Our page sends it with whatever changes something. Pages of others can't, without being asked about it first."""
BY_COOKIE: Final = "aliquot.by_cookie"
"""In the scope of a request whose caller is known by its cookie."""
_SAFE: Final = frozenset({"GET", "HEAD"})
_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_API: Final = "/api/"


class Door:
    """Wraps an application. A page of somebody else's, whose name was made to point here, is refused before anything is
    looked at; so is whatever a browser sends here for a page of others.
    """

    def __init__(self, app: ASGIApp, origin: Origin) -> None:
        self._app = app
        self._origin = origin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        authority = headers.get(b"host", b"").decode("latin-1")
        if not self._origin.knows(authority):
            hint = "the setting `names` says under which other names this console is reached"
            name = authority.partition(":")[0][:128]
            await _refuse(send, 421, "NAME_UNKNOWN", f"this console is not called {name!r}", hint)
            return
        said = headers.get(b"origin")
        if said is not None and not self._origin.is_own(said.decode("latin-1"), authority):
            hint = "where a proxy is in front of this console, the setting `url` says how browsers reach it"
            await _refuse(send, 403, "CROSS_SITE", "a page of another site asked", hint)
            return
        by_cookie = False
        if b"cookie" in headers and b"authorization" not in headers and scope["path"].startswith(_API):
            token = self._origin.read_cookie(SESSION, headers[b"cookie"].decode("latin-1"), authority)
            if token:
                if not _of_our_page(scope["method"], headers):
                    hint = "requests of a browser's session come from this console's own page"
                    await _refuse(send, 403, "CROSS_SITE", "a page of another site may have asked", hint)
                    return
                by_cookie = True
                added = (b"authorization", b"Bearer " + token.encode("latin-1"))
                scope = {**scope, "headers": [*scope["headers"], added], BY_COOKIE: True}

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                more = [each for each in _HEADERS if each[0] not in there]
                if by_cookie and message["status"] == 401:
                    over = self._origin.set_cookie(SESSION, "", authority, max_age_s=0)
                    more.append((b"set-cookie", over.encode("latin-1")))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, dressed)


def _of_our_page(method: str, headers: dict[bytes, bytes]) -> bool:
    """What browsers say of themselves, and pages can't: `Origin`, which the door has compared, is among it."""
    if headers.get(b"sec-fetch-site", b"same-origin") not in {b"same-origin", b"none"}:
        return False
    return method in _SAFE or PAGES_HEADER in headers


async def _refuse(send: Send, status: int, reason: str, detail: str, hint: str) -> None:
    problem = {"type": f"urn:aliquot:{reason}", "status": status, "reason": reason, "detail": detail, "hint": hint}
    headers = [(b"content-type", b"application/problem+json"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(problem)})
