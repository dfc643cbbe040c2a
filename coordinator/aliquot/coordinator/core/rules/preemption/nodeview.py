"""What sits on each device of a node, for the search: read from the leases when something changed there."""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.books.leases.records import SliceState, lease_id_of
from aliquot.coordinator.core.inventory.records import DeviceRecord
from aliquot.coordinator.core.known.known import Known


class DeviceHolding(NamedTuple):
    """What one lease holds of one device."""

    lease_id: str
    share_milli: int
    memory_bytes: int


class Leaver(NamedTuple):
    """What a lease that is ending still holds of one device, for longer than a preemptor waits."""

    lease_id: str
    share_milli: int
    memory_bytes: int
    deadline_ms: int


class DeviceLoad(NamedTuple):
    """One device: what is on it, and what is leaving anyway."""

    record: DeviceRecord
    holdings: tuple[DeviceHolding, ...]
    leaving_share_milli: int
    leaving_memory_bytes: int
    late: tuple[Leaver, ...]
    """What is leaving, too, but had long to go when the view was taken."""

    def left(self, soon_ms: int) -> tuple[int, int]:
        """(share_milli, memory_bytes) that are free, or will be by `soon_ms` in any case."""
        share = self.record.spec.compute_milli - self.record.share_used_milli + self.leaving_share_milli
        memory = self.record.memory_left_bytes + self.leaving_memory_bytes
        for leaver in self.late:
            if leaver.deadline_ms <= soon_ms:
                share, memory = share + leaver.share_milli, memory + leaver.memory_bytes
        return share, memory

    def others(self, soon_ms: int) -> list[tuple[str, int, int]]:
        """(lease, share_milli, memory_bytes) of what will not have left by then."""
        staying: list[tuple[str, int, int]] = list(self.holdings)
        return staying + [leaver[:3] for leaver in self.late if leaver.deadline_ms > soon_ms]


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
            loads = sorted(self.devices, key=lambda load: len(load.holdings))[:count]
            known = self.bounds[count] = len({o.lease_id for load in loads for o in load.holdings})
        return known


class NodeViews:
    """The views of all nodes, each read when it is asked for."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._views: dict[str, NodeView] = {}

    def of(self, node_id: str) -> NodeView:
        """The view of a node that is in the inventory."""
        version = self._known.node_versions.get(node_id, 0)
        view = self._views.get(node_id)
        if view is None or view.version != version:
            view = self._views[node_id] = self._read(node_id, version)
            if len(self._views) > len(self._known.nodes):
                self._views = {each: view for each, view in self._views.items() if each in self._known.nodes}
        return view

    def _read(self, node_id: str, version: int) -> NodeView:
        known = self._known
        soon_ms = known.now_ms + known.config.reclaim_grace_ms
        staying: dict[str, dict[str, list[int]]] = {}
        leaving: dict[str, list[int]] = {}
        late: dict[str, list[Leaver]] = {}
        members: dict[tuple[str, int, int], bool] = {}
        for slice_id in known.slice_ids_by_node.get(node_id, ()):
            lease = known.leases[lease_id_of(slice_id)]
            piece = lease.find(slice_id)
            assert piece is not None
            plan = piece.plan
            goes = piece.ending and piece.state is not SliceState.UNREACHABLE
            soon = goes and piece.deadline_ms <= soon_ms
            member = (lease.lease_id, piece.lease_epoch, piece.member)
            members[member] = members.get(member, True) and soon
            if goes and not soon:
                leaver = Leaver(lease.lease_id, plan.own_share_milli, plan.own_memory_bytes, piece.deadline_ms)
                late.setdefault(plan.device_uuid, []).append(leaver)
                continue
            if goes:
                sums = leaving.setdefault(plan.device_uuid, [0, 0])
            else:
                sums = staying.setdefault(plan.device_uuid, {}).setdefault(lease.lease_id, [0, 0])
            sums[0] += plan.own_share_milli
            sums[1] += plan.own_memory_bytes
        devices = []
        for record in known.inventory.node(node_id).devices:
            uuid = record.spec.uuid
            gone = leaving.get(uuid, (0, 0))
            holdings = tuple(DeviceHolding(lease_id, *sums) for lease_id, sums in staying.get(uuid, {}).items())
            devices.append(DeviceLoad(record, holdings, gone[0], gone[1], tuple(late.get(uuid, ()))))
        return NodeView(version, tuple(devices), self._hosted(members), {})

    def _hosted(self, members: dict[tuple[str, int, int], bool]) -> dict[str, tuple[int, int]]:
        hosted: dict[str, tuple[int, int]] = {}
        for (lease_id, _, _), goes in members.items():
            demand = self._known.leases[lease_id].request.demand
            if demand.cpu_milli or demand.host_memory_bytes:
                name = "" if goes else lease_id
                cpu, memory = hosted.get(name, (0, 0))
                hosted[name] = (cpu + demand.cpu_milli, memory + demand.host_memory_bytes)
        return hosted
