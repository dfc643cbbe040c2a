"""Changes as server-sent events, over real sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from aliquot.client import Overloaded
from aliquot.console.sse import gathered
from aliquot.v1 import access_pb2
from tests.console.conftest import Site, Stream, following, served
from tests.coordinator.pool import eventually


@pytest.fixture
async def address(site: Site) -> AsyncIterator[str]:
    async with served(site.app) as address:
        yield address


@asynccontextmanager
async def watching(site: Site, address: str, who: str, last: str = "", **params: Any) -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {site.people[who].token}"} | ({"Last-Event-ID": last} if last else {})
    async with following(address, headers=headers, **params) as stream:
        yield stream


async def test_changes_arrive_and_are_resumed_where_they_stopped(site: Site, address: str) -> None:
    async with watching(site, address, "user") as stream:
        lease = await site.ask("user", tenant="vision")
        kind, number, data = await stream.next()
        assert (kind, data["lease"]["lease_id"]) == ("lease", lease["lease_id"])
    async with site.browse("user") as http:
        await http.post(f"/leases/{lease['lease_id']}:release")
    async with watching(site, address, "user", last=number) as stream:
        while True:
            kind, _, data = await stream.next()
            assert (kind, data["lease"]["lease_id"]) == ("lease", lease["lease_id"])
            if data["lease"]["state"] == "ENDED":
                break


async def test_a_tenants_stream_tells_nothing_of_another(site: Site, address: str) -> None:
    async with watching(site, address, "user") as stream:
        await site.ask("admin", tenant="audio", name="theirs")
        mine = await site.ask("user", tenant="vision")
        _, _, data = await stream.next()
        assert data["lease"]["lease_id"] == mine["lease_id"]
    async with httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {site.people['user'].token}"}
        refused = await http.get(f"{address}/api/v1/events", params={"tenant": "audio"}, headers=headers)
    assert refused.status_code == 403


async def test_nodes_come_where_they_are_asked_for(site: Site, address: str) -> None:
    async with watching(site, address, "operator", nodes=True) as stream, site.browse("operator") as http:
        await http.post("/nodes/n1:cordon", json={"reason": "fans"})
        kind, _, data = await stream.next()
        assert (kind, data["node"]["reason"]) == ("node", "fans")


async def test_who_resumes_from_what_is_not_known_is_told_to_list_again(site: Site, address: str) -> None:
    async with watching(site, address, "user", last=str(1 << 40)) as stream:
        kind, number, data = await stream.next()
        assert (kind, str(data["seq"])) == ("resync", number)


async def test_a_token_that_is_revoked_ends_its_stream(site: Site, address: str) -> None:
    async with watching(site, address, "user") as stream:
        await site.people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="user"))
        kind, _, data = await stream.next()
        # Its stream is ended, or it asks for another one meanwhile, with a token that is nobody's by then.
        assert kind == "closed"
        assert data["reason"] in {"TOKEN_REVOKED", "TOKEN_UNKNOWN"}


async def test_tokens_of_one_principal_share_its_streams(site: Site, address: str) -> None:
    site.api.state.streams.most = 8
    async with site.browse("user") as http, contextlib.AsyncExitStack() as stack:
        mine = [(await http.post("/tokens", json={"ttl_ms": 600_000})).json()["token"] for _ in range(3)]
        for token in mine[:2]:
            headers = {"Authorization": f"Bearer {token}"}
            await stack.enter_async_context(following(address, headers=headers))
        for path in ("/events", "/fleet/events"):
            answer = await http.get(f"{address}/api/v1{path}", headers={"Authorization": f"Bearer {mine[2]}"})
            assert (answer.status_code, answer.json()["reason"]) == (429, "OVERLOADED"), path
        headers = {"Authorization": f"Bearer {site.people['viewer'].token}"}
        async with following(address, headers=headers):
            pass


async def test_streams_are_bounded_and_counted_down(site: Site, address: str) -> None:
    headers = {"Authorization": f"Bearer {site.people['user'].token}"}
    async with watching(site, address, "user"), watching(site, address, "user"):
        async with httpx.AsyncClient() as http:
            refused = await http.get(f"{address}/api/v1/events", headers=headers)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"]
    await eventually(lambda: site.api.state.streams.now == 0, "both are gone")
    async with watching(site, address, "user"):
        pass


async def test_who_leaves_in_the_middle_is_no_error(site: Site, address: str, caplog: pytest.LogCaptureFixture) -> None:
    host, port = address.removeprefix("http://").split(":")
    head = (
        f"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {site.people['user'].token}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as gone:
        gone.sendall(head.encode())
        await eventually(lambda: site.api.state.streams.now == 1, "it is there")
        gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
        for _ in range(20):
            await site.ask("user", "0.01,64Mi", tenant="vision")
    await site.ask("user", "0.01,64Mi", tenant="vision")
    await eventually(lambda: site.api.state.streams.now == 0, "it is gone")
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_what_comes_together_goes_out_together_and_in_order() -> None:
    async def items() -> AsyncIterator[int]:
        for number in range(1000):
            yield number

    chunks = [chunk async for chunk in gathered(items(), lambda number: b"%d " % number)]
    assert b"".join(chunks) == b"".join(b"%d " % number for number in range(1000))
    assert len(chunks) < 20


async def test_what_a_stream_ends_with_is_told_after_what_came_before() -> None:
    async def items() -> AsyncIterator[int]:
        yield 1
        raise Overloaded("enough")

    told = gathered(items(), lambda number: b"%d" % number)
    assert await anext(told) == b"1"
    with pytest.raises(Overloaded):
        await anext(told)
