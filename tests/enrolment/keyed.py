"""Agents that have a key, for tests that are about who an agent is."""

from __future__ import annotations

from typing import Any

import grpc.aio

from aliquot.agent import node_key
from aliquot.v1 import agent_pb2, enrolment_pb2, enrolment_pb2_grpc
from tests import joining
from tests.coordinator.pool import Agent, Pool


class KeyedAgent(Agent):
    """An agent that has a key of its own, enrolled or not: it does not join by itself."""

    def __init__(self, address: str, node_id: str, *, key_pem: str = "", **fields: Any) -> None:
        super().__init__(address, node_id, **fields)
        self.key_pem = key_pem or node_key.make_key()
        self.joined = True

    async def ask_for_certificate(self, request: bytes) -> None:
        await self.send(renewal=agent_pb2.Renewal(request=request))


def enrolment(pool: Pool) -> Any:
    return enrolment_pb2_grpc.EnrolmentServiceStub(pool.channel)


async def invite(pool: Pool, node: str, ttl_ms: int = 0) -> str:
    return await joining.invite(pool.channel, node, ttl_ms)


async def join(pool: Pool, token: str, node_id: str, key_pem: str, *, name: str = "") -> enrolment_pb2.JoinResponse:
    """As a node does: with nothing but its invite. Raises what the coordinator refused with."""
    async with grpc.aio.insecure_channel(pool.address) as channel:
        return await joining.join(channel, token, node_id, key_pem, name=name)


async def joined(pool: Pool, node_id: str, address: str = "", **fields: Any) -> KeyedAgent:
    """An agent whose node is in the pool; not connected yet."""
    agent = KeyedAgent(address or pool.address, node_id, **fields)
    await join(pool, await invite(pool, node_id), node_id, agent.key_pem)
    return agent
