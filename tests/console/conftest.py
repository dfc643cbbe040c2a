"""A console in front of a real coordinator, and those who call it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from aliquot.client import AsyncPool
from aliquot.console.app import make_api
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
            yield Site(pool, people, api, Door(api, settings.allowed_names))


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    """The same over a real socket: its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, lifespan="off"))
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield "http://{}:{}".format(*listener.getsockname())
        finally:
            server.should_exit = True
            await serving
