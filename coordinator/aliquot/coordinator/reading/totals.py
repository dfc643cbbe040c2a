"""Sums over all durable records for Status and metrics, kept up to date by differences instead of scans."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, Slice
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.books.tenancy.specs import Amount
from aliquot.coordinator.core.values.types import DeviceSpec, NodeSpec

_NOTHING = Amount()


@dataclass(slots=True)
class ClassTotals:
    """Capacity and use of the devices of one (pool, model)."""

    devices: int = 0
    capacity_share_milli: int = 0
    leased_share_milli: int = 0
    capacity_memory_bytes: int = 0
    leased_memory_bytes: int = 0
    vendor: str = ""


@dataclass(slots=True)
class QueueTotals:
    """What one (tenant, queue) holds and waits for."""

    leased_share_milli: int = 0
    leased_memory_bytes: int = 0
    leases: int = 0
    """Those that hold something."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Leases that wait, and since when each does (ms)."""

    @property
    def queued(self) -> int:
        """How many wait."""
        return len(self.waiting)

    @property
    def empty(self) -> bool:
        """Whether all counts are zero."""
        return not (self.leases or self.waiting or self.leased_share_milli or self.leased_memory_bytes)


@dataclass(slots=True)
class DeviceUse:
    """What leases hold of one device. It stays while slices are on it, even when its node no longer names it."""

    node_id: str
    spec: DeviceSpec
    pool: str
    present: bool = True
    share_milli: int = 0
    memory_bytes: int = 0
    slices: int = 0


class CapacityKept:
    """What promises rest on: the healthy devices of nodes that are counted on."""

    def __init__(self) -> None:
        self._by_node: dict[str, Amount] = {}
        self.share_milli = 0
        self.memory_bytes = 0

    @property
    def amount(self) -> Amount:
        """All of it."""
        return Amount(self.share_milli, self.memory_bytes)

    def put(self, node_id: str, node: Node | None, healthy: Callable[[str], bool]) -> None:
        """A node, or the health of one of its devices (`healthy`, by UUID), may have changed."""
        share = memory = 0
        if node is not None and node.counted_on:
            for device in node.spec.devices:
                if healthy(device.uuid):
                    share += device.compute_milli
                    memory += device.leasable_bytes
        old = self._by_node.pop(node_id, _NOTHING)
        if node is not None:
            self._by_node[node_id] = Amount(share, memory)
        self.share_milli += share - old.share_milli
        self.memory_bytes += memory - old.memory_bytes


class Totals:
    """The sums. `View` calls it with each record's old and new form."""

    def __init__(self) -> None:
        self.classes: dict[tuple[str, str], ClassTotals] = {}
        self.queues: dict[tuple[str, str], QueueTotals] = {}
        self.devices: dict[str, DeviceUse] = {}
        self.kept = CapacityKept()
        self.queued = 0
        self.live = 0
        """Leases that have not ended."""
        self.holding = 0
        """Leases that hold something."""
        self.by_lease_state: dict[LeaseState, int] = dict.fromkeys(LeaseState, 0)
        self.by_node_state: dict[str, int] = {}
        self.by_closure: dict[str, int] = {"CLOSING": 0, "OPEN": 0}
        """Nodes that a maintenance window closes, by its phase."""

    def memory_bytes_of(self, device_uuid: str) -> int:
        """All the memory that a device has; 0 where it is not known."""
        use = self.devices.get(device_uuid)
        return use.spec.memory_total_bytes if use is not None else 0

    # -- leases

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """A lease came, changed or was forgotten."""
        if old is not None:
            self._count_lease(old, -1)
        if new is not None:
            self._count_lease(new, 1)

    def _count_lease(self, lease: Lease, sign: int) -> None:
        state = lease.state
        self.by_lease_state[state] += sign
        if state is LeaseState.ENDED:
            return
        self.live += sign
        request = lease.request
        key = (request.tenant, request.queue)
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = QueueTotals()
        if state is LeaseState.QUEUED:
            if sign > 0:
                queue.waiting[lease.lease_id] = lease.requeued_ms or lease.created_ms
            else:
                del queue.waiting[lease.lease_id]
            self.queued += sign
        share, memory = self._hold(lease.slices, sign)
        if share:
            self.holding += sign
            queue.leases += sign
            queue.leased_share_milli += share
            queue.leased_memory_bytes += memory
        if sign < 0 and queue.empty:
            del self.queues[key]

    def _hold(self, slices: Iterable[Slice], sign: int) -> tuple[int, int]:
        share = memory = 0
        for piece in slices:
            if not piece.holds_capacity:
                continue
            plan = piece.plan
            share += plan.own_share_milli
            memory += plan.own_memory_bytes
            use = self.devices[plan.device_uuid]
            use.share_milli += sign * plan.own_share_milli
            use.memory_bytes += sign * plan.own_memory_bytes
            use.slices += sign
            totals = self._class_of(use)
            totals.leased_share_milli += sign * plan.own_share_milli
            totals.leased_memory_bytes += sign * plan.own_memory_bytes
            if not use.slices and not use.present:
                del self.devices[plan.device_uuid]
        return sign * share, sign * memory

    # -- nodes

    def node_changed(self, old: NodeSpec | None, new: NodeSpec | None) -> None:
        """A node came, was described anew, or was removed."""
        if old is not None:
            kept = set() if new is None else {device.uuid for device in new.devices}
            for device in old.devices:
                self._drop_device(device, gone=device.uuid not in kept)
        if new is not None:
            for device in new.devices:
                self._put_device(device, new)

    def _drop_device(self, device: DeviceSpec, *, gone: bool) -> None:
        use = self.devices[device.uuid]
        self._count_device(use, -1)
        if not gone:
            return
        use.present = False
        if not use.slices:
            del self.devices[device.uuid]

    def _put_device(self, device: DeviceSpec, node: NodeSpec) -> None:
        use = self.devices.get(device.uuid)
        if use is None:
            use = self.devices[device.uuid] = DeviceUse(node.node_id, device, node.pool)
        else:
            self._move_use(use, -1)
            use.node_id, use.spec, use.pool, use.present = node.node_id, device, node.pool, True
            self._move_use(use, 1)
        self._count_device(use, 1)

    def _move_use(self, use: DeviceUse, sign: int) -> None:
        """When a device changes its pool or model, what is leased on it is counted there."""
        if not use.slices:
            return
        totals = self._class_of(use)
        totals.leased_share_milli += sign * use.share_milli
        totals.leased_memory_bytes += sign * use.memory_bytes

    def _count_device(self, use: DeviceUse, sign: int) -> None:
        totals = self._class_of(use)
        totals.devices += sign
        totals.capacity_share_milli += sign * use.spec.compute_milli
        totals.capacity_memory_bytes += sign * use.spec.leasable_bytes

    def _class_of(self, use: DeviceUse) -> ClassTotals:
        key = (use.pool, use.spec.model)
        totals = self.classes.get(key)
        if totals is None:
            totals = self.classes[key] = ClassTotals(vendor=use.spec.vendor)
        return totals

    def node_state_changed(self, old: str | None, new: str | None) -> None:
        """A node's liveness changed; `None`: it was not there, or is no more."""
        if old == new:
            return
        if old is not None:
            self.by_node_state[old] -= 1
        if new is not None:
            self.by_node_state[new] = self.by_node_state.get(new, 0) + 1

    def node_closure_changed(self, old: str | None, new: str | None) -> None:
        """A maintenance window has closed a node or entered its next phase (named), or there is none any more."""
        if old == new:
            return
        if old is not None:
            self.by_closure[old] -= 1
        if new is not None:
            self.by_closure[new] += 1
