"""Everything that runs, on the suite's cluster: coordinator with its journal, agent, extender, operator, API server.

Each can be restarted by itself or beside others; the auditor then compares pods, leases, devices, and what the agent
has. A real API server is restarted by the command that `KUBE_RESTART_API` has.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from aliquot.client import AsyncPool
from aliquot.coordinator.settings.config import Settings as PoolSettings
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.election import Election, LeadershipLost
from aliquot.kube.program import run_controllers
from aliquot.kube.settings import Settings
from aliquot.kube.wiring import make_parts
from aliquot.v1 import pool_pb2, types_pb2
from tests.agent import harness
from tests.coordinator import pool as pools
from tests.identity import ADMIN_TOKEN
from tests.kube.conformance.place import Place, account_of, make_node, scheduling
from tests.kube.fake_api.server import FakeApi

RESTART_API = os.environ.get("KUBE_RESTART_API", "")


@dataclasses.dataclass
class Whole:
    """See the module's docstring. Made by `whole`."""

    place: Place
    agent: harness.Node
    api: FakeApi | None
    pool_settings: PoolSettings
    journal: Path
    parts: dict[str, contextlib.AsyncExitStack] = dataclasses.field(default_factory=dict)

    @property
    def restarts(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """What can be restarted here."""
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "extender": self.restart_extender,
            "operator": self.restart_operator,
            "coordinator": self.restart_coordinator,
            "agent": self.restart_agent,
        }
        if self.api is not None or RESTART_API:
            found["api"] = self.restart_api
        return found

    async def start(self, name: str, what: contextlib.AbstractAsyncContextManager[None]) -> None:
        """Start a part."""
        self.parts[name] = contextlib.AsyncExitStack()
        await self.parts[name].enter_async_context(what)

    async def restart_extender(self) -> None:
        await self.parts["extender"].aclose()
        await self.start("extender", self.place.extending())

    async def restart_operator(self) -> None:
        await self.parts["operator"].aclose()
        await self.start("operator", operating(self.place))

    async def restart_coordinator(self) -> None:
        address = self.place.pool.address
        await self.parts["coordinator"].aclose()
        await pools.eventually(lambda: unlocked(self.journal), "the journal to be free")
        self.parts["coordinator"] = contextlib.AsyncExitStack()
        settings = dataclasses.replace(self.pool_settings, listen=address)
        self.place.pool = await self.parts["coordinator"].enter_async_context(pools.running(settings))

    async def restart_agent(self) -> None:
        await asyncio.to_thread(self.agent.kill9)
        await asyncio.to_thread(self.start_agent)

    def start_agent(self) -> None:
        """Returns when it answers; its node is ready for grants somewhat later."""
        self.agent.start(self.place.pool.address, "--node-name", self.place.nodes[0])

    async def restart_api(self) -> None:
        if self.api is not None:
            port = int(self.api.url.rpartition(":")[2])
            await self.api.stop()
            await self.api.start(port)
            return
        process = await asyncio.create_subprocess_shell(RESTART_API)
        assert await process.wait() == 0

    async def ready(self) -> None:
        """Until the node takes leases: a coordinator or an agent that was restarted hears of the other first."""
        async with asyncio.timeout(120):
            while not await _ready(self):  # noqa: ASYNC110 - it is asked over gRPC
                await asyncio.sleep(0.05)

    async def audit(self) -> None:
        """Pods, leases and devices agree, and the agent has what the pool says."""
        await self.place.audit()
        leases = {lease.lease_id for lease in await self.place.leases()}
        status = await asyncio.to_thread(self.agent.status)
        assert {one.lease_id for one in status.slices} == leases, "the agent has others than the pool"

    async def clean(self) -> bool:
        """Whether the auditor is content."""
        try:
            await self.audit()
        except AssertionError:
            return False
        return True

    async def close(self) -> None:
        """What was started last ends first."""
        for stack in reversed(self.parts.values()):
            await stack.aclose()


@contextlib.asynccontextmanager
async def operating(place: Place) -> AsyncIterator[None]:
    """The controllers as they are run by their program, with an election; started again when they lose it."""

    async def operate() -> None:
        while True:
            async with (
                KubeClient(place.account) as client,
                KubeClient(place.client.cluster) as elector,  # its Lease is in the test's namespace
                AsyncPool(place.pool.address, token=ADMIN_TOKEN) as sdk,
            ):
                parts = await make_parts(client, sdk, place.settings, "conformance")
                election = Election(elector, place.namespace, "conformance", uuid.uuid4().hex)
                with contextlib.suppress(LeadershipLost):
                    await run_controllers(parts, place.settings, election)

    task = asyncio.create_task(operate())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def whole(client: KubeClient, namespace: str, api: FakeApi | None, folder: Path) -> AsyncIterator[Whole]:
    """All of it, with a node of two simulated GPUs."""
    tag = uuid.uuid4().hex[:6]
    node = f"conformance-{tag}"
    settings = Settings(cluster=node, scheduler=f"aliquot-{tag}")
    agent = harness.make_node(folder / "node")
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(agent.close)
        pool_settings = pools.settings_for(pools.sqlite(folder / "journal"))
        coordinator = contextlib.AsyncExitStack()
        pool = await coordinator.enter_async_context(pools.running(pool_settings))
        place = Place(client, namespace, settings, pool, [node], account=account_of(client, api))
        made = Whole(place, agent, api, pool_settings, folder / "journal.lock", {"coordinator": coordinator})
        stack.push_async_callback(made.close)
        await agent.join(pool.address, node)
        await asyncio.to_thread(made.start_agent)
        await made.ready()
        await make_node(client, node, 2)
        stack.push_async_callback(client.delete, resources.NODES.path(name=node))
        await made.start("extender", made.place.extending())
        await made.start("operator", operating(made.place))
        await stack.enter_async_context(scheduling(made.place, api))
        yield made
        for name in await made.place.pods():
            await made.place.delete(name)


async def _ready(made: Whole) -> bool:
    found = (await made.place.pool.nodes.ListNodes(pool_pb2.ListNodesRequest())).nodes
    return any(node.state == types_pb2.NODE_STATE_READY for node in found)


def unlocked(path: Path) -> bool:
    if not path.exists():
        return True
    with path.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def or_skip(made: Whole, *what: str) -> None:
    """A real API server can be restarted only where somebody said how."""
    missing = [name for name in what if name not in made.restarts]
    if missing:
        pytest.skip(f"nothing says how to restart {missing[0]}: set KUBE_RESTART_API")
