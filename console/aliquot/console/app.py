"""The console as an ASGI application."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

from fastapi import APIRouter, FastAPI, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from aliquot.client import AsyncPool
from aliquot.common.errors import AliquotError
from aliquot.common.runtime import VERSION
from aliquot.console.api import (
    access,
    earlier,
    events,
    fleet,
    forecasts,
    health,
    leases,
    nodes,
    oidc,
    plans,
    session,
    tenancy,
)
from aliquot.console.api.answers import answer, on_http, on_invalid, on_refused
from aliquot.console.api.callers import AllPools, nobody
from aliquot.console.codes import Codes
from aliquot.console.door import Door
from aliquot.console.hot import Hot
from aliquot.console.known import Known
from aliquot.console.page import Page
from aliquot.console.pools import Pools
from aliquot.console.settings import Settings
from aliquot.console.streams import Streams
from aliquot.console.tagged import Tagged

OPENAPI = "/api/v1/openapi.json"
_probes = APIRouter(tags=["probes"])


def make_app(settings: Settings, connect: Callable[[str], AsyncPool]) -> ASGIApp:
    """`connect` makes a connection to the pool for a token."""
    return dress(make_api(settings, connect), settings)


def dress(api: FastAPI, settings: Settings) -> Door:
    """An API with the page beside it, behind the door."""
    return Door(Page(Hot(Tagged(api), api.state.pools)), settings.origin, api.state.known)


def make_api(settings: Settings, connect: Callable[[str], AsyncPool]) -> FastAPI:
    """The API alone, behind no door."""
    pools = Pools(connect, kept_max=settings.callers_max)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if app.state.fleet is not None:
                await app.state.fleet.close()
            await pools.close()

    # Its own pages of documentation load scripts from elsewhere.
    app = FastAPI(
        title="aliquot",
        version=VERSION,
        description="Exact parts of GPUs from one pool.",
        openapi_url=OPENAPI,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={
            AliquotError: on_refused,
            RequestValidationError: on_invalid,
            HTTPException: on_http,
        },
    )
    app.state.pools = pools
    app.state.known = Known(pools)
    app.state.fleet = None
    app.state.streams = Streams(settings.streams_max)
    app.state.origin = settings.origin
    app.state.session = settings.session
    app.state.codes = Codes()
    app.state.providers = oidc.Providers()
    for room in (leases, nodes, fleet, health, tenancy, forecasts, plans, access, session, events, earlier):
        app.include_router(room.router, prefix="/api/v1")
    app.include_router(oidc.router)
    app.include_router(_probes)
    return app


@_probes.get("/api/v1")
async def about() -> Response:
    """What this is."""
    return answer({"name": "aliquot", "version": VERSION, "openapi": OPENAPI})


@_probes.get("/healthz")
@_probes.get("/health", deprecated=True)
async def alive() -> Response:
    """Whether this process serves."""
    return answer({"status": "ok"})


@_probes.get("/readyz")
@_probes.get("/ready", deprecated=True)
async def ready(pools: AllPools) -> Response:
    """Whether a coordinator answers."""
    async with nobody(pools) as pool:
        try:
            await pool.access.describe_login()
        except AliquotError as error:
            return answer({"status": "unavailable", "reason": error.reason}, HTTPStatus.SERVICE_UNAVAILABLE)
    return answer({"status": "ok"})
