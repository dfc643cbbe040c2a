"""What every request passes first: names that count, pages that are our own, and headers that keep browsers careful.

A browser's session is in a cookie, which holds its token and nothing else. Here it becomes the header that programs
send, if the request comes from a page of this console: behind the door there is one way to say who asks. A body is read
here, of those alone whom the pool knows, and within a time: what strangers send costs no memory.
"""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aliquot.common.errors import AliquotError
from aliquot.console.api.answers import problem, refusal
from aliquot.console.api.callers import token_in
from aliquot.console.known import Known
from aliquot.console.origin import BY_COOKIE, PAGES_HEADER, SESSION, Origin, without_port

_SAFE: Final = frozenset({"GET", "HEAD"})
_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_API: Final = "/api/"
_LOGIN: Final = "/api/v1/session"
"""Takes a body of those whom nobody knows yet."""
BODY_BYTES_MAX: Final = 4 << 20
STRANGERS_BODY_BYTES_MAX: Final = 4 << 10
BODIES_BYTES_MAX: Final = 64 << 20
"""All that are being read at once."""
BODY_S: Final = 30.0


class Door:
    """Wraps an application. A page of somebody else's, whose name was made to point here, is refused before anything is
    looked at; so is whatever a browser sends here for a page of others.
    """

    def __init__(self, app: ASGIApp, origin: Origin, known: Known) -> None:
        self._app = app
        self._origin = origin
        self._known = known
        self.body_s = BODY_S
        self._reading_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        authority = headers.get(b"host", b"").decode("latin-1")
        if not self._origin.knows(authority):
            hint = "the setting `names` says under which other names this console is reached"
            name = without_port(authority)[:128]
            await _refuse(send, 421, "NAME_UNKNOWN", f"this console is not called {name!r}", hint)
            return
        said = headers.get(b"origin")
        if said is not None and not self._origin.is_own(said.decode("latin-1"), authority):
            hint = "where a proxy is in front of this console, the setting `url` says how browsers reach it"
            await _refuse(send, 403, "CROSS_SITE", "a page of another site asked", hint)
            return
        by_cookie = False
        if b"cookie" in headers and b"authorization" not in headers and scope["path"].startswith(_API):
            kept = cookie_parser(headers[b"cookie"].decode("latin-1"))
            token = kept.get(self._origin.cookie(SESSION, authority), "")
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
                # A login that failed says nothing of the session that there is.
                if by_cookie and message["status"] == 401 and scope["path"] != _LOGIN:
                    over = Response()
                    self._origin.set_cookie(over, SESSION, "", authority, max_age_s=0)
                    more += [each for each in over.raw_headers if each[0] == b"set-cookie"]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            body = await self._body(scope, receive)
        except AliquotError as error:
            await _close_with(refusal(error), scope, receive, dressed)
        except _Unread as error:
            response = problem(error.status, error.reason, error.detail, hint=error.hint)
            await _close_with(response, scope, receive, dressed)
        else:
            await self._app(scope, receive if body is None else _again(body, receive), dressed)

    async def _body(self, scope: Scope, receive: Receive) -> bytes | None:
        """The whole body; None: there is none. Raises _Unread, and what the pool refuses a token with."""
        headers = dict(scope["headers"])
        if headers.get(b"content-length", b"0") == b"0" and b"transfer-encoding" not in headers:
            return None
        most = STRANGERS_BODY_BYTES_MAX
        if scope["path"] != _LOGIN:
            await self._known.principal(token_in(headers.get(b"authorization", b"").decode("latin-1")))
            most = BODY_BYTES_MAX
        body = await self._read(receive, most)
        if body:
            _check_text(body)
        return body

    async def _read(self, receive: Receive, most: int) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(self.body_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Unread(400, "BODY_ENDED", "the connection ended before the body did", "send it again")
                    part, more = message.get("body", b""), message.get("more_body", False)
                    body += part
                    self._reading_bytes += len(part)
                    if len(body) > most:
                        raise _Unread(413, "TOO_LARGE", f"a body is at most {most} bytes here", "send less at once")
                    if self._reading_bytes > BODIES_BYTES_MAX:
                        raise _Unread(503, "OVERLOADED", "too many large bodies come at once", "try again in a second")
        except TimeoutError:
            hint = f"a body has {self.body_s:g} s to arrive"
            raise _Unread(408, "TOO_SLOW", "the body did not come in time", hint) from None
        finally:
            self._reading_bytes -= len(body)
        return bytes(body)


class _Unread(Exception):
    """A body that is not read to its end."""

    def __init__(self, status: int, reason: str, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.status, self.reason, self.detail, self.hint = status, reason, detail, hint


def _check_text(body: bytes) -> None:
    """Raises _Unread for what no answer and no message could hold: halves of characters pass Python's own reader."""
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = "send JSON in UTF-8; a \\ud800 to \\udfff stands in pairs alone"
        raise _Unread(400, "INVALID_FIELD", f"the body is no JSON: {error}", hint) from error


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives a body that was read, then whatever comes."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def given() -> Message:
        return left.pop() if left else await receive()

    return given


async def _close_with(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer, and read nothing more of a connection in which half a body may stand."""
    response.headers["Connection"] = "close"
    await response(scope, receive, send)


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
