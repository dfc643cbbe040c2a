"""Reading where somebody else wants the members of a request, and saying of nodes whether they could take one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence

from aliquot.common import limits
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.coordinator.core.commands import MemberPlace
from aliquot.coordinator.core.placement.survey import NodeFit
from aliquot.v1 import leases_pb2, pool_pb2

NodeId = Callable[[str], str]
"""The id of a node named by id or name; what names none stays as it is."""


def read_places(messages: Sequence[leases_pb2.MemberPlace], node_id: NodeId) -> tuple[MemberPlace, ...]:
    """Check and convert. Raises InvalidFieldError."""
    if len(messages) > limits.MAX_GANG_SIZE:
        raise InvalidFieldError("places", f"{len(messages)} places; at most {limits.MAX_GANG_SIZE}")
    return tuple(_read_place(message, f"places[{number}]", node_id) for number, message in enumerate(messages))


def _read_place(message: leases_pb2.MemberPlace, field: str, node_id: NodeId) -> MemberPlace:
    _check_name(message.node_id, f"{field}.node_id")
    if len(message.device_uuids) > limits.MAX_SLICES_PER_MEMBER:
        said = f"{len(message.device_uuids)} devices; at most {limits.MAX_SLICES_PER_MEMBER}"
        raise InvalidFieldError(f"{field}.device_uuids", said)
    for uuid in message.device_uuids:
        if len(uuid) > limits.MAX_DEVICE_UUID_CHARS:
            raise InvalidFieldError(
                f"{field}.device_uuids", f"a name is longer than {limits.MAX_DEVICE_UUID_CHARS} characters"
            )
    return MemberPlace(node_id(message.node_id), tuple(message.device_uuids))


def body_of(request_sha256: bytes, messages: Iterable[leases_pb2.MemberPlace]) -> bytes:
    """What an idempotency key is compared by: the request and its places, as they were sent."""
    digest = hashlib.sha256(request_sha256)
    for message in messages:
        digest.update(hashlib.sha256(message.SerializeToString(deterministic=True)).digest())
    return digest.digest()


def read_node_ids(names: Sequence[str], pool_size: int) -> tuple[str, ...]:
    """Nodes to look at, of a pool with so many. Raises InvalidFieldError."""
    count = len(names) or pool_size
    if count > limits.MAX_FITS_NODES:
        raise InvalidFieldError("node_ids", f"{count} nodes; at most {limits.MAX_FITS_NODES}", hint="name fewer nodes")
    for index, name in enumerate(names):
        _check_name(name, f"node_ids[{index}]")
    return tuple(names)


def _check_name(name: str, field: str) -> None:
    if not 0 < len(name) <= limits.MAX_NODE_CHARS:
        raise InvalidFieldError(field, f"a node's id or name has 1 to {limits.MAX_NODE_CHARS} characters")


_FIT = Writer(pool_pb2.NodeFit, NodeFit, {"node_id": lambda _, name: name})


def fits_message(asked: Sequence[str], found: Sequence[NodeFit]) -> pool_pb2.FitsResponse:
    """What was found of each node, called as it was asked about."""
    return pool_pb2.FitsResponse(nodes=map(_FIT.message, found, asked or [fit.node_id for fit in found]))
