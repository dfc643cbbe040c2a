"""Keep-alive for asyncio programs: one task and one stream for all leases of a pool."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from aliquot.client._flow import Context
from aliquot.client._keeping import KeepBook, News
from aliquot.client._methods import KEEP_ALIVE
from aliquot.client._transport import AsyncExchange, AsyncTransport, RpcFailure
from aliquot.v1 import leases_pb2

log = logging.getLogger("aliquot.client")

_Exchange = AsyncExchange[leases_pb2.KeepAliveRequest, leases_pb2.KeepAliveResponse]


class AsyncKeeper:
    """Names the pool's leases to the coordinator in time; tells what it hears of them.

    The task starts with the first lease.
    """

    def __init__(self, transport: AsyncTransport, context: Context, on_news: Callable[[News], None]) -> None:
        self._transport = transport
        self._context = context
        self._on_news = on_news
        self._book = KeepBook(context.policy, context.rng)
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def add(self, lease_id: str, ttl_s: float) -> None:
        """Keep this lease."""
        self._book.add(lease_id, ttl_s, self._context.clock())
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name="aliquot-keep-alive")
        self._changed.set()

    def drop(self, lease_id: str) -> None:
        """No longer keep it."""
        self._book.drop(lease_id)

    async def close(self) -> None:
        """Keep nothing any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            while not len(self._book):
                await self._pause(None)
            address = self._context.endpoints.current
            exchange = self._transport.exchange(KEEP_ALIVE, address)
            asked_s: float | None = None
            try:
                await self._serve(exchange)
            except RpcFailure as failure:
                leader = failure.metadata.get("leader", "")
                if failure.reason == "NOT_LEADER" and leader:
                    self._context.endpoints.follow(leader)
                else:
                    self._context.endpoints.advance(address)
                    asked_s = failure.retry_after_s
                log.debug("keep-alive stream ended: %s", failure)
            except Exception:
                # A defect here must not let every lease of the program expire.
                log.exception("the keep-alive stream failed; connecting again")
            finally:
                exchange.cancel()
            await asyncio.sleep(self._book.broke(self._context.clock(), asked_s))

    async def _serve(self, exchange: _Exchange) -> None:
        """One stream, in lock step: messages when due, then their answers."""
        while True:
            messages = self._book.take(self._context.clock())
            if not messages:
                await self._pause(self._book.wait_s(self._context.clock()))
                continue
            for message in messages:
                await exchange.send(message)
            for _ in messages:
                silence_s = self._book.wait_for_answer_s()
                try:
                    async with asyncio.timeout(silence_s):
                        answer = await exchange.receive()
                except TimeoutError:
                    log.info("the coordinator is silent; connecting again")
                    raise RpcFailure("UNAVAILABLE", "silent", self._context.endpoints.current) from None
                if answer is None:
                    return
                for item in self._book.answered(answer, self._context.clock()):
                    self._on_news(item)

    async def _pause(self, seconds: float | None) -> None:
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
