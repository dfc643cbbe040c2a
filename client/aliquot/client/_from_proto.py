"""Converts messages to values of the SDK, for those that come by the thousand or differ from their message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from aliquot.client import _values as values
from aliquot.client import fleet
from aliquot.client._asking import describe_ask
from aliquot.client._messages import read
from aliquot.common import limits
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2

N = TypeVar("N", bound=int)
W = TypeVar("W", values.Tier, values.SliceState, values.LeaseState, values.NodeState, values.Serve, values.Standing)


def _words(items: Sequence[tuple[str, N]], prefix: str, enum: type[W]) -> Mapping[N, W]:
    """A table from the contract's numbers to words, built once because long lists look them up very often."""
    known = {word.value for word in enum}
    return {number: enum(name.removeprefix(prefix)) for name, number in items if name.removeprefix(prefix) in known}


_TIERS = _words(types_pb2.Tier.items(), "TIER_", values.Tier)
_SLICE_STATES = _words(types_pb2.SliceState.items(), "SLICE_STATE_", values.SliceState)
_LEASE_STATES = _words(types_pb2.LeaseState.items(), "LEASE_STATE_", values.LeaseState)
_NODE_STATES = _words(types_pb2.NodeState.items(), "NODE_STATE_", values.NodeState)
_STANDINGS = _words(types_pb2.Standing.items(), "STANDING_", values.Standing)
_SERVES = _words(types_pb2.Serve.items(), "SERVE_", values.Serve)
LEASE_STATE_NUMBERS = {word: number for number, word in _LEASE_STATES.items()}


def _optional(message: Message, field: str) -> Any:  # noqa: ANN401 - depends on the field
    """A field's value, or None if the sender did not know it."""
    return getattr(message, field) if message.HasField(field) else None


def tier_of(number: types_pb2.Tier.ValueType) -> values.Tier:
    """A tier."""
    return _TIERS.get(number, values.Tier.UNSPECIFIED)


def slice_of(message: types_pb2.Slice) -> values.Slice:
    """A slice."""
    return values.Slice(
        slice_id=message.slice_id,
        node_id=message.node_id,
        node_name=message.node_name,
        device_uuid=message.device_uuid,
        device_model=message.device_model,
        share_milli=message.share_milli,
        memory_bytes=message.memory_bytes,
        state=_SLICE_STATES.get(message.state, values.SliceState.UNSPECIFIED),
        tier=tier_of(message.tier),
        member=message.member,
        since_ms=message.since_ms,
        deadline_ms=message.deadline_ms,
        reason=message.reason,
        shed=message.shed,
        observed_bytes=message.observed_bytes if message.HasField("observed_bytes") else None,
        observed_utilisation_percent=(
            message.observed_utilisation_percent if message.HasField("observed_utilisation_percent") else None
        ),
        observed_ms=message.observed_ms,
        mig_profile=message.mig_profile,
        tier_notes=tuple(message.tier_notes),
        endpoint=message.endpoint,
        served=served_of(message.served) if message.HasField("served") else None,
        lender=message.lender,
    )


def served_of(message: types_pb2.ServedUse) -> values.ServedUse:
    """What the process that serves a member counts."""
    return values.ServedUse(
        sessions=message.sessions,
        ops=message.ops,
        waits=message.waits,
        up_bytes=message.up_bytes,
        down_bytes=message.down_bytes,
        run_ahead_frames=message.run_ahead_frames,
        memory_bytes=message.memory_bytes,
        ops_per_s=message.ops_per_s,
        up_bytes_per_s=message.up_bytes_per_s,
        down_bytes_per_s=message.down_bytes_per_s,
        observed_ms=message.observed_ms,
    )


def lease_of(message: types_pb2.Lease) -> values.Lease:
    """A lease."""
    request = message.request
    return values.Lease(
        lease_id=message.lease_id,
        state=_LEASE_STATES.get(message.state, values.LeaseState.UNSPECIFIED),
        gpu=describe_ask(request),
        tenant=request.tenant,
        queue=request.queue,
        pool=request.pool,
        name=request.name,
        priority=request.priority,
        gang_size=request.gang_size or 1,
        ttl_s=request.ttl_s,
        detached=request.detached,
        labels=dict(request.labels),
        slices=tuple(map(slice_of, message.slices)),
        lease_epoch=message.lease_epoch,
        created_ms=message.created_ms,
        granted_ms=message.granted_ms,
        active_ms=message.active_ms,
        ended_ms=message.ended_ms,
        end_reason=message.end_reason,
        end_detail=message.end_detail,
        note=message.note,
        requeues=message.requeues,
        seq=message.seq,
        min_count=request.min_count,
        max_count=request.max_count,
        shape=message.shape,
        acknowledged_shape=message.acknowledged_shape,
        waiting=read(message.waiting, values.Explanation) if message.HasField("waiting") else None,
        set_aside=tuple(message.set_aside),
        asked_by=message.asked_by,
        ended_by=message.ended_by,
        warnings=tuple(message.warnings),
        use=read(message.use, values.LeaseUse) if message.HasField("use") else None,
        time_limit_s=request.time_limit_s,
        ends_ms=_ends_ms(message),
        redacted=message.redacted,
        secret=message.secret,
    )


def _ends_ms(message: types_pb2.Lease) -> int:
    limit_s = message.request.time_limit_s
    waits_or_ended = message.state in {types_pb2.LEASE_STATE_QUEUED, types_pb2.LEASE_STATE_ENDED}
    return message.granted_ms + 1000 * limit_s if limit_s and message.granted_ms and not waits_or_ended else 0


def device_of(message: types_pb2.Device) -> values.Device:
    """A device."""
    return values.Device(
        uuid=message.uuid,
        index=message.index,
        model=message.model,
        vendor=message.vendor,
        product_name=message.product_name,
        node_id=message.node_id,
        memory_total_bytes=message.memory_total_bytes,
        memory_reserved_bytes=message.memory_reserved_bytes,
        foreign_bytes=message.foreign_bytes,
        leased_share_milli=message.leased_share_milli,
        leased_memory_bytes=message.leased_memory_bytes,
        healthy=message.healthy,
        health_reason=message.health_reason,
        mig_profile=message.mig_profile,
        parent_uuid=message.parent_uuid,
        nvlink_island=_optional(message, "fabric_island"),
        numa_node=_optional(message, "numa_node"),
        pci_bus_id=message.pci_bus_id,
        tiers=tuple(map(tier_of, message.tiers)),
        telemetry=read(message.telemetry, values.Telemetry),
        compute_milli=message.compute_milli or limits.WHOLE_SHARE_MILLI,
        mig_start=_optional(message, "mig_start"),
        lease_ids=tuple(message.lease_ids),
        incident=message.incident,
        whole_only=message.whole_only,
        standing=_STANDINGS.get(message.standing, values.Standing.UNSPECIFIED),
        sign=read(message.sign, values.Sign) if message.HasField("sign") else None,
        fabric_island=_optional(message, "fabric_island"),
    )


def node_of(message: types_pb2.Node) -> values.Node:
    """A node with its devices."""
    return values.Node(
        node_id=message.node_id,
        name=message.name,
        state=_NODE_STATES.get(message.state, values.NodeState.UNSPECIFIED),
        cordoned=message.cordoned,
        draining=message.draining,
        reason=message.reason,
        pool=message.pool,
        labels=dict(message.labels),
        devices=tuple(map(device_of, message.devices)),
        cpu_milli=_optional(message, "cpu_milli"),
        host_memory_bytes=_optional(message, "host_memory_bytes"),
        agentless=message.agentless,
        agent_version=message.agent_version,
        driver_version=message.driver_version,
        last_heard_ms=message.last_heard_ms,
        slices=message.slices,
        failure_domain=message.failure_domain,
        cards=tuple(read(card, values.MigCard) for card in message.cards),
        closure=read(message.closure, values.Closure) if message.HasField("closure") else None,
        serves=tuple(_SERVES.get(number, values.Serve.UNSPECIFIED) for number in message.serves),
        remedies=tuple(message.remedies),
        lends=message.lends,
        conditions=tuple(read(condition, values.NodeCondition) for condition in message.conditions),
    )


def event_of(message: leases_pb2.WatchEvent) -> values.LeaseChanged | values.NodeChanged | None:
    """A change; None for a bookmark or a kind that this version does not know."""
    match message.WhichOneof("event"):
        case "lease":
            return values.LeaseChanged(message.seq, message.at_ms, lease_of(message.lease))
        case "node":
            return values.NodeChanged(message.seq, message.at_ms, node_of(message.node))
        case _:
            return None


def fleet_change_of(message: pool_pb2.FleetEvent) -> fleet.FleetChange:
    """A change of the fleet."""
    return fleet.FleetChange(
        layout=message.layout,
        version=message.version,
        at_ms=message.at_ms,
        resets=message.resets,
        nodes=tuple(
            fleet.FleetNode(node.node_id, node.name, node.pool, node.first, node.devices, tuple(node.models))
            for node in message.nodes
        ),
        index=message.index,
        first=message.first,
        states=message.states,
        shares=message.shares,
        memory=message.memory,
        use_index=message.use_index,
        use=message.use,
    )
