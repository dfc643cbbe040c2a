"""Keep-alive: one worker and one stream for all leases of a pool."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aliquot.client._async.ports import AsyncExchange, AsyncTransport
from aliquot.client._async.seam import Flag, Lock, Worker, wait_for
from aliquot.client._keeping import KeepBook, News
from aliquot.client._methods import LEASES
from aliquot.client._retrying import UNAUTHENTICATED, Context
from aliquot.common.errors import SecurityError
from aliquot.common.failures import RpcFailure
from aliquot.v1 import leases_pb2

log = logging.getLogger("aliquot.client")

_Exchange = AsyncExchange[leases_pb2.KeepAliveRequest, leases_pb2.KeepAliveResponse]


class AsyncKeeper:
    """Sends the keep-alives of a pool's leases, and passes on what the coordinator says of them.

    `on_news` is called from the keeper's worker, which starts with the first lease.
    """

    def __init__(self, transport: AsyncTransport, context: Context, on_news: Callable[[News], None]) -> None:
        self._transport = transport
        self._context = context
        self._on_news = on_news
        self._lock = Lock()
        self._book = KeepBook(context.policy, context.rng)
        self._changed = Flag()
        self._closing = Flag()
        self._worker: Worker | None = None
        self._exchange: _Exchange | None = None
        self._refused = False

    def add(self, lease_id: str, ttl_s: float) -> None:
        """Keep this lease alive."""
        with self._lock:
            self._book.add(lease_id, ttl_s, self._context.clock())
            if self._worker is None and not self._closing.is_set():
                self._worker = Worker(self._run, "aliquot-keep-alive")
        self._changed.set()

    def drop(self, lease_id: str) -> None:
        """Stop keeping it alive."""
        with self._lock:
            self._book.drop(lease_id)

    async def close(self) -> None:
        """Stop keeping leases alive."""
        with self._lock:
            self._closing.set()
            exchange, worker = self._exchange, self._worker
        self._changed.set()
        if exchange is not None:
            exchange.cancel()
        if worker is not None:
            await worker.end()

    async def _run(self) -> None:
        while not self._closing.is_set():
            # Cleared before looking, so that a lease added later wakes the worker.
            self._changed.clear()
            if not len(self._book):
                await wait_for(self._changed, None)
                continue
            address, generation = self._context.endpoints.current, self._context.token.generation
            asked_s: float | None = None
            try:
                with self._lock:
                    if self._closing.is_set():
                        return
                    self._exchange = exchange = self._transport.exchange(LEASES["KeepAlive"], address)
                await self._serve(exchange)
            except RpcFailure as failure:
                asked_s = self._follow(failure, address, generation)
            except Exception:
                # A defect here must not let every lease of the program expire.
                log.exception("the keep-alive stream failed; connecting again")
            finally:
                with self._lock:
                    ended, self._exchange = self._exchange, None
                if ended is not None:
                    ended.cancel()
            with self._lock:
                pause_s = self._book.broke(self._context.clock(), asked_s)
            await wait_for(self._closing, pause_s)

    async def _serve(self, exchange: _Exchange) -> None:
        """One stream: messages when due, each answered before the next."""
        while not self._closing.is_set():
            self._changed.clear()
            with self._lock:
                now = self._context.clock()
                messages = self._book.take(now)
                idle_s = self._book.wait_s(now)
            if not messages:
                await wait_for(self._changed, idle_s)
                continue
            for message in messages:
                await exchange.send(message)
            for _ in messages:
                try:
                    answer = await exchange.receive(self._book.wait_for_answer_s())
                except TimeoutError:
                    log.info("the coordinator is silent; connecting again")
                    raise RpcFailure("UNAVAILABLE", "silent", self._context.endpoints.current) from None
                if answer is None:
                    return
                self._refused = False
                with self._lock:
                    news = self._book.answered(answer, self._context.clock())
                for item in news:
                    self._on_news(item)

    def _follow(self, failure: RpcFailure, address: str, generation: int) -> float | None:
        """Choose the address to try next. Returns the wait that was asked for."""
        if not self._closing.is_set():
            log.debug("keep-alive stream ended: %s", failure)
        if failure.code == UNAUTHENTICATED:
            if not self._context.token.renewed(generation) and not self._refused:
                self._refused = True  # said once, though it is tried until leases expire
                log.warning("leases can't be kept alive: %s", failure)
            return failure.retry_after_s
        leader = failure.metadata.get("leader", "")
        if failure.reason == "NOT_LEADER" and leader:
            try:
                self._context.follow(leader)
            except SecurityError as error:
                log.warning("leases can't be kept alive there: %s", error.message)
            else:
                return None
        self._context.endpoints.advance(address)
        return failure.retry_after_s
