"""The share of idle leases, lent to opportunistic ones: where one finds room on it, and how it goes back.

A borrower's slice is held on one slice of a lender and takes no share of the device by itself, so that what is
reserved never exceeds the device. Memory is lent by leases without any process only; otherwise a borrower needs
memory that nobody holds.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.books.use import ShareRecalled
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import chain_of, forbidden, suspended
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import Demand, EndReason, Placement, SlicePlan

LENDERS_TRIED = 64
"""A look at one lender's slice costs about a placement on one node."""


def borrow(known: Known, lease: Lease, demand: Demand, now_ms: int) -> Placement | None:
    """Room for an opportunistic request on what others do not use; None: there is none. Changes nothing."""
    if not demand.opportunistic or demand.count != 1 or demand.gang_size != 1 or demand.mig_profile:
        return None
    if lease.request.min_count or lease.request.max_count or suspended(known, lease.request, now_ms) is not None:
        return None
    for lender_id in islice(known.lenders, LENDERS_TRIED):
        lender = known.leases[lender_id]
        for piece in lender.current if not lender.ending else ():
            placement = _on(known, lease, demand, piece, memory=lender.use.lent_memory)
            if placement is None:
                continue
            chain = chain_of(known, lease.request)
            if forbidden(known, lease.request, chain, placement, now_ms, lease.preempted_at_ms) is None:
                return placement
    return None


def _on(known: Known, lease: Lease, demand: Demand, piece: Slice, *, memory: bool) -> Placement | None:
    """A placement on one lender's slice."""
    if piece.state is not SliceState.ACTIVE or not known.nodes[piece.plan.node_id].spec.lends:
        return None
    share_left, memory_left = _left(known, piece)
    if share_left <= 0:
        return None
    plan = piece.plan
    offered = SlicePlan(plan.node_id, plan.device_uuid, share_left, memory_left if memory else 0)
    here = msgspec.structs.replace(demand, node_ids=(plan.node_id,))
    if demand.node_ids and plan.node_id not in demand.node_ids:
        return None
    free_bytes = known.inventory.device_record(plan.device_uuid).memory_left_bytes
    with known.inventory.trial() as inventory:
        inventory.release(offered)
        found = known.engine.place(here)
    if found is None:
        return None
    place = found.members[0][0]
    if place.device_uuid != plan.device_uuid or place.share_milli > share_left:
        return None
    own_memory = place.memory_bytes <= free_bytes
    if not own_memory and not (memory and place.memory_bytes <= memory_left):
        return None
    lent = msgspec.structs.replace(place, lender=piece.slice_id, lender_memory=not own_memory)
    note = f"on what lease {lease_id_of(piece.slice_id)} does not use"
    return Placement(((lent,),), found.node_ids, "; ".join(filter(None, (found.note, note))))


def _left(known: Known, piece: Slice) -> tuple[int, int]:
    """What nobody has borrowed of a slice yet: share, and memory."""
    share_milli, memory_bytes = piece.plan.share_milli, piece.plan.memory_bytes
    for slice_id in known.borrowers.get(piece.slice_id, ()):
        other = known.leases[lease_id_of(slice_id)].find(slice_id)
        assert other is not None
        share_milli -= other.plan.share_milli
        memory_bytes -= other.plan.memory_bytes if other.plan.lender_memory else 0
    return share_milli, memory_bytes


def recall(known: Known, lease: Lease, reason: str, now_ms: int) -> list[Fact]:
    """Facts that give a lender its share back: whoever uses it goes back to its queue, with next to no grace."""
    facts: list[Fact] = [ShareRecalled(now_ms, lease.lease_id, reason)] if lease.use.lent else []
    going: dict[str, None] = {}
    for piece in lease.slices:
        for slice_id in known.borrowers.get(piece.slice_id, ()):
            going[lease_id_of(slice_id)] = None
    for borrower_id in going:
        borrower = known.leases[borrower_id]
        if borrower.ending or borrower.waiting:
            continue
        grace_ms = min(borrower.request.grace_ms, known.config.lent_grace_ms)
        detail = f"lease {lease.lease_id} has its share back: {reason}"
        facts += lifecycle.send_back(known, borrower, EndReason.PREEMPTED, now_ms, detail=detail, grace_ms=grace_ms)
    return facts


def look(known: Known, lease_id: str, now_ms: int) -> list[Fact]:
    """A lender is on its way out: what others use of it goes before it."""
    lease = known.leases.get(lease_id)
    if lease is None or lease.ended or not lease.ending:
        return []
    return recall(known, lease, "it ends", now_ms)


DECIDES = Decides(due={Due.LOAN: look})
