"""What every request passes first: names that count, and headers that keep browsers careful."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)


class Door:
    """Wraps an application. `names` are those by which it may be called: a page of somebody else's, whose name was made
    to point here, is refused before anything is looked at.
    """

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self._app = app
        self._names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        name = _without_port(headers.get(b"host", b"").decode("latin-1")).lower()
        if name not in self._names:
            hint = "the setting `names` says under which other names this console is reached"
            await _refuse(send, 421, "NAME_UNKNOWN", f"this console is not called {name[:128]!r}", hint)
            return

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(each for each in _HEADERS if each[0] not in there)]
            await send(message)

        await self._app(scope, receive, dressed)


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0]


async def _refuse(send: Send, status: int, reason: str, detail: str, hint: str) -> None:
    problem = {"type": f"urn:aliquot:{reason}", "status": status, "reason": reason, "detail": detail, "hint": hint}
    headers = [(b"content-type", b"application/problem+json"), *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": msgspec.json.encode(problem)})
