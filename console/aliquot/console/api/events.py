"""Durable changes as server-sent events, which a browser resumes where it was.

The first event is `open`. Then come `lease` and `node`, each a record after a change, whose id is the number to resume
from; `resync`, when changes were missed and what is shown must be listed again; and at the end, where the pool ended
the stream, `closed` with the reason.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from aliquot.client import AsyncPool, Event, LeaseChanged, NodeChanged
from aliquot.client.documents import of_error, plain
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_WATCHED_LEASES
from aliquot.console.api.callers import Pool, Token
from aliquot.console.streams import Streams

router = APIRouter(tags=["events"])


@dataclass(frozen=True, slots=True)
class _Followed:
    """What a stream is about, once it is known that its caller may have it."""

    pool: AsyncPool
    after_seq: int
    tenant: str
    lease_ids: list[str]
    nodes: bool


async def _followed(  # noqa: PLR0917 - most are names in the query
    request: Request,
    token: Token,
    pool: Pool,
    tenant: str = "",
    lease_id: Annotated[list[str] | None, Query(max_length=MAX_WATCHED_LEASES)] = None,
    nodes: bool = False,  # noqa: FBT001 - a name in the query
    after_seq: Annotated[int, Query(ge=0, le=1 << 62)] = 0,
    last_event_id: Annotated[str, Header()] = "",
) -> AsyncIterator[_Followed]:
    streams: Streams = request.app.state.streams
    with streams.one(token):
        # What it may not have is refused before the stream begins, and where it begins is known.
        page = await pool.leases_page("", 1, tenant=tenant)
        start = int(last_event_id) if last_event_id.isascii() and last_event_id.isdigit() else after_seq
        yield _Followed(pool, min(start, 1 << 62) or page.seq, tenant, lease_id or [], nodes)


@router.get("/events", response_class=EventSourceResponse)
async def events(what: Annotated[_Followed, Depends(_followed)]) -> AsyncIterator[ServerSentEvent]:
    """Changes of leases that the caller may see, and of nodes where asked for, as they become durable."""
    yield _event("open", what.after_seq, {"seq": what.after_seq})
    changes = what.pool.watch(
        tenant=what.tenant, lease_ids=what.lease_ids, nodes=what.nodes, after_seq=what.after_seq, relist=False
    )
    try:
        async with contextlib.aclosing(changes) as following:  # type: ignore[type-var]
            async for change in following:
                yield _told(change)
    except AliquotError as error:
        yield ServerSentEvent(event="closed", raw_data=_json(of_error(error)))


def _told(change: Event) -> ServerSentEvent:
    if isinstance(change, LeaseChanged):
        return _event("lease", change.seq, {"at_ms": change.at_ms, "lease": plain(change.lease)})
    if isinstance(change, NodeChanged):
        return _event("node", change.seq, {"at_ms": change.at_ms, "node": plain(change.node)})
    return _event("resync", change.seq, {"seq": change.seq})


def _event(kind: str, seq: int, document: object) -> ServerSentEvent:
    return ServerSentEvent(event=kind, id=str(seq), raw_data=_json(document))


def _json(document: object) -> str:
    return msgspec.json.encode(document).decode()
