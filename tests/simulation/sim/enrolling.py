"""How nodes of the simulated world come to their keys: invited by an operator, with keys of their own, really signed.

Signatures differ from run to run, but nothing that happens depends on their bytes.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from aliquot.agent import node_certificate
from aliquot.agent.disk.membership import Membership
from aliquot.common.certificates import lifetime_ms
from aliquot.v1 import enrolment_pb2

if TYPE_CHECKING:
    from tests.simulation.sim.nodes import SimNode
    from tests.simulation.sim.people import People

SERVICE = "/aliquot.v1.EnrolmentService/"
EARLY_EVERY = 5
"""Of one node in so many the agent is started before it has joined, and refused until then."""


def make_key(random: Random) -> str:
    """A key from the seed, in PEM."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.derive_private_key(random.getrandbits(255) + 1, ec.SECP256R1())
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(*form).decode()


async def join(people: People, node: SimNode) -> None:
    """A node is invited, and brings its key: until both have been answered. Then its agent comes in."""
    key_pem = node.key_pem
    invite = ""
    while True:
        if not invite:
            asked = enrolment_pb2.InviteNodeRequest(node=node.node_id)
            data = await people.call(SERVICE + "InviteNode", asked)
            invite = enrolment_pb2.InviteNodeResponse.FromString(data).invite if data is not None else ""
        if invite:
            request = enrolment_pb2.JoinRequest(
                node_id=node.node_id, node_name=node.node_name, request=node_certificate.request(key_pem, node.node_id)
            )
            data = await people.call(SERVICE + "Join", request, invite, node.host)
            if data is not None:
                joined = enrolment_pb2.JoinResponse.FromString(data)
                node.member = Membership(
                    joined.pool_id,
                    node.node_id,
                    node.coordinators,
                    key_pem,
                    joined.chain_pem.decode(),
                    lifetime_ms(joined.chain_pem.decode()),
                    joined.authorities_pem.decode(),
                )
                node.has_joined()
                return
        await asyncio.sleep(1.0)
