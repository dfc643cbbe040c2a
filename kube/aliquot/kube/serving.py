"""JSON in, JSON out, over HTTP: how a scheduler asks the extender, and an API server the webhook. Bounded.

By aiohttp's server without its applications: at three questions a pod, routes and what goes with them are a good part
of what an extender costs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web

Answer = Callable[[bytes], Awaitable[bytes]]
"""From a body to the answer's. Raises `msgspec.MsgspecError` for a body that is no such question."""

BODY_BYTES_MAX: Final = 8 << 20
"""A pod and the names of some tens of thousands of nodes."""
_ENDING_S: Final = 5.0
"""How long answers that are under way are waited for at the end."""


async def serve(
    answers: Mapping[str, Answer],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    not_ready: Callable[[], str] = lambda: "",
) -> tuple[Callable[[], Awaitable[None]], int]:
    """Answer POSTs by path, and `/healthz` and `/readyz`; returns what ends it, and the port. Raises OSError.

    `not_ready` says why it is not ready; empty: it is.
    """

    async def handle(request: web.BaseRequest) -> web.Response:
        path = request.path
        answer = answers.get(path)
        if answer is None:
            why = not_ready() if path == "/readyz" else ""
            known = path in ("/healthz", "/readyz")
            return web.Response(text=why or "ok", status=503 if why else 200) if known else web.Response(status=404)
        if request.method != "POST":
            return web.Response(status=405)
        try:
            return web.Response(body=await answer(await request.read()), content_type="application/json")
        except msgspec.MsgspecError as error:
            return web.Response(text=f"no question that {path} answers: {error}", status=400)

    loop = asyncio.get_running_loop()

    def bounded(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:  # noqa: ANN401 - aiohttp's own
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES_MAX)

    # A caller that goes away ends nothing: what it asked for is carried to its end, as a bind must be.
    server = web.Server(handle, request_factory=bounded, handler_cancellation=False, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=_ENDING_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner.cleanup, int(runner.addresses[0][1])
