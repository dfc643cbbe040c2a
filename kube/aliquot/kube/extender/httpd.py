"""A small HTTP/1.1 server for callers on the same machine: whole requests in, whole answers out (decision 0085).

The parser is httptools'. A connection's requests are answered one after another; a request whose body is larger than
`max_bytes`, whose head is larger than `HEAD_BYTES_MAX`, or that is not there as a whole within `REQUEST_S` of its
first byte (a connection's first request: of its beginning), ends its connection. Who stops reading its answers is
not answered further. A caller that goes away takes nothing back: what it asked for is carried to its end.
"""

from __future__ import annotations

import asyncio
import functools
import http
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import Final, NamedTuple, cast

import httptools

log = logging.getLogger(__name__)

REQUEST_S: Final = 30.0
"""From a request's first byte to its last."""
HEAD_BYTES_MAX: Final = 64 * 1024
"""Of a request's line and headers."""
CONNECTIONS_MAX: Final = 1_024
_QUEUED_MAX: Final = 8
"""Requests of a connection that wait for the answer of the one before; more are not read meanwhile."""


class Answer(NamedTuple):
    """What is sent back."""

    body: bytes
    status: int = 200
    content: str = "text/plain; charset=utf-8"


Handler = Callable[[bytes], Awaitable[Answer]]
"""From a request's body to its answer."""
Routes = Mapping[tuple[str, str], Handler]
"""By method and path."""


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes
    keep_alive: bool
    problem: int = 0
    """The status to answer instead of what was asked for, after which nothing more is read."""


class Server:
    """Serves until `cleanup`. Use from one event loop."""

    def __init__(self, routes: Routes, max_bytes: int) -> None:
        self.routes = routes
        self.max_bytes = max_bytes
        self.connections: set[_Connection] = set()
        self.answering: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; returns the port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), host, port)
        return int(self._server.sockets[0].getsockname()[1])

    async def cleanup(self, patience_s: float = 5.0) -> None:
        """Stop listening, give what is being answered some time, close all connections."""
        if self._server is not None:
            self._server.close()
        if self.answering:
            await asyncio.wait(self.answering, timeout=patience_s)
        for task in self.answering:
            task.cancel()
        await asyncio.gather(*self.answering, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()


class _Connection(asyncio.Protocol):
    """One caller."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._body: list[bytes] = []
        self._size = 0
        self._head_bytes = 0
        """Of a head that is not complete; in a body, or between requests: 0."""
        self._in_body = False
        self._expects = False
        self._deadline: asyncio.TimerHandle | None = None
        self._waiting: deque[_Request] = deque()
        self._answering: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._over = False
        """Nothing more is read."""

    # ------------------------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._server.connections) >= CONNECTIONS_MAX:
            self._over = True
            self._transport.abort()
            return
        self._server.connections.add(self)
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S, self._late)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._over = True
        self._writable.set()
        self._in_time()
        self._server.connections.discard(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self._over:
                self._refuse(400)
        if not self._in_body and self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(431)

    def close(self) -> None:
        """Close it."""
        self._over = True
        self._in_time()
        if self._transport is not None:
            self._transport.close()

    # ---------------------------------------------------------------------------------------------------- parser

    def on_message_begin(self) -> None:
        """The parser's."""
        self._url, self._size, self._expects = b"", 0, False
        self._body.clear()
        self._in_time()
        self._deadline = asyncio.get_running_loop().call_later(REQUEST_S, self._late)

    def on_url(self, url: bytes) -> None:
        """The parser's; in parts where it comes in parts."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser's."""
        if name.lower() == b"expect" and value.lower() == b"100-continue":
            self._expects = True

    def on_headers_complete(self) -> None:
        """The parser's."""
        self._head_bytes, self._in_body = 0, True
        if self._expects and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        """The parser's; in parts."""
        self._size += len(body)
        if self._size > self._server.max_bytes:
            self._refuse(413)
        elif not self._over:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """The parser's."""
        self._in_body = False
        if self._over:
            return
        self._in_time()
        path = self._url.partition(b"?")[0].decode("latin-1")
        body = b"".join(self._body)
        method = self._parser.get_method().decode("latin-1")
        self._ask(_Request(method, path, body, self._parser.should_keep_alive()))

    def _in_time(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._refuse(408)

    def _refuse(self, status: int) -> None:
        """Answer what came before, then so."""
        if self._over:
            return
        self._over = True
        self._in_time()
        self._body.clear()
        self._ask(_Request("", "", b"", keep_alive=False, problem=status))

    # ------------------------------------------------------------------------------------------------- answering

    def _ask(self, request: _Request) -> None:
        self._waiting.append(request)
        if len(self._waiting) >= _QUEUED_MAX and self._transport is not None:
            self._transport.pause_reading()
        if self._answering is None:
            self._answering = asyncio.create_task(self._answer())
            self._server.answering.add(self._answering)
            self._answering.add_done_callback(self._server.answering.discard)

    async def _answer(self) -> None:
        try:
            while self._waiting:
                request = self._waiting.popleft()
                if self._transport is not None and not self._transport.is_reading() and not self._over:
                    self._transport.resume_reading()
                answer = await self._answer_to(request)
                if not self._writable.is_set():
                    await self._writable.wait()
                if self._transport is None:
                    return  # it has gone away, with what else it asked for
                self._transport.write(_encoded(answer, keep_alive=request.keep_alive))
                if not request.keep_alive:
                    self._waiting.clear()
                    self.close()
        finally:
            self._answering = None

    async def _answer_to(self, request: _Request) -> Answer:
        if request.problem:
            return Answer(http.HTTPStatus(request.problem).phrase.encode(), request.problem)
        handler = self._server.routes.get((request.method, request.path))
        if handler is None:
            known = any(path == request.path for _, path in self._server.routes)
            status = http.HTTPStatus.METHOD_NOT_ALLOWED if known else http.HTTPStatus.NOT_FOUND
            return Answer(status.phrase.encode(), status)
        try:
            return await handler(request.body)
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            return Answer(b"a mistake of ours; the log has it", 500)


def _encoded(answer: Answer, *, keep_alive: bool) -> bytes:
    body, status, content = answer
    close = "" if keep_alive else "Connection: close\r\n"
    head = (
        f"HTTP/1.1 {status} {_phrase(status)}\r\nDate: {_date(int(time.time()))}\r\nContent-Type: {content}\r\n"
        f"Content-Length: {len(body)}\r\n{close}\r\n"
    )
    return head.encode("latin-1") + body


@functools.lru_cache(maxsize=64)
def _phrase(status: int) -> str:
    return http.HTTPStatus(status).phrase


@functools.lru_cache(maxsize=1)
def _date(second: int) -> str:
    return formatdate(second, usegmt=True)
