"""The extender's HTTP server: what callers send in pieces, at once, wrongly, or not to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar

import pytest

from aliquot.kube.extender import httpd
from aliquot.kube.extender.httpd import Answer, Server

T = TypeVar("T")


async def within(what: Coroutine[Any, Any, T]) -> T:
    """Its result, soon enough."""
    async with asyncio.timeout(30):
        return await what


class Served:
    """A server whose handlers do what their path says."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.carried_out = 0

    async def echo(self, body: bytes) -> Answer:
        return Answer(body, content="application/json")

    async def wait(self, body: bytes) -> Answer:
        self.begun.set()
        await self.go_on.wait()
        self.carried_out += 1
        return Answer(body)

    async def fail(self, body: bytes) -> Answer:
        raise ValueError("a mistake")

    async def call(self, sent: bytes, *, end: bool = True) -> bytes:
        """All that comes back until the server, or with `end` we first, have ended the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        if end:
            writer.write_eof()
        try:
            return await within(reader.read())
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Served]:
    served = Served(server := Server({}, 1000), 0)
    server.routes = {("POST", "/echo"): served.echo, ("POST", "/wait"): served.wait, ("POST", "/fail"): served.fail}
    served.port = await server.start("127.0.0.1", 0)
    try:
        yield served
    finally:
        served.go_on.set()
        await server.cleanup()


def post(path: str, body: bytes, *more: str) -> bytes:
    head = "\r\n".join((f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *more))
    return head.encode() + b"\r\n\r\n" + body


def last(*more: str) -> tuple[str, ...]:
    return (*more, "Connection: close")


async def test_requests_of_one_connection_are_answered_in_their_order() -> None:
    async with serving() as served:
        sent = b"".join(post("/echo?timeout=1", b"%d" % number) for number in range(40))
        found = await served.call(sent + post("/echo", b"end", *last()), end=False)
        bodies = [part.partition(b"\r\n\r\n")[2] for part in found.split(b"HTTP/1.1 ")[1:]]
        assert bodies == [b"%d" % number for number in range(40)] + [b"end"]
        assert found.count(b"200 OK") == 41
        assert b"Content-Type: application/json" in found


async def test_a_body_may_come_in_pieces_and_chunks() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        for byte in post("/echo", b"in pieces", *last()):
            writer.write(bytes([byte]))
            await writer.drain()
        assert (await within(reader.read())).endswith(b"in pieces")
        writer.close()
        chunked = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        found = await served.call(chunked + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", end=False)
        assert found.endswith(b"\r\n\r\nabcde")


async def test_a_caller_that_asks_before_it_sends_is_told_to_go_on() -> None:
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        head, _, body = post("/echo", b"body", *last("Expect: 100-continue")).partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        assert await within(reader.readuntil(b"\r\n\r\n")) == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await within(reader.read())).endswith(b"body")
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -3\r\n\r\n", 400),
        (b"POST /echo HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", 400),
        (post("/echo", b"x" * 1001), 413),
        (post("/other", b"", *last()), 404),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", 405),
        (b"POST /echo HTTP/1.0\r\nContent-Length: 2\r\n\r\nab", 200),
        (b"GET /" + b"x" * (httpd.HEAD_BYTES_MAX + 1), 431),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * (httpd.HEAD_BYTES_MAX + 1), 431),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (httpd.HEAD_BYTES_MAX // 6 + 1), 431),
    ],
)
async def test_what_is_wrong_is_said_and_ends_the_connection(sent: bytes, status: int) -> None:
    async with serving() as served:
        found = await served.call(sent, end=False)
        assert found.startswith(f"HTTP/1.1 {status} ".encode())
        assert b"\r\nConnection: close\r\n" in found
        assert (await served.call(post("/echo", b"next", *last()))).endswith(b"next")


async def test_what_came_before_a_mistake_is_answered() -> None:
    async with serving() as served:
        found = await served.call(post("/echo", b"one") + b"nonsense\r\n\r\n" + post("/echo", b"two"), end=False)
        assert found.count(b"HTTP/1.1 ") == 2
        assert b"one" in found
        assert b" 400 " in found


async def test_a_handler_that_fails_costs_its_own_answer_only(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as served:
        found = await served.call(post("/fail", b"") + post("/echo", b"next", *last()), end=False)
        assert found.startswith(b"HTTP/1.1 500 ")
        assert found.endswith(b"next")
        assert "/fail failed" in caplog.text


async def test_a_request_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "REQUEST_S", 0.05)
    async with serving() as served:
        found = await served.call(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab", end=False)
        assert found.startswith(b"HTTP/1.1 408 ")


async def test_a_connection_by_which_nothing_comes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "REQUEST_S", 0.05)
    async with serving() as served:
        assert (await served.call(b"", end=False)).startswith(b"HTTP/1.1 408 ")


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(httpd, "CONNECTIONS_MAX", 1)
    async with serving() as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(post("/echo", b"first"))
        assert (await reader.readuntil(b"first")).startswith(b"HTTP/1.1 200 ")
        refused, other = await asyncio.open_connection("127.0.0.1", served.port)
        with contextlib.suppress(ConnectionError):
            assert await within(refused.read()) == b""
        other.close()
        writer.close()


async def test_what_is_asked_for_is_carried_to_its_end_also_when_the_caller_leaves() -> None:
    async with serving() as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(post("/wait", b""))
        await within(served.begun.wait())
        writer.close()
        await writer.wait_closed()
        served.go_on.set()
        await served.server.cleanup()
        assert served.carried_out == 1
        assert not served.server.connections


async def test_what_is_being_answered_at_the_end_is_answered() -> None:
    async with serving() as served:
        asking = asyncio.create_task(served.call(post("/wait", b"late", *last()), end=False))
        await within(served.begun.wait())
        ending = asyncio.create_task(served.server.cleanup(30))
        served.go_on.set()
        await ending
        assert (await asking).endswith(b"late")
        with pytest.raises(ConnectionError):
            await served.call(b"")


async def test_one_that_never_answers_does_not_hold_up_the_end() -> None:
    async with serving() as served:
        asking = asyncio.create_task(served.call(post("/wait", b""), end=False))
        await within(served.begun.wait())
        await served.server.cleanup(0.01)
        assert await asking == b""
        assert not served.carried_out
