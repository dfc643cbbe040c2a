"""A caller of HTTP/1.1 that costs little itself, so that the other side is what is measured: POST, kept connections."""

from __future__ import annotations

import asyncio
from typing import cast

import httptools


class Caller:
    """Calls one server, on as many connections as calls are under way. Close it."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._idle: list[_Connection] = []
        self._all: list[_Connection] = []

    async def post(self, path: str, body: bytes) -> bytes:
        """The answer's body. Raises RuntimeError where it is not 200, or the server has gone."""
        if self._idle:
            connection = self._idle.pop()
        else:
            _, connection = await asyncio.get_running_loop().create_connection(_Connection, *self._address)
            self._all.append(connection)
        status, answer = await connection.post(path, body)
        self._idle.append(connection)
        if status != 200:
            raise RuntimeError(f"{path}: {status} {answer!r}")
        return answer

    def close(self) -> None:
        """Drop the connections."""
        for connection in self._all:
            connection.close()


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def post(self, path: str, body: bytes) -> asyncio.Future[tuple[int, bytes]]:
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        return self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RuntimeError(f"the server has closed the connection: {error}"))

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        self._body.clear()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), body))
