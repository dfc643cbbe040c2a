"""Whether an agent has the key of the node that it speaks for.

It is asked to sign what is new in every session (`common.proof`), so nothing that was heard before opens another one.
What key a node has says the pool's journal, as it is durable; certificates don't count here.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

from aliquot.common import proof
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.agents.session import Context
from aliquot.coordinator.errors import NotEnrolled, WrongKey
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.agents import decode
from aliquot.v1 import agent_pb2

_PROOF_TIMEOUT_S = 10.0


class Prover:
    """See the module's docstring."""

    def __init__(self, view: View, pool_id: str, entropy: Callable[[int], bytes]) -> None:
        """`entropy` gives random bytes."""
        self._enrolled = view.books.enrolled
        self._pool_id = pool_id
        self._entropy = entropy

    async def prove(self, hello: agent_pb2.Hello, context: Context) -> bytes:
        """Ask the agent for a proof, and check it. Returns SHA-256 of its key. Raises NotEnrolled and WrongKey."""
        if hello.node_id not in self._enrolled:
            raise NotEnrolled(
                f"node {hello.node_id} has not joined this pool",
                hint=f"`aliquot node invite {hello.node_id}` prints what to run on the node",
            )
        if len(hello.nonce) != proof.NONCE_BYTES:
            raise NotEnrolled(
                f"node {hello.node_id} has joined this pool with a key, but its agent shows none",
                hint="is its version older than keys, or its state directory new? Else "
                f"`aliquot node invite {hello.node_id}`",
            )
        nonce = self._entropy(proof.NONCE_BYTES)
        challenge = agent_pb2.Challenge(nonce=nonce, pool_id=self._pool_id)
        try:
            async with asyncio.timeout(_PROOF_TIMEOUT_S):
                await context.write(agent_pb2.CoordinatorMessage(challenge=challenge).SerializeToString())
                raw = await context.read()
        except TimeoutError:
            raise InvalidFieldError("proof", f"did not come within {_PROOF_TIMEOUT_S:.0f} s") from None
        if not isinstance(raw, bytes):
            raise InvalidFieldError("proof", "the stream ended before it came")
        message = decode(raw)
        if message.WhichOneof("message") != "proof":
            raise InvalidFieldError("proof", "the answer to Challenge must be Proof")
        signed = proof.session_proof(
            self._pool_id, hello.node_id, hello.boot_id, agent_nonce=hello.nonce, coordinator_nonce=nonce
        )
        _verify(message.proof, signed, hello.node_id)
        shown = hashlib.sha256(message.proof.public_key).digest()
        self.require(hello.node_id, shown)
        return shown

    def require(self, node_id: str, key_sha256: bytes) -> None:
        """That this key speaks for the node at this moment. Raises NotEnrolled and WrongKey."""
        held = self._enrolled.get(node_id)
        if held is None:  # it was taken away while it was shown
            raise NotEnrolled(f"node {node_id} does not belong to this pool any more", hint="invite it anew")
        if held.key_sha256 == key_sha256:
            return
        others = [each.node_id for each in self._enrolled.values() if each.key_sha256 == key_sha256]
        whose = f"it is node {others[0]}'s" if others else "it is no node's, or one that was replaced by a later join"
        raise WrongKey(
            f"the agent's key is not the one that node {node_id} has joined with: {whose}",
            hint=f"let it join again: `aliquot node invite {node_id}`",
        )


def _verify(shown: agent_pb2.Proof, signed: bytes, node_id: str) -> None:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm  # noqa: PLC0415 - only where keys are used
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    wrong = WrongKey(
        f"the proof for node {node_id} is not signed for this session by the key that it shows",
        hint="something between the agent and the coordinator has changed or repeated it",
    )
    if len(shown.public_key) > proof.KEY_BYTES_MAX or len(shown.signature) > proof.SIGNATURE_BYTES_MAX:
        raise wrong
    try:
        key = serialization.load_der_public_key(shown.public_key)
        if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise wrong
        key.verify(shown.signature, signed, ec.ECDSA(hashes.SHA256()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        raise wrong from None
