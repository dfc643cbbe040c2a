"""The durable records that every Get, List, Status and metric is answered from.

It is fed one durable group at a time and never looks at the writer's State, so it can't show what a crash could
still take back. Each answer carries `seq`, the number of the last fact it includes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.ledger import Extract
from aliquot.coordinator.core.books.maintenance import Window
from aliquot.coordinator.core.books.nodes import Device, Node
from aliquot.coordinator.reading.books import DurableBooks, TenancyView, WindowView
from aliquot.coordinator.reading.callers import DurableCallers
from aliquot.coordinator.reading.totals import Totals
from aliquot.coordinator.writing.commits import Commit


class ArrivalOrder:
    """Lease ids in the order of their arrivals. Arrivals only rise, so adding is appending.

    They are in blocks, so that removing one moves some hundred others at most, however many there are.
    """

    __slots__ = ("_blocks", "_firsts", "_size")

    def __init__(self) -> None:
        self._blocks: list[tuple[list[int], list[str]]] = []
        """Arrivals and ids, none of them empty."""
        self._firsts: list[int] = []
        """Where each block begins, or began."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, arrival: int, lease_id: str) -> None:
        """Append. `arrival` is above all before it."""
        if not self._blocks or len(self._blocks[-1][0]) >= BLOCK:
            self._blocks.append(([], []))
            self._firsts.append(arrival)
        arrivals, ids = self._blocks[-1]
        arrivals.append(arrival)
        ids.append(lease_id)
        self._size += 1

    def remove(self, arrival: int) -> None:
        """Take out the lease of this arrival, which must be there."""
        number = bisect_right(self._firsts, arrival) - 1
        arrivals, ids = self._blocks[number]
        place = bisect_right(arrivals, arrival) - 1
        del arrivals[place], ids[place]
        if not ids:
            del self._blocks[number], self._firsts[number]
        self._size -= 1

    def after(self, arrival: int) -> Iterator[str]:
        """Ids of those that came later. Use it up before anything is added or removed."""
        number = max(0, bisect_right(self._firsts, arrival) - 1)
        for arrivals, ids in islice(self._blocks, number, None):
            yield from islice(ids, bisect_right(arrivals, arrival), None)


BLOCK = 512
_NO_DEVICE = Device()
WRITTEN_OFF_KEPT = 65_536
"""Slices: some megabytes."""


class View:
    """Leases, nodes and devices by id, by tenant, by node, and in order of arrival."""

    def __init__(self) -> None:
        self.seq = 0
        self.at_ms = 0
        self.leader_epoch = 0
        self.leases: dict[str, Lease] = {}
        self.nodes: dict[str, Node] = {}
        self.devices: dict[str, Device] = {}
        self.written_off: dict[str, None] = {}
        """Slices that were held on nodes when these were removed, the latest ones. In no journal: one that was put back
        could not tell what it has forgotten from what it never knew.
        """
        self.totals = Totals()
        self.books = DurableBooks()
        self.callers = DurableCallers()
        self._node_ids_by_name: dict[str, str] = {}
        self._slices_by_node: dict[str, dict[str, str]] = {}
        self._all = ArrivalOrder()
        self._live = ArrivalOrder()
        self._all_of: dict[str, ArrivalOrder] = {}
        self._live_of: dict[str, ArrivalOrder] = {}
        self._sorted_nodes: list[str] | None = None

    # -- writing: the outbox only

    def apply(self, commit: Commit) -> list[tuple[Lease | None, Lease | None]]:
        """Include a durable group; returns each changed lease as it was and as it is."""
        for node_id, node in commit.nodes:
            if node is None:
                self._drop_node(node_id)
        for node_id, node in commit.nodes:
            if node is not None:
                self._put_node(node_id, node)
        changes = [self._put_lease(lease_id, lease) for lease_id, lease in commit.leases]
        for uuid, device in commit.devices:
            if device is None:
                self.devices.pop(uuid, None)
            else:
                self.devices[uuid] = device
        if commit.nodes or commit.devices:
            self._count_usable(commit)
        self.books.apply(commit.books)
        self.callers.apply(commit.books)
        self.seq, self.at_ms, self.leader_epoch = commit.seq, commit.at_ms, commit.leader_epoch
        return changes

    def _count_usable(self, commit: Commit) -> None:
        uses = self.totals.devices
        looked_at = dict.fromkeys(node_id for node_id, _ in commit.nodes)
        looked_at |= dict.fromkeys(uses[uuid].node_id for uuid, _ in commit.devices if uuid in uses)
        for node_id in looked_at:
            self.totals.kept.put(node_id, self.nodes.get(node_id), lambda uuid: self.device(uuid).usable)

    def _put_node(self, node_id: str, node: Node) -> None:
        old = self.nodes.get(node_id)
        self.nodes[node_id] = node
        self.totals.node_state_changed(old.state.name if old is not None else None, node.state.name)
        self.totals.node_closure_changed(_closed_by(old), _closed_by(node))
        if old is None or old.written_off is not node.written_off:
            self._write_off(node.written_off)
        if old is not None and old.spec is node.spec:
            return
        if old is None:
            self._sorted_nodes = None
            self._slices_by_node.setdefault(node_id, {})
        else:
            if self._node_ids_by_name.get(old.spec.name) == node_id:
                del self._node_ids_by_name[old.spec.name]
            for device in old.spec.devices:
                self.devices.pop(device.uuid, None)  # those that it still has are in the group
        self._node_ids_by_name[node.spec.name] = node_id
        self.totals.node_changed(old.spec if old is not None else None, node.spec)

    def _drop_node(self, node_id: str) -> None:
        old = self.nodes.pop(node_id, None)
        if old is None:
            return
        self._sorted_nodes = None
        if self._node_ids_by_name.get(old.spec.name) == node_id:
            del self._node_ids_by_name[old.spec.name]
        self._write_off(self._slices_by_node.pop(node_id, ()))
        self.totals.node_changed(old.spec, None)
        self.totals.node_state_changed(old.state.name, None)
        self.totals.node_closure_changed(_closed_by(old), None)

    def _write_off(self, slice_ids: Iterable[str]) -> None:
        self.written_off.update(dict.fromkeys(slice_ids))
        for slice_id in list(islice(self.written_off, max(0, len(self.written_off) - WRITTEN_OFF_KEPT))):
            del self.written_off[slice_id]

    def _put_lease(self, lease_id: str, new: Lease | None) -> tuple[Lease | None, Lease | None]:
        old = self.leases.get(lease_id)
        self.totals.lease_changed(old, new)
        if old is None and new is not None:
            self._enlist(new)
        if old is not None and not old.ended and (new is None or new.ended):
            self._live.remove(old.arrival)
            _remove(self._live_of, old)
        if new is None:
            if old is not None:
                del self.leases[lease_id]
                self._all.remove(old.arrival)
                _remove(self._all_of, old)
        else:
            self.leases[lease_id] = new
        if old is None or new is None or old.slices is not new.slices:
            self._move_slices(old, new)
        return old, new

    def _enlist(self, lease: Lease) -> None:
        self._all.add(lease.arrival, lease.lease_id)
        self._all_of.setdefault(lease.request.tenant, ArrivalOrder()).add(lease.arrival, lease.lease_id)
        if not lease.ended:
            self._live.add(lease.arrival, lease.lease_id)
            self._live_of.setdefault(lease.request.tenant, ArrivalOrder()).add(lease.arrival, lease.lease_id)

    def _move_slices(self, old: Lease | None, new: Lease | None) -> None:
        if old is not None:
            for piece in old.slices:
                on_node = self._slices_by_node.get(piece.plan.node_id)
                if on_node is not None:
                    on_node.pop(piece.slice_id, None)
        if new is not None:
            for piece in new.slices:
                if piece.holds_capacity:
                    self._slices_by_node[piece.plan.node_id][piece.slice_id] = new.lease_id

    # -- reading

    def tenancy(self, now_ms: int) -> TenancyView:
        """Everything declared, with what is held and waits. O(tenants and queues)."""
        return self.books.tenancy(self.totals, max(now_ms, self.at_ms))

    def windows(self) -> tuple[WindowView, ...]:
        """All maintenance windows, the next one first."""
        return tuple(self._window(window) for window in self.books.windows)

    def _window(self, window: Window) -> WindowView:
        covered = tuple(node_id for node_id, node in self.nodes.items() if window.spec.covers(node.spec))
        return WindowView(window, covered, sum(len(self.slices_on(node_id)) for node_id in covered))

    def extract(self, tenant: str, from_ms: int, to_ms: int, now_ms: int) -> Extract:
        """What an invoice for a tenant and a period is made from (`ledger.invoice.make_invoice`); of what is charged
        this moment, too. O(the tenant's live leases and entries). Raises PeriodClosed.
        """
        live = self.leases_after(0, tenant=tenant, live_only=True)
        return self.books.extract(tenant, live, from_ms, to_ms, max(now_ms, self.at_ms))

    def node_named(self, name: str) -> Node | None:
        """A node by its id or, failing that, by its name."""
        return self.nodes.get(name) or self.nodes.get(self._node_ids_by_name.get(name, ""))

    def node_id_of(self, name: str) -> str:
        """The id of a node named by id or name; what names none stays as it is."""
        return name if name in self.nodes else self._node_ids_by_name.get(name, name)

    def device(self, uuid: str) -> Device:
        """What is known of a device beside its spec."""
        return self.devices.get(uuid, _NO_DEVICE)

    def slices_on(self, node_id: str) -> dict[str, str]:
        """Slice id -> lease id of all slices that hold capacity on the node."""
        return self._slices_by_node.get(node_id, {})

    def leases_after(self, arrival: int, *, tenant: str, live_only: bool) -> Iterator[Lease]:
        """Leases in order of arrival, after this one. Use it up before the next group is applied."""
        if tenant:
            order = (self._live_of if live_only else self._all_of).get(tenant)
        else:
            order = self._live if live_only else self._all
        if order is not None:
            for lease_id in order.after(arrival):
                yield self.leases[lease_id]

    def node_ids(self) -> list[str]:
        """All node ids, sorted. The list is made anew when nodes come or go: don't change it."""
        if self._sorted_nodes is None:
            self._sorted_nodes = sorted(self.nodes)
        return self._sorted_nodes


def _closed_by(node: Node | None) -> str | None:
    return node.closure.phase.name if node is not None and node.closure is not None else None


def _remove(orders: dict[str, ArrivalOrder], lease: Lease) -> None:
    order = orders[lease.request.tenant]
    order.remove(lease.arrival)
    if not len(order):
        del orders[lease.request.tenant]
