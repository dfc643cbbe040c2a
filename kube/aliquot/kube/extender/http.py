"""The extender over HTTP, on the scheduler's own machine: JSON in, JSON out, bounded."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web

from aliquot.kube.core.extending import BindArgs, FilterArgs, PreemptArgs
from aliquot.kube.extender.scheduling import Extender

log = logging.getLogger(__name__)

_BODY_BYTES_MAX: Final = 8 << 20
"""A pod and the names of some tens of thousands of nodes."""


def application(extender: Extender, ready: Callable[[], str]) -> web.Application:
    """The verbs, and `/healthz` and `/readyz`. `ready` says why it is not; empty: it is."""
    app = web.Application(client_max_size=_BODY_BYTES_MAX)
    for path, shape, answer in (
        ("/filter", FilterArgs, extender.filter),
        ("/prioritize", FilterArgs, extender.prioritize),
        ("/bind", BindArgs, extender.bind),
        ("/preempt", PreemptArgs, extender.preempt),
    ):
        app.router.add_post(path, _verb(msgspec.json.Decoder(shape), answer))

    async def readiness(_: web.Request) -> web.Response:
        why = ready()
        return web.Response(status=503 if why else 200, text=why or "ok")

    async def liveness(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app.router.add_get("/readyz", readiness)
    app.router.add_get("/healthz", liveness)
    return app


def _verb(
    decoder: msgspec.json.Decoder[Any], answer: Callable[[Any], Awaitable[Any]]
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(request: web.Request) -> web.Response:
        try:
            args = decoder.decode(await request.read())
        except msgspec.MsgspecError as error:
            return web.Response(status=400, text=f"no arguments of an extender (v1): {error}")
        return web.Response(body=msgspec.json.encode(await answer(args)), content_type="application/json")

    return handle


async def serve(app: web.Application, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Serve; returns what to `cleanup`, and the port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    address: tuple[Any, ...] = runner.addresses[0]
    return runner, int(address[1])
