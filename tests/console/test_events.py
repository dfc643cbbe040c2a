"""Changes as server-sent events, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from aliquot.v1 import access_pb2
from tests.console.conftest import Site, Stream, following, served


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
        assert (kind, data["reason"]) == ("closed", "TOKEN_REVOKED")


async def test_streams_are_bounded_and_counted_down(site: Site, address: str) -> None:
    headers = {"Authorization": f"Bearer {site.people['user'].token}"}
    async with watching(site, address, "user"), watching(site, address, "user"):
        async with httpx.AsyncClient() as http:
            refused = await http.get(f"{address}/api/v1/events", headers=headers)
        assert refused.status_code == 429
        assert refused.headers["Retry-After"]
    for _ in range(100):
        if site.api.state.streams.now == 0:
            break
        async with httpx.AsyncClient() as http:
            await http.get(f"{address}/healthz")
    async with watching(site, address, "user"):
        pass
