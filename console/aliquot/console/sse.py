"""Server-sent events: how one is written, and how a stream of them goes out to somebody who may leave at any moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final, TypeVar

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from aliquot.common.tasks import beside

T = TypeVar("T")
PING: Final = b": ping\n\n"
PING_S: Final = 15.0
PENDING_MAX: Final = 256
"""So many events wait for somebody who reads slowly; then what they come from waits, too."""
_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    # Proxies that gather answers would hold events back.
    (b"x-accel-buffering", b"no"),
)


def frame(event: str, number: str, document: object) -> bytes:
    """An event. Without a number a browser goes on from the one before."""
    line = f"id: {number}\n" if number else ""
    return f"event: {event}\n{line}data: ".encode() + msgspec.json.encode(document) + b"\n\n"


class EventStream(Response):
    """Written straight to the connection: what a hundred viewers cost is what they are sent."""

    def __init__(self, frames: AsyncGenerator[bytes, None], kept: contextlib.AsyncExitStack) -> None:
        """`kept` is what the stream needs: given back at its end, however it comes."""
        super().__init__()
        self._frames = frames
        self._kept = kept

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Until the caller leaves, or there is no more."""
        async with self._kept, beside("send", self._send(send)) as sending, beside("leave", _left(receive)) as leaving:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        async with contextlib.aclosing(self._frames):
            async for each in self._frames:
                await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def gathered(items: AsyncIterator[T], write: Callable[[T], bytes]) -> AsyncGenerator[bytes, None]:
    """What arrives while the last was sent goes out together; comments when nothing comes. Raises as `items` does."""
    pending: list[bytes] = []
    more, room = asyncio.Event(), asyncio.Event()

    async def take() -> None:
        try:
            async for item in items:
                pending.append(write(item))
                more.set()
                if len(pending) >= PENDING_MAX:
                    room.clear()
                    await room.wait()
        finally:
            more.set()

    taking = asyncio.create_task(take())
    try:
        while pending or not taking.done():
            try:
                async with asyncio.timeout(PING_S):
                    await more.wait()
            except TimeoutError:
                yield PING
                continue
            more.clear()
            chunk = b"".join(pending)
            pending.clear()
            room.set()
            if chunk:
                yield chunk
        taking.result()
    finally:
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
