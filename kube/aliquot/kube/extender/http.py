"""The extender over HTTP, on the scheduler's own machine: JSON in, JSON out, bounded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from aliquot.kube.core.extending import BindArgs, FilterArgs, PreemptArgs
from aliquot.kube.extender.scheduling import Extender

_BODY_BYTES_MAX: Final = 8 << 20
"""A pod and the names of some tens of thousands of nodes."""
_ENDING_S: Final = 5.0
"""How long answers that are under way are waited for at the end."""


def application(extender: Extender, ready: Callable[[], str]) -> web.Application:
    """The verbs, and `/healthz` and `/readyz`. `ready` says why it is not; empty: it is."""

    async def readiness(_: web.Request) -> web.Response:
        why = ready()
        return web.Response(text=why or "ok", status=503 if why else 200)

    async def liveness(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    made = web.Application(client_max_size=_BODY_BYTES_MAX)
    made.router.add_post("/filter", _verb(msgspec.json.Decoder(FilterArgs), extender.filter))
    made.router.add_post("/prioritize", _verb(msgspec.json.Decoder(FilterArgs), extender.prioritize))
    made.router.add_post("/bind", _verb(msgspec.json.Decoder(BindArgs), extender.bind))
    made.router.add_post("/preempt", _verb(msgspec.json.Decoder(PreemptArgs), extender.preempt))
    made.router.add_get("/readyz", readiness)
    made.router.add_get("/healthz", liveness)
    return made


def _verb(
    decoder: msgspec.json.Decoder[Any], answer: Callable[[Any], Awaitable[Any]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    encode = msgspec.json.Encoder().encode

    async def handle(request: web.Request) -> web.Response:
        try:
            args = decoder.decode(await request.read())
        except msgspec.MsgspecError as error:
            return web.Response(text=f"no arguments of an extender (v1): {error}", status=400)
        return web.Response(body=encode(await answer(args)), content_type="application/json")

    return handle


async def serve(made: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serve; returns what to `cleanup`, and the port. Raises OSError."""
    # A caller that goes away ends nothing: what it asked for is carried to its end, as a bind must be.
    runner = web.AppRunner(made, access_log=None, handler_cancellation=False, shutdown_timeout=_ENDING_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError:
        await runner.cleanup()
        raise
    return runner, int(runner.addresses[0][1])
