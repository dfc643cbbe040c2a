"""What if these leases were gone? Takes what they hold off the inventory, on trial."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.leases.records import Slice, SliceState, lease_id_of
from aliquot.coordinator.core.planning import Planning


def leaves(piece: Slice) -> bool:
    """Whether it is on its way out in any case."""
    return piece.ending and piece.state is not SliceState.UNREACHABLE


def held_on(state: Planning, node_ids: Iterable[str]) -> Iterator[Slice]:
    """All that is held on these nodes."""
    for node_id in node_ids:
        for slice_id in state.slice_ids_by_node[node_id]:
            piece = state.leases[lease_id_of(slice_id)].find(slice_id)
            assert piece is not None
            yield piece


def gone_by(state: Planning, node_ids: Iterable[str], victims: Collection[str], soon_ms: int) -> Iterator[Slice]:
    """What these leases hold on these nodes, and all that will have left them by then anyway."""
    for piece in held_on(state, node_ids):
        if lease_id_of(piece.slice_id) in victims or (leaves(piece) and piece.deadline_ms <= soon_ms):
            yield piece


def take_off(state: Planning, inventory: Inventory, pieces: Iterable[Slice]) -> None:
    """Free what these slices hold, and the host's part of members of which nothing is left."""
    gone: dict[str, Counter[tuple[int, int, str]]] = {}
    for piece in pieces:
        inventory.release(piece.plan)
        gone.setdefault(lease_id_of(piece.slice_id), Counter())[_member(piece)] += 1
    for lease_id, members in gone.items():
        lease = state.leases[lease_id]
        held = Counter(_member(piece) for piece in lease.slices if piece.holds_capacity)
        for member, number in members.items():
            if held[member] == number:
                inventory.release_member(member[2], lease.request.demand)


def _member(piece: Slice) -> tuple[int, int, str]:
    return piece.lease_epoch, piece.member, piece.plan.node_id
