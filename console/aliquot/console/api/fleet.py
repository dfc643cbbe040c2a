"""The fleet: all devices at once, and what changes, for screens."""

from __future__ import annotations

import contextlib
from http import HTTPStatus
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from aliquot.console.api.answers import shows
from aliquot.console.api.callers import Token
from aliquot.console.fleet import FleetRelay
from aliquot.console.sse import EventStream
from aliquot.console.streams import Streams

router = APIRouter(tags=["nodes"])
PROTOBUF: Final = "application/x-protobuf"
_SHAPE: Final[dict[int | str, dict[str, Any]]] = shows(None) | {
    200: {"description": "Done", "content": {PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}}
}


def relay_of(request: Request) -> FleetRelay:
    """The one of this process, made at its first use: it belongs to the event loop that serves."""
    state = request.app.state
    if state.fleet is None:
        state.fleet = FleetRelay(state.pools)
    relay: FleetRelay = state.fleet
    return relay


@router.get("/fleet", response_class=Response, responses=_SHAPE)
async def snapshot(
    request: Request,
    token: Token,
    if_none_match: Annotated[str, Header()] = "",
    accept_encoding: Annotated[str, Header()] = "",
) -> Response:
    """All devices as columns: a few bytes each, in the contract's messages `FleetEvent`, each behind its length."""
    relay = relay_of(request)
    async with relay.viewing(token):
        shown = await relay.snapshot(token)
    tag = f'"{shown.id}"'
    headers = {"ETag": tag, "Vary": "Accept-Encoding", "Cache-Control": "no-cache"}
    if tag in if_none_match:
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if "gzip" in accept_encoding:
        return Response(shown.packed, headers=headers | {"Content-Encoding": "gzip"}, media_type=PROTOBUF)
    return Response(shown.plain, headers=headers, media_type=PROTOBUF)


@router.get("/fleet/events", response_class=Response, responses={200: {"content": {"text/event-stream": {}}}})
async def changes(
    request: Request,
    token: Token,
    after: Annotated[str, Query(max_length=64)] = "",
    last_event_id: Annotated[str, Header(max_length=64)] = "",
) -> Response:
    """What changes, as server-sent events, from the snapshot on whose last message has this layout and version.

    `open` first; `change`: a `FleetEvent` in base64; `resync`: ask for `/fleet` again; `pool`: whether a coordinator
    answers, and since when not; `closed`: the caller may look no more, and why.
    """
    streams: Streams = request.app.state.streams
    kept = contextlib.AsyncExitStack()
    kept.enter_context(streams.one(await request.app.state.known.principal(token)))
    try:
        relay = relay_of(request)
        viewer = await kept.enter_async_context(relay.viewing(token))
        await relay.first()
    except BaseException:
        await kept.aclose()
        raise
    return EventStream(viewer.frames(last_event_id or after), kept)
