"""What was read already is not sent again: each JSON answer to a read has an `ETag`, by which it can be asked for."""

from __future__ import annotations

import hashlib

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_JSON = b"application/json"


class Tagged:
    """Wraps an application. Answers that come in parts, or have a tag of their own, pass as they are."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        known = b",".join(value for name, value in scope["headers"] if name == b"if-none-match")
        held: list[Message] = []

        async def tag(message: Message) -> None:
            if message["type"] == "http.response.start" and _may_be_tagged(message):
                held.append(message)
                return
            if held:
                start = held.pop()
                if not message.get("more_body"):
                    start, message = _tagged(start, message, known)
                await send(start)
            await send(message)

        await self._app(scope, receive, tag)


def _tagged(start: Message, message: Message, known: bytes) -> tuple[Message, Message]:
    etag = b'"%b"' % hashlib.blake2b(message["body"], digest_size=12).hexdigest().encode()
    headers = [*start["headers"], (b"etag", etag)]
    if etag not in known:
        return {**start, "headers": headers}, message
    headers = [each for each in headers if each[0] not in {b"content-length", b"content-type"}]
    return {**start, "status": 304, "headers": headers}, {"type": "http.response.body", "body": b""}


def _may_be_tagged(start: Message) -> bool:
    headers = dict(start["headers"])
    return start["status"] == 200 and headers.get(b"content-type", b"").startswith(_JSON) and b"etag" not in headers
