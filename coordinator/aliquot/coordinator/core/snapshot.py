"""The books as one value: for snapshots on disk, for hashes, and for starting again from them.

Only what can't be derived is in it. The order of everything is fixed, so equal books give equal bytes, whatever the
order
of events or the hash seed was.
"""

from __future__ import annotations

import hashlib

import msgspec

from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.rebuild import rebuild_indexes
from aliquot.coordinator.core.state import CoreConfig, Device, Node, State

FORMAT = 1


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Everything durable, as of fact number `seq`."""

    format: int = FORMAT
    seq: int
    now_ms: int
    leader_epoch: int
    next_arrival: int
    leases: tuple[Lease, ...]
    """Sorted by arrival."""
    nodes: tuple[Node, ...]
    """In the order in which they first came: it is the rank that breaks placement's ties."""
    devices: tuple[tuple[str, Device], ...]
    """Sorted by UUID."""
    ended: tuple[str, ...]
    """Ended leases, in the order of their ends."""


def to_snapshot(state: State) -> Snapshot:
    """The State's books. Cheap per lease: records are shared, not copied."""
    return Snapshot(
        seq=state.seq,
        now_ms=state.now_ms,
        leader_epoch=state.leader_epoch,
        next_arrival=state.next_arrival,
        leases=tuple(sorted(state.leases.values(), key=lambda lease: lease.arrival)),
        nodes=tuple(state.nodes.values()),
        devices=tuple(sorted(state.devices.items())),
        ended=tuple(state.ended),
    )


def from_snapshot(snapshot: Snapshot, config: CoreConfig | None = None) -> State:
    """A State with these books and fresh indexes."""
    state = State.fresh(config)
    state.seq = snapshot.seq
    state.now_ms = snapshot.now_ms
    state.leader_epoch = snapshot.leader_epoch
    state.next_arrival = snapshot.next_arrival
    state.nodes = {node.spec.node_id: node for node in snapshot.nodes}
    state.devices = dict(snapshot.devices)
    state.leases = {lease.lease_id: lease for lease in snapshot.leases}
    state.ended.extend(snapshot.ended)
    rebuild_indexes(state)
    return state


def state_hash(state: State) -> str:
    """SHA-256 of the books, in hexadecimal."""
    return hashlib.sha256(msgspec.msgpack.encode(to_snapshot(state), order="deterministic")).hexdigest()
