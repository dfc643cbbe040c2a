"""The fleet in browsers: one stream from the coordinator, each viewer's own rights, and slow ones that harm nobody."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import httpx
import pytest

from aliquot.console import fleet as relays
from aliquot.console.sse import frame
from aliquot.coordinator.reading import fleet as fleets
from aliquot.v1 import access_pb2
from tests.console.conftest import Site, Stream, following, served
from tests.coordinator.pool import eventually
from tests.fleet_columns import Fleet, read_change, read_snapshot


@pytest.fixture
async def address(site: Site) -> AsyncIterator[str]:
    site.api.state.streams.most = 100
    async with served(site.app) as address:
        yield address
        if site.api.state.fleet is not None:
            await site.api.state.fleet.close()


@contextlib.asynccontextmanager
async def looking(site: Site, address: str, who: str, after: str = "") -> AsyncIterator[Stream]:
    headers = {"Authorization": f"Bearer {site.people[who].token}"}
    async with following(address, "/fleet/events", headers=headers, after=after) as stream:
        yield stream


async def snapshot(site: Site, who: str = "viewer") -> Fleet:
    async with site.browse(who) as http:
        answer = await http.get("/fleet")
        assert answer.status_code == 200, answer.text
        fleet = read_snapshot(answer.content)
        assert answer.headers["ETag"] == f'"{fleet.id}"'
        return fleet


async def test_a_snapshot_then_what_changes(site: Site, address: str) -> None:
    shown = await snapshot(site)
    assert ([node.name for node in shown.nodes.values()], list(shown.states)) == (["n1"], [1] * 8)
    first = shown.id
    async with looking(site, address, "viewer", first) as stream:
        await site.ask("admin", "0.5,1Gi", tenant="vision")
        kind, number, data = await stream.next()
        assert kind == "change"
        shown.apply(read_change(data))
        assert (shown.id, sorted(shown.shares)) == (number, [0] * 7 + [50])
    async with looking(site, address, "viewer", first) as stream:
        assert (await stream.next())[:2] == ("change", number), "who has seen less goes on there"


async def test_who_comes_late_gets_a_snapshot_and_everything_after_it(
    site: Site, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "FRAMES_KEPT", 3)
    monkeypatch.setattr(fleets, "KEPT_EVENTS", 2)
    async with looking(site, address, "operator") as first:
        for number in range(1, 9):
            await site.ask("admin", "0.1,1Gi", tenant="vision")
            assert (await first.next())[0] == "change"
            late = await snapshot(site)
            async with looking(site, address, "viewer", late.id) as stream:
                while sum(late.shares) < 10 * number:
                    kind, _, data = await stream.next()
                    assert kind == "change", "nobody who has just come is told to come again"
                    late.apply(read_change(data))
            assert sum(late.shares) == 10 * number
        assert len(site.pool.leading.fleet) == 1, "a snapshot is a call that ends"


async def test_a_snapshot_that_is_known_is_not_sent_again(site: Site, address: str) -> None:
    # Somebody looks all the time: what nobody looks at is forgotten after some seconds.
    async with looking(site, address, "operator"), site.browse("viewer") as http:
        answer = await http.get("/fleet")
        again = await http.get("/fleet", headers={"If-None-Match": answer.headers["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert answer.headers["Content-Encoding"] == "gzip"
        plain = await http.get("/fleet", headers={"Accept-Encoding": "identity"})
        assert plain.content == answer.content


async def test_many_viewers_cost_one_stream_and_a_guard_for_each_caller(site: Site, address: str) -> None:
    fleet = site.pool.leading.fleet
    async with contextlib.AsyncExitStack() as stack:
        streams = [
            await stack.enter_async_context(looking(site, address, who)) for who in ("viewer", "user", "operator") * 4
        ]
        assert len(fleet) == 1
        lasting = site.pool.leading.door.lasting
        await eventually(lambda: len(lasting) == 4, "one for each of three callers, and the one that brings data")
        await site.ask("admin", "1", tenant="vision")
        told = [await stream.next() for stream in streams]
        assert len({str(each) for each in told}) == 1


async def test_a_role_that_is_taken_ends_its_viewers_and_no_others(site: Site, address: str) -> None:
    async with looking(site, address, "viewer") as his, looking(site, address, "operator") as hers:
        await site.people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="viewer"))
        kind, _, data = await his.next()
        assert (kind, data["reason"]) == ("closed", "TOKEN_REVOKED")
        await site.ask("admin", "1", tenant="vision")
        assert (await hers.next())[0] == "change", "the stream went by his token, and goes by hers now"
    async with site.browse("viewer") as http:
        assert (await http.get("/fleet")).status_code == 401


async def test_nobody_looks_without_a_token(site: Site) -> None:
    async with site.browse() as http:
        for path in ("/fleet", "/fleet/events"):
            assert (await http.get(path)).status_code == 401


async def test_new_nodes_come_with_their_names(site: Site, address: str) -> None:
    async with looking(site, address, "viewer") as stream, site.browse("operator") as http:
        node = {"name": "n2", "agentless": True, "devices": [{"model": "L4"}, {"model": "L4"}]}
        answer = await http.put("/nodes", json=[node])
        assert answer.status_code == 200, answer.text
        _, _, data = await stream.next()
        assert [(each.name, each.first) for each in read_change(data).nodes] == [("n2", 8)]


async def test_who_names_what_is_not_kept_asks_again(site: Site, address: str) -> None:
    async with looking(site, address, "viewer", "1.999999") as stream:
        assert (await stream.next())[0] == "resync"


async def test_a_coordinator_that_is_away_is_told_and_since_when(
    site: Site, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "_PROBE_S", 0.05)
    async with looking(site, address, "viewer") as stream:
        site.pool.coordinator.stop()
        kind, _, data = await stream.next()
        assert (kind, data["reachable"]) == ("pool", False)
        assert data["since_ms"] > 0


async def test_one_who_does_not_read_is_dropped_from_what_is_kept_and_harms_nobody(
    site: Site, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relays, "FRAMES_KEPT", 4)
    await snapshot(site)
    token = site.people["viewer"].token
    with socket.create_connection(address.removeprefix("http://").split(":")) as dead:  # type: ignore[arg-type]
        head = f"GET /api/v1/fleet/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        dead.sendall(head.encode())
        async with looking(site, address, "operator") as stream:
            await eventually(lambda: site.api.state.streams.now == 2, "both look")
            relay = site.api.state.fleet
            for number in range(20):
                relay._tell(frame("change", "", {"text": "x" * 100_000, "number": number}))
                while (await stream.next())[2].get("number", number) != number:
                    pass
            assert len(relay._frames) == 4
    await eventually(lambda: site.api.state.streams.now == 0, "both are gone")


async def test_viewers_are_bounded(site: Site, address: str) -> None:
    site.api.state.streams.most = 1
    async with looking(site, address, "viewer"), httpx.AsyncClient() as http:
        headers = {"Authorization": f"Bearer {site.people['viewer'].token}"}
        refused = await http.get(f"{address}/api/v1/fleet/events", headers=headers)
        assert (refused.status_code, refused.json()["reason"]) == (429, "OVERLOADED")


async def test_many_who_look_are_told_a_few_at_a_time(site: Site, address: str) -> None:
    async with looking(site, address, "viewer") as stream:
        relay = site.api.state.fleet
        await eventually(lambda: len(relay._waiting) == 1, "it waits for more")
        others = [asyncio.ensure_future(relay.rung(60)) for _ in range(40)]
        await eventually(lambda: len(relay._waiting) == 41, "all wait")
        relay._tell(frame("change", "", {"number": 1}))
        await asyncio.sleep(0)
        assert sum(each.done() for each in others) < 40, "whoever asks for something else has a turn in between"
        assert all(await asyncio.gather(*others))
        while (await stream.next())[2].get("number") != 1:
            pass
