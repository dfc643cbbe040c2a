"""What goes wrong around a console: restarts, coordinators of other versions, and clients that don't read."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from aliquot.client import AsyncPool, Overloaded, _methods
from aliquot.client._from_proto import lease_of
from aliquot.client.documents import plain
from aliquot.console import fleet as relays
from aliquot.console.app import make_app
from aliquot.console.settings import Settings
from aliquot.console.sse import frame
from aliquot.console.streams import Streams
from aliquot.v1 import types_pb2
from tests.console.conftest import Site, following, served
from tests.coordinator.pool import eventually, running, settings_for, sqlite
from tests.failover.cluster import free_address
from tests.fleet_columns import read_change, read_snapshot
from tests.identity import ADMIN_TOKEN

OURS = {"X-Aliquot-Console": "1"}


@contextlib.asynccontextmanager
async def another(site: Site) -> AsyncIterator[str]:
    """One more console of the same pool: another process, as far as it matters."""
    app = make_app(
        Settings(streams_max=400),
        lambda token: AsyncPool(site.pool.address, token=token, timeout_s=5.0, agent_sockets=()),
    )
    async with served(app, lifespan="on") as address:
        yield address


async def test_a_session_goes_on_at_a_console_that_was_restarted_and_so_does_a_stream(site: Site) -> None:
    async with another(site) as address, httpx.AsyncClient() as http:
        await http.post(f"{address}/api/v1/session", json={"token": site.people["user"].token}, headers=OURS)
        (token,) = http.cookies.values()
        shown = read_snapshot((await http.get(f"{address}/api/v1/fleet")).content)
    async with another(site) as address:
        headers = {"Cookie": f"aliquot-{address.rpartition(':')[2]}={token}", "Last-Event-ID": shown.id}
        async with following(address, "/fleet/events", headers=headers) as stream:
            await site.ask("user", "1", tenant="vision")
            kind, _, data = await stream.next()
            if kind == "resync":  # the coordinator had told more in the meantime
                kind, _, data = await stream.next()
            assert (kind, list(read_change(data).shares)) == ("change", [100])


async def test_a_code_of_a_console_that_was_restarted_counts_no_more(site: Site) -> None:
    async with another(site) as address, httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {site.people['user'].token}"}
        code = (await http.post(f"{address}/api/v1/session/codes", headers=headers)).json()["code"]
    async with another(site) as address, httpx.AsyncClient() as http:
        assert (await http.post(f"{address}/api/v1/session", json={"code": code}, headers=OURS)).status_code == 401


async def test_a_coordinator_that_is_older_and_has_no_columns(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    older = dataclasses.replace(_methods.POOL["WatchFleet"], path="/aliquot.v1.PoolService/WatchFleetOfTomorrow")
    monkeypatch.setitem(_methods.POOL, "WatchFleet", older)
    async with site.browse("viewer") as http:
        for path in ("/fleet", "/fleet/events"):
            refused = await http.get(path)
            assert (refused.status_code, refused.json()["reason"]) == (501, "NOT_SERVED")
        assert (await http.get("/devices")).status_code == 200, "the rest is served as ever"


async def test_a_coordinator_that_is_older_and_extends_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    older = dataclasses.replace(_methods.LEASES["ExtendLease"], path="/aliquot.v1.LeaseService/ExtendLeaseOfTomorrow")
    monkeypatch.setitem(_methods.LEASES, "ExtendLease", older)
    lease = await site.ask("user", tenant="vision", time_limit_s=60)
    async with site.browse("user") as http:
        refused = await http.post(f"/leases/{lease['lease_id']}:extend", json={"time_limit_s": 120})
        assert (refused.status_code, refused.json()["reason"]) == (501, "NOT_SERVED")


def test_a_coordinator_that_is_newer_and_has_words_that_nobody_knows_here() -> None:
    newer = types_pb2.Lease(lease_id="l-1", state=7_000).SerializeToString()  # type: ignore[arg-type]
    unknown_field = b"\xfa\xff\x03\x05later"
    document = plain(lease_of(types_pb2.Lease.FromString(newer + unknown_field)))
    assert (document["lease_id"], document["state"]) == ("l-1", "UNSPECIFIED")
    assert msgspec.json.encode(document)


async def test_a_coordinator_that_is_started_again_is_followed_by_the_same_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_PROBE_S", 0.1)
    where = free_address()
    settings = dataclasses.replace(settings_for(sqlite(tmp_path / "books.db")), listen=where)
    app = make_app(Settings(), lambda token: AsyncPool(where, token=token, timeout_s=5.0, agent_sockets=()))
    headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
    async with contextlib.AsyncExitStack() as stack:
        async with running(settings) as pool:
            await pool.declare(2, devices=2)
            address = await stack.enter_async_context(served(app, lifespan="on"))
            stream = await stack.enter_async_context(following(address, "/fleet/events", headers=headers))
        kind, _, data = await stream.next()
        assert (kind, data["reachable"]) == ("pool", False)
        async with running(settings) as pool:
            kinds = [await stream.next() for _ in range(2)]
            assert {kind for kind, _, _ in kinds} == {"pool", "resync"}
            await pool.allocate("1")
            kind, _, data = await stream.next()
            assert kind == "change"
            async with httpx.AsyncClient() as http:
                answer = await http.get(f"{address}/api/v1/fleet", headers=headers)
            shown = read_snapshot(answer.content)
            shown.apply(read_change(data))
            assert sorted(shown.shares) == [0, 0, 0, 100]


async def test_hundreds_who_do_not_read_cost_no_more_than_their_connections(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "FRAMES_KEPT", 8)
    site.api.state.streams.most = 400
    async with served(site.app) as address:
        host, port = address.removeprefix("http://").split(":")
        token = site.people["viewer"].token
        head = f"GET /api/v1/fleet/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        with contextlib.ExitStack() as stack:
            for _ in range(100):
                dead = stack.enter_context(socket.create_connection((host, int(port))))
                dead.sendall(head.encode())
            await eventually(lambda: site.api.state.streams.now == 100, "all are there")
            async with site.browse("viewer") as http:
                assert (await http.get("/fleet")).status_code == 200
            async with httpx.AsyncClient() as http:
                refused = await http.get(f"{address}/api/v1/fleet/events", headers={"Authorization": f"Bearer {token}"})
                assert refused.status_code == 429, "one caller's tabs leave room for others"
            headers = {"Authorization": f"Bearer {site.people['operator'].token}"}
            async with following(address, "/fleet/events", headers=headers) as stream:
                relay = site.api.state.fleet
                for number in range(30):
                    relay._tell(frame("change", "", {"number": number, "text": "x" * 65_536}))
                    while (await stream.next())[2].get("number") != number:
                        pass
                assert len(relay._frames) == 8
            assert len(site.pool.leading.fleet) == 1
        await eventually(lambda: site.api.state.streams.now == 0, "all are gone")
        await relay.close()


async def test_what_proxies_need_to_know_is_said(site: Site) -> None:
    async with served(site.app) as address, httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {site.people['viewer'].token}"}
        async with http.stream("GET", f"{address}/api/v1/fleet/events", headers=headers) as answer:
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert "no-transform" in answer.headers["Cache-Control"]
            assert answer.headers["Content-Type"].startswith("text/event-stream")
        await site.api.state.fleet.close()


def test_streams_are_shared_fairly() -> None:
    streams = Streams(12)
    with contextlib.ExitStack() as stack:
        for token in "abcd":
            for _ in range(3):
                stack.enter_context(streams.one(token))
            if token != "d":
                with pytest.raises(Overloaded, match="3 of them yours"):
                    stack.enter_context(streams.one(token))
        with pytest.raises(Overloaded, match="12 of 12 streams"):
            stack.enter_context(streams.one("e"))
    assert streams.now == 0
    with streams.one("a"):
        assert streams.now == 1
