"""What an agent should hold, derived from durable leases: run this slice, stop that one, forget those.

Desired state is sent again at will, so it is never remembered what was sent: a change of wish marks the lease for the
node's session, and the session sends whatever is wanted by the time it gets to it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

from aliquot.common import limits
from aliquot.coordinator.agents.lease_secrets import lease_secret_sha256, serving_credential_sha256
from aliquot.coordinator.core.books.leases.records import TERMINAL, Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.values.types import Cut, Demand, RequestSpec
from aliquot.coordinator.wire.serving import serve_of
from aliquot.v1 import agent_pb2, types_pb2

_FORGOTTEN = RequestSpec(Demand(), "")
"""What is taken for the request of a lease that has been forgotten."""


class Wish(enum.Enum):
    """What is wanted of one slice."""

    RUN = agent_pb2.DESIRED_STATE_RUN
    STOP = agent_pb2.DESIRED_STATE_STOP
    NOTHING = 0


_STOPPING = (SliceState.PREEMPTING, SliceState.RELEASING)


def wish_of(piece: Slice) -> Wish:
    """What is wanted of a slice; of one on a lost node, what will be wanted when it returns."""
    state = piece.resume or piece.state
    if state in TERMINAL:
        return Wish.NOTHING
    if piece.shed and state is SliceState.PREEMPTING:
        return Wish.RUN  # its launcher has notice: it runs until that is acknowledged, or over
    return Wish.STOP if state in _STOPPING else Wish.RUN


def nodes_to_tell(old: Lease | None, new: Lease | None) -> Iterator[str]:
    """The nodes whose agents must hear of this change of a lease. A node may come more than once."""
    if new is None or (old is not None and old.slices is new.slices):
        return
    before = {} if old is None else {piece.slice_id: (wish_of(piece), piece.deadline_ms) for piece in old.slices}
    for piece in new.slices:
        wish = wish_of(piece)
        if wish is Wish.NOTHING:
            continue
        then, deadline_ms = before.get(piece.slice_id, (None, 0))
        if then is not wish or (wish is Wish.STOP and piece.deadline_ms < deadline_ms):
            yield piece.plan.node_id


def desired_slice(lease: Lease, piece: Slice, pool_secret: bytes) -> agent_pb2.DesiredSlice:
    """The message for one slice that is to run or to stop."""
    request = lease.request
    plan = piece.plan
    grace_ms = request.grace_ms
    if piece.deadline_ms and piece.state in _STOPPING and wish_of(piece) is Wish.STOP:
        grace_ms = max(0, piece.deadline_ms - piece.since_ms)
    serve = serve_of(request.demand.node_selector)
    return agent_pb2.DesiredSlice(
        slice_id=piece.slice_id,
        lease_id=lease.lease_id,
        lease_epoch=piece.lease_epoch,
        state=wish_of(piece).value,
        device_uuid=plan.device_uuid,
        share_milli=plan.share_milli,
        memory_bytes=plan.memory_bytes,
        min_tier=request.demand.min_tier,  # type: ignore[arg-type]
        grace_ms=grace_ms,
        secret_sha256=lease_secret_sha256(pool_secret, lease.lease_id),
        tenant=request.tenant,
        reason=lease.end_reason or piece.reason,
        member=piece.member,
        queue=request.queue,
        serve=serve,
        lender=plan.lender,
        lender_memory=plan.lender_memory,
        # What serves a lease is told to end as any service; its programs elsewhere get the signal from their launcher.
        stop_signal="" if serve else request.stop_signal,
        cuda_ordinals=request.cuda_ordinals and not serve,
        serving_credential_sha256=(
            serving_credential_sha256(pool_secret, lease.lease_id, piece.lease_epoch, request.tenant) if serve else b""
        ),
    )


def cut_order(cut: Cut, leader_epoch: int, session_epoch: int) -> agent_pb2.Cut:
    """The message for a card that is to be cut."""
    return agent_pb2.Cut(
        leader_epoch=leader_epoch,
        session_epoch=session_epoch,
        number=cut.number,
        card_uuid=cut.card_uuid,
        parts=[types_pb2.MigPart(profile=part.profile, start=part.start) for part in cut.parts],
        reason=f"lease {cut.lease_id} waits for it",
    )


def stop_stray(report: agent_pb2.SliceReport, lease: Lease | None) -> agent_pb2.DesiredSlice:
    """The message for a slice that an agent holds although its lease no longer does.

    Without a lease: its node was written off, and the lease has been forgotten since.
    """
    request = lease.request if lease is not None else _FORGOTTEN
    return agent_pb2.DesiredSlice(
        slice_id=report.slice_id,
        lease_id=lease.lease_id if lease is not None else report.lease_id or lease_id_of(report.slice_id),
        lease_epoch=max(report.lease_epoch, 1),
        state=agent_pb2.DESIRED_STATE_STOP,
        device_uuid=report.device_uuid[: limits.MAX_DEVICE_UUID_CHARS],
        share_milli=report.share_milli,
        memory_bytes=report.memory_bytes,
        grace_ms=request.grace_ms,
        tenant=request.tenant,
        reason="WRITTEN_OFF" if lease is None else lease.end_reason or "SUPERSEDED",
        queue=request.queue,
    )
