"""Nobody speaks for a node without its key: not a stranger, not another node, not who has overheard it."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest

from aliquot.agent import node_key
from aliquot.common.proof import session_proof
from aliquot.v1 import agent_pb2, enrolment_pb2, leases_pb2
from tests.coordinator.pool import Agent, agents, eventually, reason_of, running
from tests.enrolment.keyed import KeyedAgent, enrolment, invite, join, joined
from tests.joining import prove

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE


class Keyless(KeyedAgent):
    """Says only who it is."""

    def __init__(self, address: str, node_id: str) -> None:
        super().__init__(address, node_id)
        self.nonce = b""


async def refused(agent: Agent) -> grpc.aio.AioRpcError:
    """How the coordinator does not let it in."""
    try:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await agent.connect()
    finally:
        await agent.close()
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    return caught.value


async def test_a_node_that_has_joined_is_believed_and_holds_leases() -> None:
    async with running() as pool:
        agent = await joined(pool, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            assert lease.slices[0].slice_id in agent.reservations


async def test_a_stranger_is_refused_and_told_what_lets_it_in() -> None:
    async with running() as pool:
        for stranger in (Keyless(pool.address, "n1"), KeyedAgent(pool.address, "n1")):
            error = await refused(stranger)
            assert reason_of(error) == "NOT_ENROLLED"
            assert "aliquot node invite n1" in str(error.trailing_metadata())
        assert not pool.coordinator.view.nodes


async def test_an_agent_that_shows_no_key_is_refused_also_where_its_node_has_joined() -> None:
    async with running() as pool:
        agent = await joined(pool, "n1")
        async with agents(agent):
            error = await refused(Keyless(pool.address, "n1"))
            assert reason_of(error) == "NOT_ENROLLED"
            assert agent.ended is None


async def test_a_key_of_another_node_is_refused_and_named() -> None:
    async with running() as pool:
        other = await joined(pool, "n2")
        await joined(pool, "n1")
        thief = KeyedAgent(pool.address, "n1", key_pem=other.key_pem)
        error = await refused(thief)
        assert reason_of(error) == "WRONG_KEY"
        assert "it is node n2's" in (error.details() or "")


async def test_a_stolen_certificate_without_its_key_opens_nothing() -> None:
    """The certificate travels, the key does not: who has only that signs with something else."""
    async with running() as pool:
        agent = await joined(pool, "n1")
        thief = KeyedAgent(pool.address, "n1")
        thief.proof = lambda hello, challenge: agent_pb2.Proof(  # type: ignore[method-assign]
            public_key=node_key.public_key(agent.key_pem),
            signature=prove(thief.key_pem, hello, challenge).signature,
        )
        assert reason_of(await refused(thief)) == "WRONG_KEY"


async def test_another_join_takes_the_place_of_the_key_and_ends_the_session_of_the_old_one() -> None:
    async with running() as pool:
        old = await joined(pool, "n1")
        async with agents(old):
            new = await joined(pool, "n1")
            await eventually(lambda: old.ended, "the session of the old key has ended")
            assert old.ended is not None
            assert reason_of(old.ended) == "NOT_ENROLLED"
            async with agents(new):
                pass
        assert reason_of(await refused(KeyedAgent(pool.address, "n1", key_pem=old.key_pem))) == "WRONG_KEY"


async def test_a_cloned_machine_has_the_key_and_is_kept_out_while_the_first_is_heard() -> None:
    async with running() as pool:
        first = await joined(pool, "n1")
        async with agents(first):
            clone = KeyedAgent(pool.address, "n1", key_pem=first.key_pem)
            clone.boot_id = "another machine"
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await clone.connect()
            assert reason_of(caught.value) == "SESSION_REPLACED"
            await clone.close()
            assert first.ended is None


async def test_a_node_that_is_taken_out_hears_it_within_a_second_and_can_be_taken_in_again() -> None:
    async with running() as pool:
        agent = await joined(pool, "n1")
        async with agents(agent):
            await enrolment(pool).DisenrolNode(enrolment_pb2.DisenrolNodeRequest(node="n1"))
            await eventually(lambda: agent.ended, "its session has ended")
            assert "goodbye" in agent.received
        assert reason_of(await refused(KeyedAgent(pool.address, "n1", key_pem=agent.key_pem))) == "NOT_ENROLLED"
        again = await joined(pool, "n1", key_pem=agent.key_pem)
        async with agents(again):
            pass


# -- who has listened


class Repeating(KeyedAgent):
    """Shows a proof that was good before."""

    def __init__(self, address: str, node_id: str, old: agent_pb2.Proof, nonce: bytes) -> None:
        super().__init__(address, node_id)
        self._old = old
        self.nonce = nonce

    def proof(self, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
        return self._old


class Remembering(KeyedAgent):
    """Lets its proofs be overheard."""

    said: agent_pb2.Proof

    def proof(self, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
        self.said = super().proof(hello, challenge)
        return self.said


async def test_a_proof_is_good_for_its_own_session_only() -> None:
    async with running() as pool:
        honest = Remembering(pool.address, "n1")
        await join(pool, await invite(pool, "n1"), "n1", honest.key_pem)
        async with agents(honest):
            assert pool.coordinator.view.nodes["n1"].state.name == "READY"
        await eventually(lambda: len(pool.leading.roster) == 0, "it has left")
        # Repeated whole, with the same Hello: the coordinator's nonce is another.
        error = await refused(Repeating(pool.address, "n1", honest.said, honest.nonce))
        assert reason_of(error) == "WRONG_KEY"


@pytest.mark.parametrize("what", ["node", "boot", "nonce", "pool", "order", "nothing", "garbage"])
async def test_a_proof_of_anything_else_is_refused(what: str) -> None:
    async with running() as pool:
        agent = await joined(pool, "n1")
        right = agent.proof

        def wrong(hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
            hello, asked = agent_pb2.Hello.FromString(hello.SerializeToString()), agent_pb2.Challenge()
            asked.CopyFrom(challenge)
            if what == "node":
                hello.node_id = "n2"
            elif what == "boot":
                hello.boot_id += "x"
            elif what == "nonce":
                hello.nonce = bytes(32)
            elif what == "pool":
                asked.pool_id = "p-another"
            elif what == "order":
                hello.nonce, asked.nonce = challenge.nonce, hello.nonce
            proof = right(hello, asked)
            if what == "nothing":
                proof.signature = b""
            elif what == "garbage":
                proof.public_key = b"\x30" * 91
            return proof

        agent.proof = wrong  # type: ignore[method-assign]
        assert reason_of(await refused(agent)) == "WRONG_KEY"


async def test_something_else_than_a_proof_is_refused() -> None:
    async with running() as pool:
        agent = await joined(pool, "n1")
        call: Any = agent._channel.stream_stream(
            "/aliquot.v1.AgentService/Session", agent_pb2.AgentMessage.SerializeToString
        )()
        await call.write(agent.hello())
        await call.read()
        await call.write(agent.snapshot(1))  # as if the proof were lost on the way
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert reason_of(caught.value) == "INVALID_FIELD"
        assert not pool.coordinator.view.nodes
        await agent.close()


def test_no_two_sessions_sign_the_same_bytes() -> None:
    """Lengths are in it, so nothing moves from one part to the next."""
    one = session_proof("p-1", "n", "1boot", agent_nonce=b"a", coordinator_nonce=b"b")
    two = session_proof("p-1", "n1", "boot", agent_nonce=b"a", coordinator_nonce=b"b")
    three = session_proof("p-1", "n", "1boot", agent_nonce=b"b", coordinator_nonce=b"a")
    assert len({one, two, three}) == 3
