"""The extender over HTTP, on the scheduler's own machine: JSON in, JSON out, bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from aliquot.kube.core.extending import BindArgs, FilterArgs, PreemptArgs
from aliquot.kube.extender.httpd import Answer, Handler, Routes, Server
from aliquot.kube.extender.scheduling import Extender

_BODY_BYTES_MAX: Final = 8 << 20
"""A pod and the names of some tens of thousands of nodes."""
_JSON: Final = "application/json"


def application(extender: Extender, ready: Callable[[], str]) -> Routes:
    """The verbs, and `/healthz` and `/readyz`. `ready` says why it is not; empty: it is."""

    async def readiness(_: bytes) -> Answer:
        why = ready()
        return Answer((why or "ok").encode(), 503 if why else 200)

    async def liveness(_: bytes) -> Answer:
        return Answer(b"ok")

    return {
        ("POST", "/filter"): _verb(msgspec.json.Decoder(FilterArgs), extender.filter),
        ("POST", "/prioritize"): _verb(msgspec.json.Decoder(FilterArgs), extender.prioritize),
        ("POST", "/bind"): _verb(msgspec.json.Decoder(BindArgs), extender.bind),
        ("POST", "/preempt"): _verb(msgspec.json.Decoder(PreemptArgs), extender.preempt),
        ("GET", "/readyz"): readiness,
        ("GET", "/healthz"): liveness,
    }


def _verb(decoder: msgspec.json.Decoder[Any], answer: Callable[[Any], Awaitable[Any]]) -> Handler:
    encode = msgspec.json.Encoder().encode

    async def handle(body: bytes) -> Answer:
        try:
            args = decoder.decode(body)
        except msgspec.MsgspecError as error:
            return Answer(f"no arguments of an extender (v1): {error}".encode(), 400)
        return Answer(encode(await answer(args)), content=_JSON)

    return handle


async def serve(routes: Routes, host: str, port: int) -> tuple[Server, int]:
    """Serve; returns what to `cleanup`, and the port. Raises OSError."""
    server = Server(routes, _BODY_BYTES_MAX)
    return server, await server.start(host, port)
