"""Durable changes as server-sent events, which a browser resumes where it was.

The first event is `open`. Then come `lease` and `node`, each a record after a change, whose id is the number to resume
from; `resync`, when changes were missed and what is shown must be listed again; and at the end, where the pool ended
the stream, `closed` with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Query, Request, Response

from aliquot.client import Event, LeaseChanged, NodeChanged
from aliquot.client.documents import of_error, plain
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_WATCHED_LEASES
from aliquot.console.api.callers import AllPools, Token
from aliquot.console.sse import EventStream, frame, gathered
from aliquot.console.streams import Streams

router = APIRouter(tags=["events"])
_TEXT: Final = {"type": "string"}
_EVENT: Final = {
    "type": "object",
    "properties": {"data": _TEXT, "event": _TEXT, "id": _TEXT, "retry": {"type": "integer", "minimum": 0}},
}
_SHAPE: Final[dict[int | str, dict[str, Any]]] = {200: {"content": {"text/event-stream": {"itemSchema": _EVENT}}}}


@router.get("/events", response_class=Response, responses=_SHAPE)
async def events(  # noqa: PLR0917 - most are names in the query
    request: Request,
    token: Token,
    pools: AllPools,
    tenant: str = "",
    lease_id: Annotated[list[str] | None, Query(max_length=MAX_WATCHED_LEASES)] = None,
    nodes: bool = False,  # noqa: FBT001 - a name in the query
    after_seq: Annotated[int, Query(ge=0, le=1 << 62)] = 0,
    last_event_id: Annotated[str, Header()] = "",
) -> Response:
    """Changes of leases that the caller may see, and of nodes where asked for, as they become durable."""
    streams: Streams = request.app.state.streams
    kept = contextlib.AsyncExitStack()
    try:
        kept.enter_context(streams.one(await request.app.state.known.principal(token)))
        pool = await kept.enter_async_context(pools.of(token))
        # What it may not have is refused before the stream begins, and where it begins is known.
        page = await pool.leases_page("", 1, tenant=tenant)
    except BaseException:
        await kept.aclose()
        raise
    start = int(last_event_id) if last_event_id.isascii() and last_event_id.isdigit() else after_seq
    seq = min(start, 1 << 62) or page.seq
    changes = pool.watch(tenant=tenant, lease_ids=lease_id or [], nodes=nodes, after_seq=seq, relist=False)
    return EventStream(_frames(changes, seq), kept)


async def _frames(changes: AsyncIterator[Event], seq: int) -> AsyncGenerator[bytes, None]:
    yield frame("open", str(seq), {"seq": seq})
    try:
        async with (
            contextlib.aclosing(changes) as following,  # type: ignore[type-var]
            contextlib.aclosing(gathered(following, _told)) as told,
        ):
            async for each in told:
                yield each
    except AliquotError as error:
        yield frame("closed", "", of_error(error))


def _told(change: Event) -> bytes:
    if isinstance(change, LeaseChanged):
        return frame("lease", str(change.seq), {"at_ms": change.at_ms, "lease": plain(change.lease)})
    if isinstance(change, NodeChanged):
        return frame("node", str(change.seq), {"at_ms": change.at_ms, "node": plain(change.node)})
    return frame("resync", str(change.seq), {"seq": change.seq})
