"""The fleet: all devices at once, and what changes, for screens."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, Field

from aliquot.console.api.answers import JSON, shows
from aliquot.console.api.callers import Token
from aliquot.console.fleet import FleetRelay
from aliquot.console.sse import EventStream
from aliquot.console.streams import Streams

router = APIRouter(tags=["nodes"])


class FleetNodes(BaseModel):
    """Columns: what stands at the same place is about the same node."""

    node_id: list[str]
    name: list[str]
    pool: list[int] = Field(description="Place in `pools`.")
    first: list[int] = Field(description="The number of the node's first device; the others follow.")
    devices: list[int]
    models: list[int | list[int]] = Field(description="Place in `model_names`: of all devices, or of each.")
    pools: list[str]
    model_names: list[str]


class FleetPicture(BaseModel):
    """Columns in base64, a byte for each device by its number."""

    id: str = Field(description="Give it to `/fleet/events` as `after`.")
    at_ms: int
    size: int
    nodes: FleetNodes
    states: str = Field(description="0 gone, 1 ready, 2 closed, 3 sick, 4 away, 5 suspect, 6 lost.")
    shares: str = Field(description="Leased compute in percent; 1 to 99 unless there is none or all.")
    memory: str = Field(description="Leased memory, likewise.")
    use: str = Field(description="GPU utilisation in percent; 255: unknown.")


def relay_of(request: Request) -> FleetRelay:
    """The one of this process, made at its first use: it belongs to the event loop that serves."""
    state = request.app.state
    if state.fleet is None:
        state.fleet = FleetRelay(state.pools)
    relay: FleetRelay = state.fleet
    return relay


@router.get("/fleet", responses=shows(FleetPicture))
async def picture(
    request: Request,
    token: Token,
    if_none_match: Annotated[str, Header()] = "",
    accept_encoding: Annotated[str, Header()] = "",
) -> Response:
    """All devices as columns: a few bytes each."""
    relay = relay_of(request)
    async with relay.viewing(token):
        await relay.first()
        tag = f'"{relay.picture.id}"'
        headers = {"ETag": tag, "Vary": "Accept-Encoding", "Cache-Control": "no-cache"}
        if tag in if_none_match:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        made = relay.picture.make()
        if "gzip" in accept_encoding:
            return Response(made.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=JSON)
        return Response(made.plain, headers=headers, media_type=JSON)


@router.get("/fleet/events", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})
async def changes(
    request: Request,
    token: Token,
    after: Annotated[str, Query(max_length=64)] = "",
    last_event_id: Annotated[str, Header(max_length=64)] = "",
) -> Response:
    """What changes, as server-sent events, from the picture with this id on.

    `open` first; `change`; `resync`: ask for `/fleet` again; `pool`: whether a coordinator answers, and since when not;
    `closed`: the caller may look no more, and why.
    """
    streams: Streams = request.app.state.streams
    kept = contextlib.AsyncExitStack()
    kept.enter_context(streams.one(token))
    try:
        relay = relay_of(request)
        viewer = await kept.enter_async_context(relay.viewing(token))
        await relay.first()
    except BaseException:
        await kept.aclose()
        raise
    return EventStream(viewer.frames(last_event_id or after), kept)
