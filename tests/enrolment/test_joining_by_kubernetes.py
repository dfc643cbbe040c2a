"""Nodes of a cluster join by their agents' service account: no invite, and no hand, for each of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from aliquot.agent import node_key
from aliquot.common.connection_string import ConnectionString
from aliquot.coordinator.logins.config import PodRule, PodSettings
from aliquot.coordinator.settings.config import Settings
from aliquot.v1 import access_pb2, access_pb2_grpc
from tests.agent.conftest import node
from tests.agent.harness import Node
from tests.coordinator.pool import Pool, eventually, reason_of, running, settings_for
from tests.enrolment.keyed import invite, join
from tests.identity import access
from tests.logins.api_server import ApiServer, api_server

__all__ = ["node"]
KEY = node_key.make_key()


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


def settings_of(cluster: ApiServer, folder: Path, *rules: PodRule) -> Settings:
    (folder / "own").write_text(cluster.own_token + "\n")
    pods = PodSettings(nodes=("gpus/agent",), rules=rules, api=cluster.url, token_file=folder / "own")
    return settings_for(access=access(pods=pods))


async def invited(pool: Pool, token: str) -> str:
    async with grpc.aio.insecure_channel(pool.address) as channel:
        door = access_pb2_grpc.AccessServiceStub(channel)
        return (await door.Login(access_pb2.LoginRequest(service_account_token=token, joins=True))).token


async def test_kubernetes_names_the_one_node_that_it_lets_in(cluster: ApiServer, tmp_path: Path) -> None:
    async with running(settings_of(cluster, tmp_path)) as pool:
        token = await invited(pool, cluster.token("gpus", "agent", node="gpu-7"))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await join(pool, token, "n8", KEY, name="gpu-8")
        assert reason_of(caught.value) == "INVITE_FOR_ANOTHER_NODE"
        await join(pool, token, "n7", KEY, name="gpu-7")
        assert pool.coordinator.view.books.enrolled["n7"].by == "sa/gpus/agent"


@pytest.mark.parametrize(
    ("account", "node_name", "reason"),
    [("other", "gpu-7", "LOGIN_RULE_MISSING"), ("agent", "", "LOGIN_REFUSED")],
)
async def test_who_may_bring_in_no_node(
    cluster: ApiServer, tmp_path: Path, account: str, node_name: str, reason: str
) -> None:
    """Another account, though it may log in; and a token of no pod on a node."""
    async with running(settings_of(cluster, tmp_path, PodRule(namespace="gpus", role="viewer"))) as pool:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await invited(pool, cluster.token("gpus", account, node=node_name))
        assert reason_of(caught.value) == reason


def names_of(pool: Pool) -> list[str]:
    return [each.spec.name for each in pool.coordinator.view.nodes.values() if each.state.name == "READY"]


async def test_an_agent_joins_by_itself_when_its_token_comes(cluster: ApiServer, node: Node, tmp_path: Path) -> None:
    file = tmp_path / "token"
    async with running(settings_of(cluster, tmp_path)) as pool:
        node.environment |= {"ALIQUOT_AGENT_JOIN_FILE": str(file)}
        await asyncio.to_thread(node.start, pool.address, "--node-name", "gpu-7")
        assert not names_of(pool)
        file.write_text(cluster.token("gpus", "agent", node="gpu-7") + "\n")
        await eventually(lambda: names_of(pool) == ["gpu-7"], "it has joined")


async def test_an_invite_that_comes_later_is_read_as_well(node: Node, tmp_path: Path) -> None:
    file = tmp_path / "invite"
    async with running() as pool:
        node.environment |= {"ALIQUOT_AGENT_JOIN_FILE": str(file)}
        await asyncio.to_thread(node.start, "", "--node-name", "gpu-7")
        file.write_text(ConnectionString((pool.address,), await invite(pool, "gpu-7"), node="gpu-7").encode())
        await eventually(lambda: names_of(pool) == ["gpu-7"], "it has joined")
