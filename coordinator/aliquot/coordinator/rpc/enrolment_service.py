"""EnrolmentService: invites for nodes, and the keys that they bring. Thin: what an invite lets in, the core decides."""

from __future__ import annotations

from aliquot.common import names, tokens
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.enrolment import Invite
from aliquot.coordinator.core.values.errors import InviteUnknown
from aliquot.coordinator.rpc.caller import caller, on_behalf
from aliquot.coordinator.rpc.service import Introduction, Led, Service
from aliquot.coordinator.wire.calls import this_call, unary
from aliquot.v1 import enrolment_pb2 as pb
from aliquot.v1 import enrolment_pb2_grpc

_TTL_MS = 3_600_000


class EnrolmentService(Service, enrolment_pb2_grpc.EnrolmentServiceServicer):
    """See the module's docstring."""

    def __init__(self, led: Led, pool: Introduction) -> None:
        super().__init__(led)
        self._entropy = led.entropy
        self._pool = pool

    @unary
    async def InviteNode(self, request: pb.InviteNodeRequest) -> pb.InviteNodeResponse:
        """Let a node join, once."""
        node = names.validate_node(request.node, "node")
        invite_id, text = tokens.make_invite(self._entropy(tokens.ENTROPY_BYTES))
        wanted = Invite(invite_id, tokens.token_sha256(text), node, 0, 0, by=caller().principal)
        command = c.InviteNode(wanted, request.ttl_ms or _TTL_MS)
        made = await self._writer.submit(on_behalf(node, command))
        return pb.InviteNodeResponse(
            invite=text,
            node=made.node,
            expires_ms=made.expires_ms,
            addresses=await self._pool.addresses(),
            authorities_pem=self._pool.authorities(),
        )

    @unary
    async def DisenrolNode(self, request: pb.DisenrolNodeRequest) -> pb.DisenrolNodeResponse:
        """Let its key count no more."""
        names.validate_node(request.node, "node")
        node_id = self._node_id(request.node)
        await self._writer.submit(on_behalf(node_id, c.DisenrolNode(node_id)))
        return pb.DisenrolNodeResponse()

    def _node_id(self, name: str) -> str:
        """Of a node named by id or name, also one that has joined but never connected."""
        enrolled = self._view.books.enrolled
        node_id = self._view.node_id_of(name)
        if node_id in self._view.nodes or node_id in enrolled:
            return node_id
        return next((each.node_id for each in enrolled.values() if each.name == name), node_id)

    @unary
    async def Join(self, request: pb.JoinRequest) -> pb.JoinResponse:
        """Enrol the key that a node brings, and certify it."""
        from aliquot.coordinator.agents.authority import NodeRequest  # noqa: PLC0415

        node_id = names.validate_node(request.node_id, "node_id")
        node_name = names.validate_node(request.node_name, "node_name") if request.node_name else node_id
        invite_id, sha256 = _shown()
        certified = NodeRequest(request.request)
        command = c.JoinNode(invite_id, sha256, node_id, node_name, certified.key_sha256)
        await self._writer.submit(on_behalf(node_id, command))
        authority = self._pool.authority()
        return pb.JoinResponse(
            pool_id=authority.newest.pool_id,
            chain_pem=authority.certify_node(certified, node_id, self._clock.now_ms(), known=authority.newest.number),
            authorities_pem=authority.pem,
        )


def _shown() -> tuple[str, bytes]:
    """Id and SHA-256 of the invite that came as the call's token. Raises InviteUnknown."""
    for key, value in this_call().context.invocation_metadata() or ():
        if key == tokens.METADATA_KEY and isinstance(value, str) and len(value) <= tokens.CHARS_MAX:
            text = value.removeprefix(tokens.SCHEME)
            if (invite_id := tokens.invite_id_of(text)) is not None:
                return invite_id, tokens.token_sha256(text)
    raise InviteUnknown(
        "a node joins with an invite, and this call shows none",
        hint="`aliquot node invite` prints the command for the node",
    )
