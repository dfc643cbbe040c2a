"""From durable records to messages; `requests` and `nodes` read messages."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from aliquot.common.tiers import NOT_SERVED, Tier
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, Slice
from aliquot.coordinator.core.commands.outcomes import Explained
from aliquot.coordinator.core.values.types import Missing, Placement, RequestSpec, Shortfall, SlicePlan, Topology
from aliquot.coordinator.reading.usage import Measured, ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.hiding import Sees, shown_id, shown_ids, shown_text
from aliquot.coordinator.wire.serving import plain, serve_of
from aliquot.coordinator.wire.use import write_use
from aliquot.v1 import types_pb2

SLICES_NAMED_MAX = 4
_TOPOLOGY_NUMBERS = {
    Topology.ANY: types_pb2.TOPOLOGY_ANY,
    Topology.PREFER_ISLAND: types_pb2.TOPOLOGY_PREFER_ISLAND,
    Topology.REQUIRE_ISLAND: types_pb2.TOPOLOGY_REQUIRE_ISLAND,
}


def lease_message(
    lease: Lease, view: View, sees: Sees | None, *, observed: ObservedUse | None = None
) -> types_pb2.Lease:
    """A lease as launchers see it; where `observed` is given, with what its slices really use, and why no stronger tier
    holds them. `sees`: which other leases may be named in it; None: all.
    """
    message = types_pb2.Lease()
    write_lease(message, lease, view, sees, observed=observed)
    return message


def write_lease(
    message: types_pb2.Lease,
    lease: Lease,
    view: View,
    sees: Sees | None,
    *,
    secret: str = "",
    observed: ObservedUse | None = None,
) -> None:
    """The same into an empty message. In place, because protobuf copies a message into another by encoding it."""
    message.lease_id = lease.lease_id
    message.state = int(lease.state)  # type: ignore[assignment]  # the numbers equal those of the contract
    message.request.CopyFrom(request_message(lease.request))
    message.lease_epoch = lease.lease_epoch
    message.created_ms = lease.created_ms
    message.granted_ms = lease.granted_ms
    message.active_ms = lease.active_ms
    message.ended_ms = lease.ended_ms
    message.end_reason = lease.end_reason
    message.end_detail = shown_text(lease.end_detail, view, sees)
    message.note = shown_text(lease.note, view, sees)
    message.secret = secret
    message.seq = lease.seq
    message.requeues = lease.requeues
    message.shape = lease.shape
    message.acknowledged_shape = lease.acknowledged_shape
    message.asked_by = lease.by
    message.ended_by = lease.ended_by
    message.warnings.extend(lease.warnings)
    write_use(message, lease)
    for piece in lease.slices:
        slot = message.slices.add()
        _write_slice(slot, piece, view)
        slot.reason = shown_text(piece.reason, view, sees)
        slot.lender = shown_id(piece.plan.lender, view, sees) if piece.plan.lender else ""
        if observed is not None:
            _add_use(slot, observed.latest(piece.slice_id))
            if (served := observed.served.latest(piece.slice_id)) is not None:
                slot.served.CopyFrom(served)
            slot.tier_notes.extend(observed.tier_notes.of(piece.slice_id))


def redacted(lease: Lease, view: View) -> types_pb2.Lease:
    """A lease as those see it who may not see its tenant's: what it holds and where, not whose it is or what for."""
    message = types_pb2.Lease()
    message.lease_id = lease.lease_id
    message.state = int(lease.state)  # type: ignore[assignment]
    message.lease_epoch = lease.lease_epoch
    message.seq = lease.seq
    message.redacted = True
    for piece in lease.slices:
        _write_slice(message.slices.add(), piece, view)
        message.slices[-1].reason = ""
    return message


def _add_use(message: types_pb2.Slice, measured: Measured | None) -> None:
    if measured is None:
        return
    message.observed_ms = measured.at_ms
    if measured.memory_bytes is not None:
        message.observed_bytes = measured.memory_bytes
    if measured.utilisation_percent is not None:
        message.observed_utilisation_percent = measured.utilisation_percent


def _write_place(message: types_pb2.Slice, plan: SlicePlan, member: int, view: View) -> None:
    """Where a slice is, and what it has there."""
    node = view.nodes.get(plan.node_id)
    use = view.totals.devices.get(plan.device_uuid)
    message.node_id = plan.node_id
    if node is not None:
        message.node_name = node.spec.name
    message.device_uuid = plan.device_uuid
    if use is not None:
        message.device_model = use.spec.model
        message.mig_profile = use.spec.mig_profile
    message.share_milli = plan.share_milli
    message.memory_bytes = plan.memory_bytes
    message.member = member


def _write_slice(message: types_pb2.Slice, piece: Slice, view: View) -> None:
    _write_place(message, piece.plan, piece.member, view)
    message.slice_id = piece.slice_id
    message.state = int(piece.state)  # type: ignore[assignment]
    message.tier = piece.tier  # type: ignore[assignment]
    message.lease_epoch = piece.lease_epoch
    message.since_ms = piece.since_ms
    message.deadline_ms = piece.deadline_ms
    message.reason = piece.reason
    message.shed = piece.shed
    message.endpoint = piece.endpoint


@lru_cache(maxsize=4096)
def request_message(spec: RequestSpec) -> types_pb2.LeaseRequest:
    """A request with its text resolved. Shared by all leases with the same request: never change it."""
    demand = spec.demand
    gpu = types_pb2.GpuSpec(
        count=demand.count,
        share_milli=demand.share_milli,
        memory_bytes=demand.memory_bytes,
        models=[types_pb2.ModelSet(any_of=models) for models in demand.models],
        vendor=demand.vendor,
        mig_profile=demand.mig_profile,
        vendors=demand.vendors,
    )
    return types_pb2.LeaseRequest(
        spec=gpu,
        tenant=spec.tenant,
        queue=spec.queue,
        pool=demand.pool,
        priority=spec.priority,
        gang_size=demand.gang_size,
        cpu_milli=demand.cpu_milli,
        host_memory_bytes=demand.host_memory_bytes,
        min_tier=demand.min_tier,  # type: ignore[arg-type]
        time_limit_s=spec.time_limit_ms // 1000,
        min_run_s=spec.min_run_ms // 1000,
        grace_s=spec.grace_ms // 1000,
        preemptible=spec.preemptible,
        movable=spec.movable,
        opportunistic=demand.opportunistic,
        or_mig=demand.or_mig,
        node_selector=plain(demand.node_selector),
        serve=serve_of(demand.node_selector),
        node_ids=demand.node_ids,
        avoid_node_ids=demand.avoid_node_ids,
        affinity_group=demand.affinity_group,
        max_per_node=demand.max_per_node,
        spread_domains=demand.spread_domains,
        topology=_TOPOLOGY_NUMBERS[demand.topology],
        name=spec.name,
        labels=dict(spec.labels),
        ttl_s=spec.ttl_ms // 1000,
        detached=spec.ttl_ms == 0,
        min_count=spec.min_count,
        max_count=spec.max_count,
        stop_signal=spec.stop_signal,
    )


def explanation_message(explained: Explained, view: View, sees: Sees | None) -> types_pb2.Explanation:
    """Why a request would be granted, waits or is refused. `sees`: which leases may be named; None: all."""
    return types_pb2.Explanation(
        fits_now=explained.fits_now,
        impossible=explained.impossible,
        summary=shown_text(explained.summary, view, sees),
        missing=[_missing_message(missing) for missing in explained.missing],
        queue_position=explained.queue_position,
        queue_length=explained.queue_length,
        ahead=shown_ids(explained.ahead, view, sees),
        placement=_placement_messages(explained.placement, view) if explained.placement is not None else (),
        placement_note=explained.placement.note if explained.placement is not None else "",
        would_preempt=shown_ids(explained.would_preempt, view, sees),
        expected_start_ms=explained.expected_start_ms or None,
        expected_uncertainty_ms=explained.expected_uncertainty_ms if explained.expected_start_ms else None,
        notes=[shown_text(note, view, sees) for note in explained.notes],
    )


def explanation_of_shortfall(shortfall: Shortfall) -> types_pb2.Explanation:
    """The same for a refusal."""
    return types_pb2.Explanation(
        impossible=shortfall.impossible,
        summary=shortfall.summary,
        missing=[_missing_message(missing) for missing in shortfall.missing],
    )


def notes_on_tiers(slices: Iterable[types_pb2.Slice]) -> list[str]:
    """What each slice is held by and why by no stronger tier, and why nothing serves it; slices of which the same holds
    share a line.
    """
    alike: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    unserved: dict[str, list[str]] = {}
    for piece in slices:
        on_tiers = tuple(note for note in piece.tier_notes if not note.startswith(NOT_SERVED))
        if on_tiers:
            alike.setdefault((piece.tier, on_tiers), []).append(piece.slice_id)
        for note in piece.tier_notes:
            if note.startswith(NOT_SERVED):
                unserved.setdefault(note, []).append(piece.slice_id)
    return [f"{note} ({_some(slice_ids)})" for note, slice_ids in unserved.items()] + [
        f"held by {Tier(tier).word}, by no stronger tier because {'; '.join(notes)} ({_some(slice_ids)})"
        for (tier, notes), slice_ids in alike.items()
        if tier in list(Tier) and tier != Tier.NONE  # of a whole device nobody needs to be kept off
    ]


def _some(slice_ids: list[str]) -> str:
    shown = ", ".join(slice_ids[:SLICES_NAMED_MAX])
    return shown if len(slice_ids) <= SLICES_NAMED_MAX else f"{shown} and {len(slice_ids) - SLICES_NAMED_MAX} more"


def _missing_message(missing: Missing) -> types_pb2.Missing:
    return types_pb2.Missing(
        device_class=missing.device_class,
        reason=missing.reason,
        detail=missing.detail,
        smallest_change=missing.smallest_change,
        devices=missing.devices,
    )


def _placement_messages(placement: Placement, view: View) -> list[types_pb2.Slice]:
    slices = []
    for member, plans in enumerate(placement.members):
        for plan in plans:
            slices.append(types_pb2.Slice())
            _write_place(slices[-1], plan, member, view)
    return slices


def lost_reason(lease: Lease | None) -> str:
    """Why a keep-alive can't keep this lease; empty when it can."""
    if lease is None:
        return "LEASE_NOT_FOUND"
    if lease.end_reason == "EXPIRED":
        return "LEASE_EXPIRED"
    if lease.ended or (lease.ending and not lease.requeue):
        return "LEASE_ENDED"
    return ""


def preempting_deadline_ms(lease: Lease) -> int:
    """When a lease that was asked to give way is stopped; 0: it was not."""
    if lease.state is not LeaseState.PREEMPTING and not lease.requeue:
        return 0
    return max((piece.deadline_ms for piece in lease.slices), default=0)
