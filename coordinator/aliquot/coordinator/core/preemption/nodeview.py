"""What sits on each device of a node, for the search: read off the leases once, and again only when something changed
there.
"""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.inventory.records import DeviceRecord
from aliquot.coordinator.core.leases import SliceState, lease_id_of
from aliquot.coordinator.core.state import State


class Occupant(NamedTuple):
    """What one lease holds of one device."""

    lease_id: str
    share_milli: int
    memory_bytes: int


class DeviceLoad(NamedTuple):
    """One device: what is on it, and what is leaving anyway."""

    record: DeviceRecord
    occupants: tuple[Occupant, ...]
    leaving_share_milli: int
    leaving_memory_bytes: int


class NodeView(NamedTuple):
    """One node as of a version of it."""

    version: int
    devices: tuple[DeviceLoad, ...]
    hosted: dict[str, tuple[int, int]]
    """(CPU, host memory) that each lease would give back there; under the empty name, what is leaving anyway."""
    bounds: dict[int, int]
    """See `least_victims`: a cache."""

    def least_victims(self, count: int) -> int:
        """How many leases sit on the `count` devices with the fewest: a first guess at what room for them costs."""
        known = self.bounds.get(count)
        if known is None:
            loads = sorted(self.devices, key=lambda load: len(load.occupants))[:count]
            known = self.bounds[count] = len({o.lease_id for load in loads for o in load.occupants})
        return known


class NodeViews:
    """The views of all nodes, each as fresh as when it was last asked for."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._views: dict[str, NodeView] = {}

    def of(self, node_id: str) -> NodeView:
        """The view of a node that is in the inventory."""
        version = self._state.node_versions.get(node_id, 0)
        view = self._views.get(node_id)
        if view is None or view.version != version:
            view = self._views[node_id] = self._read(node_id, version)
        return view

    def _read(self, node_id: str, version: int) -> NodeView:
        state = self._state
        staying: dict[str, dict[str, list[int]]] = {}
        leaving: dict[str, list[int]] = {}
        members: dict[tuple[str, int, int], bool] = {}
        for slice_id in state.slice_ids_by_node.get(node_id, ()):
            lease = state.leases[lease_id_of(slice_id)]
            piece = lease.find(slice_id)
            assert piece is not None
            plan = piece.plan
            goes = piece.ending and piece.state is not SliceState.UNREACHABLE
            member = (lease.lease_id, piece.lease_epoch, piece.member)
            members[member] = members.get(member, True) and goes
            if goes:
                sums = leaving.setdefault(plan.device_uuid, [0, 0])
            else:
                sums = staying.setdefault(plan.device_uuid, {}).setdefault(lease.lease_id, [0, 0])
            sums[0] += plan.share_milli
            sums[1] += plan.memory_bytes
        devices = []
        for record in state.inventory.node(node_id).devices:
            uuid = record.spec.uuid
            gone = leaving.get(uuid, (0, 0))
            devices.append(
                DeviceLoad(
                    record,
                    tuple(Occupant(lease_id, *sums) for lease_id, sums in staying.get(uuid, {}).items()),
                    gone[0],
                    gone[1],
                )
            )
        return NodeView(version, tuple(devices), self._hosted(members), {})

    def _hosted(self, members: dict[tuple[str, int, int], bool]) -> dict[str, tuple[int, int]]:
        hosted: dict[str, tuple[int, int]] = {}
        for (lease_id, _, _), goes in members.items():
            demand = self._state.leases[lease_id].request.demand
            if demand.cpu_milli or demand.host_memory_bytes:
                name = "" if goes else lease_id
                cpu, memory = hosted.get(name, (0, 0))
                hosted[name] = (cpu + demand.cpu_milli, memory + demand.host_memory_bytes)
        return hosted
