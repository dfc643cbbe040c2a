"""Keep-alive for programs with threads: one daemon thread and one stream for all leases of a pool."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

from aliquot.client._flow import Context
from aliquot.client._keeping import KeepBook, News
from aliquot.client._methods import KEEP_ALIVE
from aliquot.client._transport import RpcFailure, ServerStream, Transport
from aliquot.v1 import leases_pb2

log = logging.getLogger("aliquot.client")


class Keeper:
    """Names the pool's leases to the coordinator in time; tells what it hears of them.

    `on_news` is called from the keeper's thread. The thread starts with the first lease.
    """

    def __init__(self, transport: Transport, context: Context, on_news: Callable[[News], None]) -> None:
        self._transport = transport
        self._context = context
        self._on_news = on_news
        self._book = KeepBook(context.policy, context.rng)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._generation = 0
        self._stream: ServerStream[leases_pb2.KeepAliveResponse] | None = None

    def add(self, lease_id: str, ttl_s: float) -> None:
        """Keep this lease."""
        with self._changed:
            self._book.add(lease_id, ttl_s, self._context.clock())
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="aliquot-keep-alive", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drop(self, lease_id: str) -> None:
        """No longer keep it."""
        with self._changed:
            self._book.drop(lease_id)

    def close(self) -> None:
        """Keep nothing any more, and wait for the thread."""
        with self._changed:
            self._closed = True
            stream, thread = self._stream, self._thread
            self._changed.notify_all()
        if stream is not None:
            stream.cancel()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)

    def _run(self) -> None:
        while self._await_work():
            address = self._context.endpoints.current
            with self._changed:
                self._generation += 1
                generation = self._generation
            stream = self._transport.exchange(KEEP_ALIVE, self._messages(generation), address)
            with self._changed:
                self._stream = stream
                if self._closed:
                    stream.cancel()
            asked_s: float | None = None
            try:
                for answer in stream:
                    self._take(answer)
            except RpcFailure as failure:
                asked_s = self._follow(failure, address)
            except Exception:
                # A defect here must not let every lease of the program expire.
                log.exception("the keep-alive stream failed; connecting again")
            with self._changed:
                # The generator of the old stream sees that its time is over.
                self._generation += 1
                self._stream = None
                self._changed.notify_all()
                self._changed.wait_for(self._is_closed, timeout=self._book.broke(self._context.clock(), asked_s))

    def _is_closed(self) -> bool:
        return self._closed

    def _await_work(self) -> bool:
        with self._changed:
            while not self._closed and not len(self._book):
                self._changed.wait()
            return not self._closed

    def _messages(self, generation: int) -> Iterator[leases_pb2.KeepAliveRequest]:
        """What grpc sends, from its own thread: blocks until something is due."""
        while True:
            with self._changed:
                while True:
                    if self._closed or self._generation != generation:
                        return
                    now = self._context.clock()
                    if self._book.silent(now) and self._stream is not None:
                        log.info("the coordinator is silent; connecting again")
                        self._stream.cancel()
                        return
                    messages = self._book.take(now)
                    if messages:
                        break
                    self._changed.wait(self._book.wait_s(now))
            yield from messages

    def _take(self, answer: leases_pb2.KeepAliveResponse) -> None:
        with self._changed:
            news = self._book.answered(answer, self._context.clock())
            self._changed.notify_all()
        for item in news:
            self._on_news(item)

    def _follow(self, failure: RpcFailure, address: str) -> float | None:
        """Turn to who may answer; returns the wait that was asked for."""
        if not self._closed:
            log.debug("keep-alive stream ended: %s", failure)
        leader = failure.metadata.get("leader", "")
        if failure.reason == "NOT_LEADER" and leader:
            self._context.endpoints.follow(leader)
            return None
        self._context.endpoints.advance(address)
        return failure.retry_after_s
