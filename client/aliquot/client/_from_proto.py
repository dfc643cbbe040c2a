"""Converts messages to values of the SDK, for those that come by the thousand or differ from their message."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.client import fleet
from aliquot.client._asking import describe_ask
from aliquot.client._values.events import LeaseChanged, NodeChanged
from aliquot.client._values.leases import Explanation, Lease, LeaseState, ServedUse, Slice
from aliquot.client._values.nodes import Device, MigCard, Node
from aliquot.client._values.requests import Request
from aliquot.common import limits
from aliquot.common.fields import Reader
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2

_NOT_SHOWN = "no caller of the SDK needs it"

_SLICE = Reader(types_pb2.Slice, Slice, left_out={"lease_epoch": "its lease says it"})
_SERVED = Reader(types_pb2.ServedUse, ServedUse, left_out={"slice_id": "it stands in its slice"})
_REQUEST = Reader(
    types_pb2.LeaseRequest, Request, {"gpu": lambda message, _: describe_ask(message)}, left_out={"spec": "in the text"}
)
_FILLED_IN = types_pb2.LeaseRequest(
    grace_s=limits.DEFAULT_GRACE_S,
    ttl_s=limits.DEFAULT_LEASE_TTL_S,
    topology=types_pb2.TOPOLOGY_PREFER_ISLAND,
    stop_signal="TERM",
)
_EXPLANATION = Reader(
    types_pb2.Explanation,
    Explanation,
    {"instead": lambda message, _: _as_written(message.instead) if message.HasField("instead") else None},
)
_LEASE = Reader(
    types_pb2.Lease,
    Lease,
    {
        "gpu": lambda message, _: describe_ask(message.request),
        "gang_size": lambda message, _: message.request.gang_size or 1,
        "ends_ms": lambda message, _: _ends_ms(message),
    },
    parts=("request",),
)
_DEVICE = Reader(types_pb2.Device, Device, {"nvlink_island": "fabric_island"})
_NODE = Reader(
    types_pb2.Node,
    Node,
    left_out={"session_epoch": _NOT_SHOWN, "care": "agents tell it to the coordinator alone"},
)
_CARD = Reader(types_pb2.MigCard, MigCard, left_out={"cut": _NOT_SHOWN})


def numbers_of(states: Iterable[LeaseState]) -> list[int]:
    """States as the contract counts them."""
    return [types_pb2.LeaseState.Value(f"LEASE_STATE_{state}") for state in states]


def lease_of(message: types_pb2.Lease) -> Lease:
    """A lease."""
    return _LEASE.read(message)


def _as_written(resolved: types_pb2.LeaseRequest) -> Request:
    """A request as people write it: without what a coordinator fills in where nothing is said."""
    message = types_pb2.LeaseRequest()
    message.CopyFrom(resolved)
    for field, filled_in in _FILLED_IN.ListFields():
        if getattr(message, field.name) == filled_in:
            setattr(message, field.name, field.default_value)
    return _REQUEST.read(message)


def _ends_ms(message: types_pb2.Lease) -> int:
    limit_s = message.request.time_limit_s
    waits_or_ended = message.state in {types_pb2.LEASE_STATE_QUEUED, types_pb2.LEASE_STATE_ENDED}
    return message.granted_ms + 1000 * limit_s if limit_s and message.granted_ms and not waits_or_ended else 0


def device_of(message: types_pb2.Device) -> Device:
    """A device."""
    return _DEVICE.read(message)


def node_of(message: types_pb2.Node) -> Node:
    """A node with its devices."""
    return _NODE.read(message)


def event_of(message: leases_pb2.WatchEvent) -> LeaseChanged | NodeChanged | None:
    """A change; None for a bookmark or a kind that this version does not know."""
    match message.WhichOneof("event"):
        case "lease":
            return LeaseChanged(message.seq, message.at_ms, lease_of(message.lease))
        case "node":
            return NodeChanged(message.seq, message.at_ms, node_of(message.node))
        case _:
            return None


def fleet_change_of(message: pool_pb2.FleetEvent) -> fleet.FleetChange:
    """A change of the fleet, as it came."""
    return fleet.FleetChange(message.layout, message.version, message.resets, message.SerializeToString())
