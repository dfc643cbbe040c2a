"""Agents that have a key, for tests that are about who an agent is."""

from __future__ import annotations

import secrets
from typing import Any

import grpc.aio

from aliquot.agent import node_certificate, node_key
from aliquot.common.proof import session_proof
from aliquot.common.tokens import bearer
from aliquot.coordinator.settings.config import AgentSettings, Settings
from aliquot.v1 import agent_pb2, agent_pb2_grpc, enrolment_pb2, enrolment_pb2_grpc
from tests.coordinator.pool import Agent, Pool, settings_for


def strict(**fields: Any) -> Settings:
    """A coordinator that lets nobody in without a key."""
    return settings_for(agents=AgentSettings(), **fields)


def prove(key_pem: str, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
    """The answer to a challenge."""
    nonces = {"agent_nonce": hello.nonce, "coordinator_nonce": challenge.nonce}
    signed = session_proof(challenge.pool_id, hello.node_id, hello.boot_id, **nonces)
    public_key, signature = node_key.sign(key_pem, signed)
    return agent_pb2.Proof(public_key=public_key, signature=signature)


class KeyedAgent(Agent):
    """An agent that has a key of its own, enrolled or not."""

    def __init__(self, address: str, node_id: str, *, key_pem: str = "", **fields: Any) -> None:
        super().__init__(address, node_id, **fields)
        self.key_pem = key_pem or node_key.make_key()
        self.nonce = secrets.token_bytes(32)

    def hello(self, leader_epoch: int = 0) -> agent_pb2.AgentMessage:
        message = super().hello(leader_epoch)
        message.hello.nonce = self.nonce
        return message

    def proof(self, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
        """What it answers; tests that are up to no good derive from this."""
        return prove(self.key_pem, hello, challenge)

    async def shake_hands(self) -> agent_pb2.Challenge:
        """Hello, and prove it. Raises what the coordinator refused with."""
        self._call = agent_pb2_grpc.AgentServiceStub(self._channel).Session()
        hello = self.hello(self.welcome.leader_epoch)
        await self._call.write(hello)
        answer = await self._call.read()
        assert answer is not grpc.aio.EOF
        challenge: agent_pb2.Challenge = answer.challenge
        if answer.HasField("challenge"):
            await self._call.write(agent_pb2.AgentMessage(proof=self.proof(hello.hello, challenge)))
            answer = await self._call.read()
            assert answer is not grpc.aio.EOF
        assert answer.HasField("welcome")
        self.welcome = answer.welcome
        return challenge

    async def connect(self) -> None:
        await self.shake_hands()
        await self.listen()

    async def ask_for_certificate(self, request: bytes) -> None:
        await self.send(renewal=agent_pb2.Renewal(request=request))


def enrolment(pool: Pool) -> Any:
    return enrolment_pb2_grpc.EnrolmentServiceStub(pool.channel)


async def invite(pool: Pool, node: str, ttl_ms: int = 0) -> str:
    answer = await enrolment(pool).InviteNode(enrolment_pb2.InviteNodeRequest(node=node, ttl_ms=ttl_ms))
    return str(answer.invite)


async def join(pool: Pool, token: str, node_id: str, key_pem: str, *, name: str = "") -> enrolment_pb2.JoinResponse:
    """As a node does: with nothing but its invite. Raises what the coordinator refused with."""
    request = enrolment_pb2.JoinRequest(
        node_id=node_id, node_name=name, request=node_certificate.request(key_pem, node_id)
    )
    async with grpc.aio.insecure_channel(pool.address) as channel:
        stub: Any = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
        answer: enrolment_pb2.JoinResponse = await stub.Join(request, metadata=(bearer(token),))
        return answer


async def joined(pool: Pool, node_id: str, address: str = "", **fields: Any) -> KeyedAgent:
    """An agent whose node is in the pool; not connected yet."""
    agent = KeyedAgent(address or pool.address, node_id, **fields)
    await join(pool, await invite(pool, node_id), node_id, agent.key_pem)
    return agent
