"""What if these leases were gone? The inventory without them, for as long as it takes to ask the placement engine.

Everything is put back before anybody else looks, whatever happens in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from types import TracebackType

from aliquot.coordinator.core.leases import Slice, SliceState, lease_id_of
from aliquot.coordinator.core.preemption.victims import NEVER_MS
from aliquot.coordinator.core.state import State


class Overlay:
    """A context: inside, `victims` (and all that will have left by `soon_ms` anyway) hold nothing on `node_ids`, and
    some devices are open.
    """

    def __init__(
        self,
        state: State,
        node_ids: Iterable[str],
        victims: Collection[str],
        open_devices: Iterable[str] = (),
        soon_ms: int = NEVER_MS,
    ) -> None:
        self._state = state
        self._node_ids = list(node_ids)
        self._victims = victims
        self._open = list(open_devices)
        self._soon_ms = soon_ms
        self._slices: list[Slice] = []
        self._members: list[tuple[str, str]] = []
        self._withheld: list[tuple[str, str]] = []
        self._supposing = state.engine.supposing()

    def __enter__(self) -> None:
        self._supposing.__enter__()
        inventory = self._state.inventory
        for uuid in self._open:
            owner = inventory.device_record(uuid).withheld_for
            if owner:
                self._withheld.append((uuid, owner))
                inventory.withhold(uuid, "")
        for node_id in self._node_ids:
            self._take_off(node_id)

    def _take_off(self, node_id: str) -> None:
        state = self._state
        staying: set[tuple[str, int, int]] = set()
        going: dict[tuple[str, int, int], None] = {}
        for slice_id in state.slice_ids_by_node[node_id]:
            lease_id = lease_id_of(slice_id)
            piece = state.leases[lease_id].find(slice_id)
            assert piece is not None
            member = (lease_id, piece.lease_epoch, piece.member)
            goes = piece.ending and piece.state is not SliceState.UNREACHABLE and piece.deadline_ms <= self._soon_ms
            if lease_id in self._victims or goes:
                state.inventory.release(piece.plan)
                self._slices.append(piece)
                going[member] = None
            else:
                staying.add(member)
        for member in going:
            if member not in staying:
                demand = state.leases[member[0]].request.demand
                state.inventory.release_member(
                    node_id,
                    cpu_milli=demand.cpu_milli,
                    host_memory_bytes=demand.host_memory_bytes,
                    affinity_group=demand.affinity_group,
                )
                self._members.append((member[0], node_id))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._put_back()
        finally:
            self._supposing.__exit__(kind, error, trace)

    def _put_back(self) -> None:
        inventory = self._state.inventory
        for lease_id, node_id in reversed(self._members):
            demand = self._state.leases[lease_id].request.demand
            inventory.reserve_member(
                node_id,
                cpu_milli=demand.cpu_milli,
                host_memory_bytes=demand.host_memory_bytes,
                affinity_group=demand.affinity_group,
            )
        for piece in reversed(self._slices):
            inventory.reserve(piece.plan)
        for uuid, owner in self._withheld:
            inventory.withhold(uuid, owner)
