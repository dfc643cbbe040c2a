"""What stands before everything else."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.server import ServerState

from aliquot.common.errors import ConfigError
from aliquot.console import door
from aliquot.console.connections import HEAD_BYTES_MAX, Entrance, protocol
from aliquot.console.door import BODY_BYTES_MAX
from aliquot.console.settings import Settings, TlsSettings, parse_settings
from tests.console.conftest import Site, served
from tests.coordinator.pool import eventually


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.nip.io:7074"])
async def test_a_name_that_was_made_to_point_here_is_refused(site: Site, host: str) -> None:
    async with site.browse("admin") as http:
        refused = await http.get("/leases", headers={"Host": host})
    assert (refused.status_code, refused.json()["reason"]) == (421, "NAME_UNKNOWN")


async def test_a_refusal_names_the_whole_address(site: Site) -> None:
    async with site.browse("admin") as http:
        refused = await http.get("/leases", headers={"Host": "[2001:db8::1]:7074"})
    assert "'[2001:db8::1]'" in refused.json()["detail"]


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7074", "127.0.0.1:1", "[::1]:7074"])
async def test_its_own_names_are_let_in(site: Site, host: str) -> None:
    async with site.browse("admin") as http:
        assert (await http.get("/leases", headers={"Host": host})).status_code == 200


async def test_bodies_are_bounded_whether_they_say_their_length_or_not(site: Site) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 65_536 + 2):
            yield b" " * 65_536
            await asyncio.sleep(0)

    async with site.browse("admin") as http:
        said = await http.post("/leases:explain", content=b" " * (BODY_BYTES_MAX + 1))
        unsaid = await http.post("/leases:explain", content=chunks(), headers={"Content-Type": "application/json"})
    assert (said.status_code, unsaid.status_code) == (413, 413)


async def test_answers_keep_browsers_careful(site: Site) -> None:
    async with site.browse("admin") as http:
        headers = (await http.get("/leases")).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


async def test_a_word_that_is_no_token(site: Site) -> None:
    async with site.browse() as http:
        for word in ("Bearer ψ".encode(), b"Bearer a b", b"Basic abc", b"Bearer " + b"x" * 5000):
            refused = await http.get("/leases", headers=httpx.Headers([(b"authorization", word)]))
            assert refused.status_code == 401, word


async def test_more_callers_than_connections_are_kept(site: Site) -> None:
    names = ["viewer", "user", "manager", "viewer of all", "operator", "admin"]
    for name in [*names, *names]:
        async with site.browse(name) as http:
            assert (await http.get("/whoami")).json()["principal"] == name.replace(" ", "-")


async def test_over_a_real_socket(site: Site) -> None:
    async with served(site.app) as address, httpx.AsyncClient() as http:
        assert (await http.get(f"{address}/healthz")).status_code == 200


def test_nothing_is_served_in_the_clear_to_other_machines() -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        Settings(host="0.0.0.0").check()
    with pytest.raises(ConfigError, match="certificate and its key"):
        parse_settings(["--tls-cert", "x.pem"], "1", env={})
    assert TlsSettings() == parse_settings([], "1", env={}).tls


def test_names_are_settings() -> None:
    settings = parse_settings(["--names", "gpus.example.org, gpus"], "1", env={})
    assert {"gpus.example.org", "gpus", "localhost"} <= settings.allowed_names


@contextlib.asynccontextmanager
async def connected(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, _, port = address.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ", b"\r\n" * 40]
)
async def test_who_does_not_finish_a_head_is_not_waited_for(site: Site, sent: bytes) -> None:
    entrance = Entrance()
    async with served(site.app, entrance=entrance, head_s=0.2) as address, connected(address) as (reader, writer):
        writer.write(sent)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        assert entrance.now == 0


async def test_a_head_that_trickles_after_an_answer_is_not_waited_for(site: Site) -> None:
    async with served(site.app, head_s=0.5) as address, connected(address) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
        assert b"408 " in await reader.read()


async def test_a_head_is_bounded(site: Site) -> None:
    async with served(site.app) as address, connected(address) as (reader, writer):
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        with contextlib.suppress(OSError):  # it is closed while we go on
            for number in range(HEAD_BYTES_MAX // 1024 + 2):
                writer.write(b"X-%d: %b\r\n" % (number, b"x" * 1024))
                await writer.drain()
                await asyncio.sleep(0)
            assert b" 431 " in await reader.read()
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{address}/healthz")).status_code == 200


async def test_strangers_bodies_are_refused_before_they_are_read(site: Site) -> None:
    tokens = ["", "alq_" + "0" * 12 + "_" + "0" * 64]
    async with served(site.app) as address:
        for token in tokens:
            async with connected(address) as (reader, writer):
                head = f"POST /api/v1/leases HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
                writer.write(f"{head}Content-Type: application/json\r\nContent-Length: 3900000\r\n\r\n".encode())
                answer = await reader.read()  # not a byte of the body has been sent
                assert b" 401 " in answer.split(b"\r\n")[0]
                assert b"connection: close" in answer.lower()
        assert site.app._reading_bytes == 0


async def test_a_login_is_no_way_to_send_more(site: Site) -> None:
    async with site.browse() as http:
        refused = await http.post("/session", content=b'{"token": "%b"}' % (b"x" * door.STRANGERS_BODY_BYTES_MAX))
        assert refused.status_code == 413


async def test_a_body_that_trickles_is_not_waited_for(site: Site) -> None:
    site.app.body_s = 0.2
    token = site.people["user"].token
    async with served(site.app) as address, connected(address) as (reader, writer):
        head = f"POST /api/v1/leases HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        writer.write(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        answer = await reader.read()
        assert b" 408 " in answer.split(b"\r\n")[0]
        assert b"TOO_SLOW" in answer
    assert site.app._reading_bytes == 0


async def test_all_bodies_together_are_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "BODIES_BYTES_MAX", 100_000)
    async with site.browse("user") as http:
        refused = await http.post("/leases:explain", content=b" " * 100_001)
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")


async def test_the_head_and_the_body_of_an_answer_are_sent_together(site: Site) -> None:
    sent: list[bytes] = []

    class Wire(asyncio.Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            sent.append(bytes(data))

        def is_closing(self) -> bool:
            return False

        def close(self) -> None:
            """Nothing is behind it."""

    made: Any = protocol(Entrance())
    config = uvicorn.Config(site.app, http=made, log_config=None)
    config.load()
    connection = made(config=config, server_state=ServerState(), app_state={})
    connection.connection_made(Wire())
    connection.data_received(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await eventually(lambda: bool(sent), "it is answered")
    assert (sent[0][:15], sent[0][-15:]) == (b"HTTP/1.1 200 OK", b'{"status":"ok"}')
    connection.connection_lost(None)


def test_connections_of_one_address_leave_room_for_others() -> None:
    entrance = Entrance(most=8)
    assert [entrance.enter("203.0.113.9") for _ in range(3)] == [True, True, False]
    assert entrance.enter("2001:db8::1")
    assert all(entrance.enter("127.0.0.1") for _ in range(5)), "a proxy in front of it is all there is"
    assert not entrance.enter("203.0.113.7")
    entrance.leave("203.0.113.9")
    assert entrance.enter("203.0.113.9")


async def test_connections_are_bounded_in_all(site: Site) -> None:
    entrance = Entrance(most=2)
    async with served(site.app, entrance=entrance) as address:
        async with connected(address), connected(address), connected(address) as (reader, _):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        await eventually(lambda: entrance.now == 0, "all have left")
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{address}/healthz")).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        rb'{"request": {"gpu": "0.25", "name": "\ud800"}}',
        rb'{"request": {"gpu": "0.25", "labels": {"a": "x\udfffy"}}}',
        rb'{"request": {"gpu": "0.25", "\udc00": 1}}',
        b'{"request": {"gpu": "0.25", "name": "\xed\xa0\x80"}}',
        '{"request": {"gpu": "0.25"}}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"request": {"gpu": NaN}}',
    ],
)
async def test_text_that_is_none_is_a_bad_request(site: Site, body: bytes) -> None:
    async with site.browse("user") as http:
        for path in ("/leases", "/leases:explain", "/nodes:fits", "/tokens"):
            refused = await http.post(path, content=body)
            assert (refused.status_code, refused.json()["reason"]) == (400, "INVALID_FIELD"), path
            assert "UTF-8" in refused.json()["hint"]


async def test_text_that_is_none_in_addresses_is_a_bad_request_at_worst(site: Site) -> None:
    async with site.browse("admin") as http:
        for path in ("/leases/%ed%a0%80", "/nodes/%ff", "/leases?tenant=%ed%a0%80", "/audit?principal=%ff%fe"):
            assert (await http.get(path)).status_code < 500, path
