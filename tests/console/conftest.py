"""A console in front of a real coordinator, and those who call it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from aliquot.client import AsyncPool
from aliquot.console.app import dress, make_api
from aliquot.console.connections import HEAD_S, Entrance, protocol
from aliquot.console.door import Door
from aliquot.console.settings import Settings
from tests.access.people import People, introduce
from tests.coordinator.pool import Pool, running


@dataclass(frozen=True, slots=True)
class Site:
    """What tests need of it."""

    pool: Pool
    people: People
    api: FastAPI
    app: Door

    def browse(self, name: str = "", base: str = "http://localhost/api/v1") -> httpx.AsyncClient:
        """Calls as one of the people; no name: without a token."""
        headers = {"Authorization": f"Bearer {self.people[name].token}"} if name else {}
        return httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url=base, headers=headers)

    async def ask(self, who: str, gpu: str = "0.25", **fields: Any) -> Any:
        """A new lease, as its document."""
        body = {"request": {"gpu": gpu, "detached": True, **fields}}
        async with self.browse(who) as http:
            answer = await http.post("/leases", json=body)
            assert answer.status_code == 201, answer.text
            return answer.json()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """Everybody of the tests on access, and one node of eight devices."""
    settings = Settings(streams_max=2, callers_max=4)
    async with running() as pool:
        people = await introduce(pool.channel)

        def connect(token: str) -> AsyncPool:
            return AsyncPool(pool.address, token=token, timeout_s=5.0, agent_sockets=())

        api = make_api(settings, connect)
        async with api.router.lifespan_context(api):
            yield Site(pool, people, api, dress(api, settings))


@contextlib.asynccontextmanager
async def served(
    app: Any, lifespan: Literal["on", "off"] = "off", entrance: Entrance | None = None, head_s: float = HEAD_S
) -> AsyncIterator[str]:
    """The same over a real socket: its address."""
    http = protocol(entrance or Entrance(), head_s)
    config = uvicorn.Config(app, http=http, log_config=None, timeout_graceful_shutdown=1, lifespan=lifespan)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield "http://{}:{}".format(*listener.getsockname())
        finally:
            server.should_exit = True
            await serving


class Stream:
    """Events one after the other."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines

    async def next(self) -> tuple[str, str, Any]:
        """(kind, id, data)."""
        fields: dict[str, str] = {}
        async for line in self._lines:
            if not line and "data" in fields:
                return fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])
            name, _, value = line.partition(": ")
            if name:
                fields[name] = value
        raise EOFError


@contextlib.asynccontextmanager
async def following(
    address: str, path: str = "/events", *, headers: Mapping[str, str], first: str = "open", **params: Any
) -> AsyncIterator[Stream]:
    """A stream of events, behind its first one."""
    async with (
        httpx.AsyncClient(timeout=30) as http,
        http.stream("GET", f"{address}/api/v1{path}", params=params, headers=headers) as answer,
    ):
        assert answer.status_code == 200, await answer.aread()
        stream = Stream(answer.aiter_lines())
        assert (await stream.next())[0] == first
        yield stream
