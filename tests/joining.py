"""How nodes of tests and benchmarks come into a pool: an operator invites them, and they bring a key of their own, as
real ones do.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aliquot.agent import node_certificate, node_key
from aliquot.common.proof import session_proof
from aliquot.common.tokens import bearer
from aliquot.v1 import agent_pb2, enrolment_pb2, enrolment_pb2_grpc


@cache
def key_of(node_id: str) -> str:
    """The key of the machine that this node is, in PEM: the same wherever a test pretends to be it."""
    return node_key.make_key()


async def invite(channel: Any, node: str, ttl_ms: int = 0) -> str:
    """As an operator, whose token the channel sends."""
    stub: Any = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
    answer = await stub.InviteNode(enrolment_pb2.InviteNodeRequest(node=node, ttl_ms=ttl_ms))
    return str(answer.invite)


async def join(channel: Any, token: str, node_id: str, key_pem: str, *, name: str = "") -> enrolment_pb2.JoinResponse:
    """As a node does: with nothing but its invite. Raises what the coordinator refused with."""
    request = enrolment_pb2.JoinRequest(
        node_id=node_id, node_name=name, request=node_certificate.request(key_pem, node_id)
    )
    stub: Any = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
    answer: enrolment_pb2.JoinResponse = await stub.Join(request, metadata=(bearer(token),))
    return answer


def prove(key_pem: str, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
    """The answer to a challenge."""
    nonces = {"agent_nonce": hello.nonce, "coordinator_nonce": challenge.nonce}
    signed = session_proof(challenge.pool_id, hello.node_id, hello.boot_id, **nonces)
    public_key, signature = node_key.sign(key_pem, signed)
    return agent_pb2.Proof(public_key=public_key, signature=signature)
