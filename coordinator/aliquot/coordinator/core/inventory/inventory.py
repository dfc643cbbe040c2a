"""The pool's books: which devices there are, what is held on each, and the arrays that placement scans.

Changed only by `evolve` applying facts, and on trial (`Inventory.trial`), which is always undone. Every mutation
either raises `InventoryError` and changes nothing, or leaves records, arrays and totals in step and notes the
rows it touched, from which the engine knows what to score again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from aliquot.coordinator.core.inventory.changes import ChangeLog
from aliquot.coordinator.core.inventory.records import (
    DeviceClass,
    DeviceRecord,
    DeviceView,
    InventoryError,
    NodeRecord,
    Totals,
    device_class_of,
    domain_of,
)
from aliquot.coordinator.core.inventory.table import DeviceTable, rows_of
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Admits, Demand, NodeSpec, SlicePlan

_T = TypeVar("_T")


class Inventory:
    """All nodes and devices of the coordinator, with what is held on them."""

    def __init__(self) -> None:
        self.table = DeviceTable()
        self.structure_version = 0
        """Moves whenever nodes or devices come, go or are described differently."""
        self.layout_version = 0
        """Moves whenever row numbers change their meaning."""
        self.changes = ChangeLog()
        self.classes: list[DeviceClass] = []
        self.domains: list[str] = []
        self.pools: list[str] = []
        self.groups: dict[str, dict[str, int]] = {}
        """Members of each affinity group, by node."""
        self._class_ids: dict[DeviceClass, int] = {}
        self._domain_ids: dict[str, int] = {}
        self._pool_ids: dict[str, int] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._devices: dict[str, DeviceRecord] = {}
        self._totals: dict[tuple[str, str], Totals] = {}
        self._next_rank = 0
        self._dead_rows = 0
        self._with_cards: dict[str, None] = {}
        self._restricted: dict[str, None] = {}
        """Devices that don't admit everything."""
        self._undo: list[tuple[Callable[..., None], tuple[Any, ...]]] | None = None
        """What takes back the changes made on trial, the latest last; None: there is no trial."""

    # -- reading ---------------------------------------------------------------------------------------------

    def has_node(self, node_id: str) -> bool:
        """Is the node known?"""
        return node_id in self._nodes

    def has_device(self, uuid: str) -> bool:
        """Is the device known?"""
        return uuid in self._devices

    def node_ids(self) -> Iterator[str]:
        """Every node, in order of rank."""
        return iter(self._nodes)

    def device_uuids(self) -> Iterator[str]:
        """Every device, node by node."""
        for node in self._nodes.values():
            for device in node.devices:
                yield device.spec.uuid

    def node(self, node_id: str) -> NodeRecord:
        """The record of a node: read it, never write it. InventoryError when unknown."""
        try:
            return self._nodes[node_id]
        except KeyError:
            raise InventoryError(f"node {node_id!r} is not in the inventory") from None

    def device_record(self, uuid: str) -> DeviceRecord:
        """The record of a device: read it, never write it. InventoryError when unknown."""
        try:
            return self._devices[uuid]
        except KeyError:
            raise InventoryError(f"device {uuid!r} is not in the inventory") from None

    def device(self, uuid: str) -> DeviceView:
        """What readers may see of a device. InventoryError when unknown."""
        record = self.device_record(uuid)
        return record.view(self._nodes[record.node_id])

    @property
    def partitioned(self) -> bool:
        """Whether it has ever known MIG instances, or knows cards that may be cut into them."""
        return bool(self._with_cards) or any(device_class.mig_profile for device_class in self.classes)

    def nodes_with_cards(self) -> Iterator[NodeSpec]:
        """Nodes that let their cards be cut."""
        return (self._nodes[node_id].spec for node_id in self._with_cards)

    @property
    def restricted(self) -> bool:
        """Whether some device does not admit everything."""
        return bool(self._restricted)

    def totals(self) -> dict[tuple[str, str], Totals]:
        """Capacity and use by (pool, model): live objects, read only."""
        return self._totals

    # -- what if ---------------------------------------------------------------------------------------------

    @contextmanager
    def trial(self) -> Iterator[Self]:
        """A context in which slices, members, withheld devices and grantable nodes may be changed, as a "what if".

        At its end, however it is left, everything is as it was. Trials may be nested. A row whose changes nobody has
        read meanwhile is not scored again.
        """
        begun, outer = self.changes.end, self._undo
        self._undo = [] if outer is None else outer
        mark = self.mark
        try:
            yield self
        finally:
            self.undo_to(mark)
            self._undo = outer
            self.changes.undone(begun)

    @property
    def mark(self) -> int:
        """A point of the trial to go back to, with `undo_to`: how many changes were made."""
        return len(self._undo or ())

    def undo_to(self, mark: int) -> None:
        """Take back what was changed on trial since then."""
        undo, self._undo = self._undo, None
        try:
            while undo is not None and len(undo) > mark:
                change, arguments = undo.pop()
                change(*arguments)
        finally:
            self._undo = undo

    def _check_not_in_trial(self) -> None:
        if self._undo is not None:
            raise InventoryError("nodes and devices can't be described anew during a trial")

    # -- nodes -----------------------------------------------------------------------------------------------

    def put_node(self, spec: NodeSpec) -> None:
        """Add a node, or describe it anew.

        A node described anew keeps its rank and what is held on its devices, by UUID. A device that is gone
        from the description but still carries slices stays, unavailable, until they are released.
        InventoryError if a UUID belongs to another node or is named twice.
        """
        self._check_not_in_trial()
        uuids = [device.uuid for device in spec.devices]
        if len(set(uuids)) != len(uuids):
            raise InventoryError(f"node {spec.node_id!r} names a device twice; device UUIDs must be unique")
        for uuid in uuids:
            known = self._devices.get(uuid)
            if known is not None and known.node_id != spec.node_id:
                raise InventoryError(f"device {uuid!r} belongs to node {known.node_id!r}; remove it there first")
        old = self._nodes.get(spec.node_id)
        if old is None:
            node = NodeRecord(spec, self._next_rank, self._new_devices(spec, {}))
            self._next_rank += 1
            self._nodes[spec.node_id] = node
            self._register(node)
            self._append_rows(node)
        else:
            self._count(old, -1)
            kept = {device.spec.uuid: device for device in old.devices}
            before = [(row, len(self.table.devices_of_row[row])) for row in self._rows_of(old)]
            old.spec = spec
            old.devices = self._new_devices(spec, kept)
            for uuid in kept:
                del self._devices[uuid]
            self._register(old)
            parts = rows_of(old.devices)
            if [len(part) for part in parts] == [width for _, width in before]:
                for (row, _), part in zip(before, parts, strict=True):
                    self.table.describe_row(row, old, part, domain=self._domain(spec), pool=self._pool(spec))
                self.table.refresh_node(old)
                self._changed(old)
            else:
                self._rebuild()
        self._with_cards.pop(spec.node_id, None)
        if spec.cards:
            self._with_cards[spec.node_id] = None
        self.structure_version += 1

    def remove_node(self, node_id: str) -> None:
        """Forget a node. InventoryError while anything is held on it."""
        self._check_not_in_trial()
        node = self.node(node_id)
        of_host = node.groups or node.cpu_used_milli or node.host_memory_used_bytes
        if of_host or any(device.slices for device in node.devices):
            raise InventoryError(f"node {node_id!r} still carries leases; release or drain them before removing it")
        self._count(node, -1)
        for device in node.devices:
            del self._devices[device.spec.uuid]
        del self._nodes[node_id]
        self._with_cards.pop(node_id, None)
        for row in self._rows_of(node):
            self.table.kill_row(row)
            self.changes.note(row)
        self._dead_rows += node.row_count
        self.structure_version += 1
        if self._dead_rows > 64 and self._dead_rows * 4 > self.table.rows:
            self._rebuild()

    def set_grantable(self, node_id: str, grantable: bool) -> None:  # noqa: FBT001
        """May new slices be placed on the node (ready, and neither cordoned, draining nor suspect)?"""
        node = self.node(node_id)
        if node.grantable != grantable:
            if self._undo is not None:
                self._undo.append((self.set_grantable, (node_id, node.grantable)))
            node.grantable = grantable
            self.table.refresh_node(node)
            self._changed(node)

    # -- devices ---------------------------------------------------------------------------------------------

    def set_device(self, uuid: str, *, foreign_bytes: int, healthy: bool, admits: Admits = Admits.ALL) -> None:
        """What the agent reports of a device (bytes held by processes outside any lease, and its health), and what the
        pool lets be placed on it.
        """
        self._check_not_in_trial()
        if foreign_bytes < 0:
            raise InventoryError(f"foreign_bytes of {uuid!r} must be >= 0, not {foreign_bytes}")
        device = self.device_record(uuid)
        if (device.foreign_bytes, device.healthy, device.admits) != (foreign_bytes, healthy, admits):
            device.foreign_bytes, device.healthy, device.admits = foreign_bytes, healthy, admits
            self._restricted.pop(uuid, None)
            if admits:
                self._restricted[uuid] = None
            self.table.refresh_device(device)
            self.changes.note(device.row)

    def admit(self, most: Admits) -> bool:
        """Let anything be placed on devices that are restricted so far at most, on trial; whether there are any."""
        if self._undo is None:
            raise InventoryError("what a device admits is changed by its report, or on trial")
        known = [self._devices[uuid] for uuid in self._restricted if uuid in self._devices]
        opened = [device for device in known if Admits.ALL < device.admits <= most]
        for device in opened:
            self._undo.append((self._set_admits, (device, device.admits)))
            self._set_admits(device, Admits.ALL)
        return bool(opened)

    def _set_admits(self, device: DeviceRecord, admits: Admits) -> None:
        device.admits = admits
        self.table.refresh_device(device)
        self.changes.note(device.row)

    def withhold(self, uuid: str, owner: str) -> None:
        """Place nobody else on the device while it drains for `owner`; an empty owner ends that."""
        device = self.device_record(uuid)
        if device.withheld_for != owner:
            if self._undo is not None:
                self._undo.append((self.withhold, (uuid, device.withheld_for)))
            device.withheld_for = owner
            self.table.refresh_device(device)
            self.changes.note(device.row)
            node = self._nodes[device.node_id]
            self.table.refresh_node(node)
            if node.row_count > 1:
                self._changed(node)

    def open_devices(self, uuids: Iterable[str]) -> None:
        """End what keeps these devices for somebody. Unknown ones are skipped."""
        for uuid in uuids:
            if uuid in self._devices:
                self.withhold(uuid, "")

    # -- what is held ----------------------------------------------------------------------------------------

    def reserve(self, plan: SlicePlan) -> None:
        """Hold a slice. InventoryError if share or memory would exceed the device.

        The memory of foreign processes is not counted here: a grant that was right when it was decided stays
        right when a foreign process grows afterwards.
        """
        device = self.device_record(plan.device_uuid)
        own_share, own_memory = plan.own_share_milli, plan.own_memory_bytes
        share = device.share_used_milli + own_share
        memory = device.memory_used_bytes + own_memory
        if plan.share_milli <= 0 or plan.memory_bytes < 0:
            raise InventoryError(f"a slice needs a share of 1..1000 and memory >= 0: {plan}")
        if share > device.spec.compute_milli or memory > device.spec.leasable_bytes:
            raise InventoryError(
                f"device {plan.device_uuid!r} can't hold {plan.share_milli} milli and {plan.memory_bytes} bytes: "
                f"{device.share_used_milli} of {WHOLE_SHARE_MILLI} and {device.memory_used_bytes} of "
                f"{device.spec.leasable_bytes} bytes are held"
            )
        self._hold(device, own_share, own_memory, 1)

    def release(self, plan: SlicePlan) -> None:
        """Give a slice back. InventoryError if the device does not hold that much."""
        device = self.device_record(plan.device_uuid)
        if (
            device.slices < 1
            or device.share_used_milli < plan.own_share_milli
            or device.memory_used_bytes < plan.own_memory_bytes
        ):
            raise InventoryError(f"device {plan.device_uuid!r} does not hold {plan}; released twice?")
        self._hold(device, -plan.own_share_milli, -plan.own_memory_bytes, -1)
        if not device.present and not device.slices and self._undo is None:
            self._forget_device(device)

    def _hold(self, device: DeviceRecord, share_milli: int, memory_bytes: int, slices: int) -> None:
        if self._undo is not None:
            self._undo.append((self._hold, (device, -share_milli, -memory_bytes, -slices)))
        device.share_used_milli += share_milli
        device.memory_used_bytes += memory_bytes
        device.slices += slices
        self.table.refresh_left(device)
        totals = self._totals[self._nodes[device.node_id].spec.pool, device.spec.model]
        totals.share_used_milli += share_milli
        totals.memory_used_bytes += memory_bytes
        self.changes.note(device.row)

    def reserve_member(self, node_id: str, demand: Demand) -> None:
        """Hold the host's part of one member of `demand`, and count it in its affinity group.

        InventoryError if a node that reports its CPU or memory has not so much left.
        """
        node = self.node(node_id)
        if not node.has_room(demand):
            raise InventoryError(
                f"node {node_id!r} has {node.cpu_left_milli} milli CPU, {node.host_memory_left_bytes} bytes "
                f"left; {demand.cpu_milli} and {demand.host_memory_bytes} were asked for"
            )
        self._hold_member(node, demand, 1)

    def release_member(self, node_id: str, demand: Demand) -> None:
        """Give the host's part of one member back. InventoryError if it is not held."""
        node = self.node(node_id)
        if (
            node.cpu_used_milli < demand.cpu_milli
            or node.host_memory_used_bytes < demand.host_memory_bytes
            or (demand.affinity_group and not node.groups.get(demand.affinity_group))
        ):
            raise InventoryError(f"node {node_id!r} does not hold that member; released twice?")
        self._hold_member(node, demand, -1)

    def _hold_member(self, node: NodeRecord, demand: Demand, sign: int) -> None:
        if self._undo is not None:
            self._undo.append((self._hold_member, (node, demand, -sign)))
        group = demand.affinity_group
        if group:
            members = node.groups.get(group, 0) + sign
            by_node = self.groups.setdefault(group, {})
            if members:
                node.groups[group] = by_node[node.spec.node_id] = members
            else:
                del node.groups[group], by_node[node.spec.node_id]
                if not by_node:
                    del self.groups[group]
        if demand.cpu_milli or demand.host_memory_bytes:
            node.cpu_used_milli += sign * demand.cpu_milli
            node.host_memory_used_bytes += sign * demand.host_memory_bytes
            cpu_left = node.cpu_left_milli if node.open else -1
            host_left, table = node.host_memory_left_bytes, self.table
            for row in self._rows_of(node):
                table.cpu_left[row], table.host_left[row] = cpu_left, host_left
                self.changes.note(row)

    # -- keeping arrays, totals and the log in step ----------------------------------------------------------

    def _rows_of(self, node: NodeRecord) -> range:
        return range(node.first_row, node.first_row + node.row_count)

    def _changed(self, node: NodeRecord) -> None:
        for row in self._rows_of(node):
            self.changes.note(row)

    def _domain(self, spec: NodeSpec) -> int:
        return _number(domain_of(spec), self._domain_ids, self.domains)

    def _pool(self, spec: NodeSpec) -> int:
        return _number(spec.pool, self._pool_ids, self.pools)

    def _new_devices(self, spec: NodeSpec, kept: dict[str, DeviceRecord]) -> list[DeviceRecord]:
        records: list[DeviceRecord] = []
        named = set()
        for device_spec in spec.devices:
            named.add(device_spec.uuid)
            class_id = _number(device_class_of(device_spec), self._class_ids, self.classes)
            record = kept.get(device_spec.uuid)
            if record is None:
                record = DeviceRecord(device_spec, spec.node_id, class_id, self.classes[class_id])
            else:
                record.spec, record.class_id, record.present = device_spec, class_id, True
                record.device_class = self.classes[class_id]
            records.append(record)
        for uuid, record in kept.items():
            if uuid not in named and record.slices:
                record.present = False
                records.append(record)
        records.sort(key=lambda d: (d.class_id, d.spec.index, d.spec.uuid))
        return records

    def _register(self, node: NodeRecord) -> None:
        for device in node.devices:
            self._devices[device.spec.uuid] = device
        self._count(node, 1)

    def _count(self, node: NodeRecord, sign: int) -> None:
        for device in node.devices:
            totals = self._totals.setdefault((node.spec.pool, device.spec.model), Totals())
            totals.devices += sign
            totals.share_capacity_milli += sign * device.spec.compute_milli
            totals.memory_capacity_bytes += sign * device.spec.leasable_bytes
            totals.share_used_milli += sign * device.share_used_milli
            totals.memory_used_bytes += sign * device.memory_used_bytes
            if not totals.devices:
                del self._totals[node.spec.pool, device.spec.model]

    def _append_rows(self, node: NodeRecord) -> None:
        parts = rows_of(node.devices)
        node.first_row, node.row_count = self.table.rows, len(parts)
        for part in parts:
            row = self.table.add_row(node, part, domain=self._domain(node.spec), pool=self._pool(node.spec))
            self.changes.note(row)
        self.table.refresh_node(node)

    def _forget_device(self, device: DeviceRecord) -> None:
        node = self._nodes[device.node_id]
        self._count(node, -1)
        node.devices.remove(device)
        del self._devices[device.spec.uuid]
        self._count(node, 1)
        self._rebuild()
        self.structure_version += 1

    def _rebuild(self) -> None:
        self.table = DeviceTable()
        self._dead_rows = 0
        for node in self._nodes.values():
            self._append_rows(node)
        self.layout_version += 1


def _number(value: _T, numbers: dict[_T, int], values: list[_T]) -> int:
    number = numbers.get(value)
    if number is None:
        number = numbers[value] = len(values)
        values.append(value)
    return number
