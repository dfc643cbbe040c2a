"""What the writer hands to the outbox once a group is durable: the records that changed, as they were when it
closed.

Records are immutable, so that a reference taken when the group closed is still what was committed while the next
group is already being decided.
"""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.state import Device, Node, State
from aliquot.coordinator.core.tenancy.lending import NodeMove


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything up to fact `seq` is durable, and this is what its group changed. `None`: the record is gone."""

    seq: int
    at_ms: int
    leader_epoch: int
    leases: tuple[tuple[str, Lease | None], ...]
    nodes: tuple[tuple[str, Node | None], ...]
    devices: tuple[tuple[str, Device | None], ...]
    node_moves: tuple[NodeMove, ...] = ()
    """Nodes that changed hands between projects."""


def take_commit(state: State) -> Commit:
    """Everything that changed since this was last called."""
    touched = state.take_touched()
    leases, nodes, devices = state.leases, state.nodes, state.devices
    return Commit(
        seq=state.seq,
        at_ms=state.now_ms,
        leader_epoch=state.leader_epoch,
        leases=tuple([(lease_id, leases.get(lease_id)) for lease_id in touched.leases]),
        nodes=tuple([(node_id, nodes.get(node_id)) for node_id in touched.nodes]),
        devices=tuple([(uuid, devices.get(uuid)) for uuid in touched.devices]),
        node_moves=touched.node_moves,
    )


def _arrival(lease: Lease) -> int:
    return lease.arrival


def whole_state(state: State) -> Commit:
    """All of the State as one commit, for a View that starts from nothing."""
    state.take_touched()
    return Commit(
        seq=state.seq,
        at_ms=state.now_ms,
        leader_epoch=state.leader_epoch,
        leases=tuple((lease.lease_id, lease) for lease in sorted(state.leases.values(), key=_arrival)),
        nodes=tuple(state.nodes.items()),
        devices=tuple(state.devices.items()),
    )
