"""What must be true of the State between any two groups of facts, recounted from the leases: the books' own arithmetic
is not believed. Tests and the simulation check it after every step.

A subject whose books and indexes could contradict each other has a function here, named in `SUBJECTS`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from aliquot.coordinator.core.books.elastic import bounds_of, core_of, is_elastic
from aliquot.coordinator.core.books.health.records import ORDERED, OUT, CareOrder, Standing
from aliquot.coordinator.core.books.holds import HoldKind, is_complete
from aliquot.coordinator.core.books.leases.records import Lease, SliceState, lease_id_of, parts_of, queue_of
from aliquot.coordinator.core.books.ledger.ledger import CHARGED
from aliquot.coordinator.core.books.maintenance import closure_of
from aliquot.coordinator.core.books.tenancy.limits import parts_of_placement
from aliquot.coordinator.core.evolve.health import admits_of, order_of, standing_of
from aliquot.coordinator.core.evolve.mig import withheld
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import BrokenInvariant


def require(condition: object, message: str) -> None:
    """Raises BrokenInvariant with this message unless the condition holds."""
    if not condition:
        raise BrokenInvariant(message)


def check(state: State) -> None:
    """Recount everything from the leases. Raises BrokenInvariant, naming what does not add up."""
    share: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    by_node: dict[str, set[str]] = {node_id: set() for node_id in state.nodes}
    waiting: set[str] = set()
    for lease in state.leases.values():
        _check_lease(lease)
        for piece in lease.holding:
            share[piece.plan.device_uuid] += piece.plan.own_share_milli
            memory[piece.plan.device_uuid] += piece.plan.own_memory_bytes
            require(piece.plan.node_id in by_node, f"{piece.slice_id} sits on an unknown node")
            by_node[piece.plan.node_id].add(piece.slice_id)
        if lease.waiting:
            waiting.add(lease.lease_id)
    for uuid in state.devices:
        device = state.inventory.device(uuid)
        require(
            device.share_used_milli == share[uuid],
            f"{uuid}: books say {share[uuid]} milli, inventory otherwise",
        )
        require(device.memory_used_bytes == memory[uuid], f"{uuid}: books and inventory differ in memory")
        require(share[uuid] <= device.compute_milli, f"{uuid}: {share[uuid]} milli are reserved")
        require(memory[uuid] <= device.leasable_bytes, f"{uuid}: {memory[uuid]} bytes are reserved")
    require(set(share) <= set(state.devices), "slices sit on unknown devices")
    for node_id, slice_ids in by_node.items():
        require(set(state.slice_ids_by_node[node_id]) == slice_ids, f"{node_id}: the slice index is off")
    lined = sorted(state.lines.ids())
    require(lined == sorted(waiting), "the waiting lines are not the waiting leases")
    require(len(state.lines) == len(lined), "the waiting lines' length is off")
    _check_accounts(state)
    _check_guarantees(state)
    for check_subject in SUBJECTS:
        check_subject(state)
    require(
        sorted(state.ended) == sorted(lease.lease_id for lease in state.leases.values() if lease.ended),
        "the list of ended leases is off",
    )


def _check_accounts(state: State) -> None:
    """What every account holds, and what is counted over all leases, recounted."""
    held: dict[tuple[str, str], list[int]] = {}
    priorities: Counter[int] = Counter()
    movable = 0
    ending: set[str] = set()
    for lease in state.leases.values():
        parts = parts_of(lease.holding)
        priorities[lease.request.priority] += len(parts)
        movable += len(parts) if lease.request.movable else 0
        if lease.gives_back:
            ending.add(lease.lease_id)
        keys = [
            ("t", lease.request.tenant),
            *(("q", name) for name in state.tenancy.path(queue_of(state.tenancy, lease))),
            *((tree.kind, tree.name) for tree in state.tenancy.chain(lease.request.tenant, lease.request.queue).trees),
        ]
        for key in keys:
            sums = held.setdefault(key, [0, 0, 0])
            for _, share_milli, memory_bytes in parts:
                sums[0] += share_milli
                sums[1] += memory_bytes
                sums[2] += 1
    for key, account in state.tenancy.accounts.items():
        share, memory, slices, by_model = account.held()
        require([share, memory, slices] == held.pop(key, [0, 0, 0]), f"{account.label}: what it holds is miscounted")
        require(sum(row[0] for row in by_model.values()) == share, f"{account.label}: its models do not add up")
    require(not any(any(sums) for sums in held.values()), f"nobody counts what {sorted(held)} hold")
    require(+priorities == Counter(state.holding_by_priority), "slices by priority are miscounted")
    require(movable == state.movable_slices, "slices of movable leases are miscounted")
    require(ending == set(state.ending), "the list of ending leases is off")
    elastic = {
        lease.lease_id
        for lease in state.leases.values()
        if is_elastic(lease.request) and lease.current and not lease.end_reason
    }
    require(elastic == set(state.elastic), "the list of elastic leases is off")


def _check_guarantees(state: State) -> None:
    """What counts against every guarantee, in the order in which it covers leases."""
    ranked: dict[tuple[str, str], list[tuple[tuple[int, int], str, tuple[object, ...]]]] = {}
    coming: dict[tuple[str, str], list[tuple[tuple[int, int], str, tuple[object, ...]]]] = {}
    for lease in state.leases.values():
        hold = state.holds.get(lease.lease_id)
        for account in state.tenancy.chain(lease.request.tenant, lease.request.queue).guaranteed:
            key = (account.kind, account.name)
            if lease.holding:
                parts = tuple(parts_of(core_of(lease)))
                ranked.setdefault(key, []).append((lease.seniority, lease.lease_id, parts))
            is_coming = hold is not None and hold.kind is HoldKind.PREEMPTION
            if hold is not None and is_coming and all(map(state.inventory.has_device, hold.device_uuids)):
                parts = tuple(parts_of_placement(state.inventory, hold.placement))
                coming.setdefault(key, []).append((lease.seniority, lease.lease_id, parts))
    for key, account in state.tenancy.accounts.items():
        for kept, right in ((account.ranked, ranked), (account.coming, coming)):
            expected = [entry[1:] for entry in sorted(right.get(key, []))]
            require(list(kept) == expected, f"{account.label}: what its guarantee covers is off")


def _check_lease(lease: Lease) -> None:
    name = lease.lease_id
    require(not (lease.request.placed and lease.requeues), f"{name} went back to its queue, but was put on a place")
    require(not (lease.ended and lease.holding), f"{name} has ended and holds capacity")
    require(
        all(piece.lease_epoch <= lease.lease_epoch for piece in lease.slices),
        f"{name}: a slice of the future",
    )
    ids = [piece.slice_id for piece in lease.slices]
    require(len(ids) == len(set(ids)), f"{name}: the same slice twice")
    require(not lease.ending or bool(lease.holding), f"{name} is ending but holds nothing")
    current = lease.current
    demand = lease.request.demand
    if current and not lease.end_reason:
        least, _, most = bounds_of(lease.request)
        require(
            least * demand.count <= len(current) <= most * demand.count and not len(current) % demand.count,
            f"{name}: {len(current)} slices, not {least} to {most} members of {demand.count}",
        )
    made = [piece for piece in lease.slices if piece.lease_epoch == lease.lease_epoch]
    require(len(made) <= lease.slices_made or not lease.shape, f"{name}: a slice that was never made")
    for member in {piece.member for piece in made}:
        pieces = [piece.plan for piece in made if piece.member == member]
        require(len({plan.node_id for plan in pieces}) <= 1, f"{name}: member {member} spans nodes")
        require(len({plan.device_uuid for plan in pieces}) == len(pieces), f"{name}: two slices on one device")


def _check_maintenance(state: State) -> None:
    """Every node is closed as the windows over it have it, and open otherwise."""
    closed: set[str] = set()
    for node_id, node in state.nodes.items():
        require(node.closure == closure_of(state.windows, node.spec), f"{node_id} is closed, or open, for no reason")
        require(
            state.inventory.node(node_id).grantable == node.grantable, f"{node_id}: books and inventory differ on it"
        )
        if node.open and node.closure is not None:
            closed.add(node_id)
    require(closed == set(state.closed), "the index of nodes that windows close is off")


def _check_holds(state: State) -> None:
    """Every hold belongs to somebody who waits, has its devices to itself, and its readiness is known."""
    kept: dict[str, str] = {}
    for owner, hold in state.holds.items():
        lease = state.leases.get(owner)
        require(
            lease is not None and lease.waiting and not lease.ended, f"the hold for {owner} is for nobody who waits"
        )
        for uuid in hold.device_uuids:
            require(uuid not in kept, f"{uuid} is kept for two")
            kept[uuid] = owner
        ready = is_complete(state.leases, state.inventory, hold)
        require(ready == (owner in state.ready_holds), f"the hold for {owner}: readiness is off")
    require(kept == state.hold_of_device, "the index of kept devices is off")
    for node in state.nodes.values():
        kept |= withheld(node)
    for uuid in state.devices:
        require(state.inventory.device(uuid).withheld_for == kept.get(uuid, ""), f"{uuid} is kept for the wrong one")


def _check_health(state: State) -> None:
    """Devices stand as the incidents that cover them have it; agents have the orders of those that wait for them."""
    covered: dict[str, int] = {}
    out: Counter[tuple[str, str]] = Counter()
    repairing: Counter[tuple[str, str]] = Counter()
    orders: dict[str, set[CareOrder]] = {node_id: set() for node_id in state.nodes}
    for number, incident in state.health.incidents.items():
        require(incident.state is not Standing.HEALTHY and incident.units, f"incident {number} is about nothing")
        require(incident.node_id in state.nodes, f"incident {number} is about a node that is gone")
        for unit in incident.units:
            require(unit not in covered, f"{unit} is in two incidents")
            covered[unit] = number
        key = (incident.pool, incident.model)
        out[key] += len(incident.units) if incident.state in OUT else 0
        repairing[key] += len(incident.units) if incident.state in ORDERED else 0
        order = order_of(incident)
        if order is not None:
            orders[incident.node_id].add(order)
    require(covered == state.health.of_unit, "the index of units is off")
    require(+out == state.health.out, "cards out of service are miscounted")
    require(+repairing == state.health.under_repair, "cards under repair are miscounted")
    for node_id, node in state.nodes.items():
        require(set(node.care) == orders[node_id], f"{node_id}: its orders are off")
    for uuid, device in state.devices.items():
        require((device.standing, device.incident) == standing_of(state, uuid), f"{uuid} stands for no reason")
        record = state.inventory.device_record(uuid)
        require(record.healthy == device.usable, f"{uuid}: books and inventory differ on it")
        require(record.admits == admits_of(state, uuid), f"{uuid} admits what it should not, or the other way round")


def _check_loans(state: State) -> None:
    """What is borrowed is part of a slice that is held, on the same device, and never more than that."""
    borrowers: dict[str, set[str]] = {}
    lent: dict[str, list[int]] = {}
    for lease in state.leases.values():
        for piece in lease.holding:
            if not piece.plan.lender:
                continue
            lender = state.leases[lease_id_of(piece.plan.lender)].find(piece.plan.lender)
            require(lender is not None and lender.holds_capacity, f"{piece.slice_id} borrows of nobody")
            assert lender is not None
            require(lender.plan.device_uuid == piece.plan.device_uuid, f"{piece.slice_id} borrows of another device")
            borrowers.setdefault(lender.slice_id, set()).add(piece.slice_id)
            sums = lent.setdefault(lender.slice_id, [lender.plan.share_milli, lender.plan.memory_bytes])
            sums[0] -= piece.plan.share_milli
            sums[1] -= piece.plan.memory_bytes if piece.plan.lender_memory else 0
    require(all(min(sums) >= 0 for sums in lent.values()), "more is borrowed than was lent")
    kept = {lender: set(others) for lender, others in state.borrowers.items()}
    require(kept == borrowers, "the list of those who borrow is off")
    lenders = {
        lease.lease_id for lease in state.leases.values() if lease.use.lent and not lease.ended and not lease.ending
    }
    require(lenders == set(state.lenders), "the list of lenders is off")


def _check_ledger(state: State) -> None:
    """Entries are numbered without a gap in time, and what is being charged began when it should."""
    for entry in state.ledger.entries:
        require(entry.from_ms <= entry.to_ms, f"entry {entry.number} ends before it begins")
    numbers = [entry.number for entry in state.ledger.entries]
    require(numbers == sorted(set(numbers)), "entries are out of order")
    for lease in state.leases.values():
        for piece in lease.slices:
            agentless_grant = piece.state is SliceState.GRANTED and piece.billing
            charged = piece.billing and (piece.state in CHARGED or agentless_grant)
            require(charged == bool(piece.billed_from_ms), f"{piece.slice_id}: charged, or not, in the wrong state")


def _check_windows_of_quotas(state: State) -> None:
    """Of every quota with windows, and of no other, it is known which is in force."""
    tenancy = state.tenancy
    quotas = {("t", name): tenant.spec.quota for name, tenant in tenancy.tenants.items()}
    quotas |= {("q", name): queue.spec.quota for name, queue in tenancy.queues.items()}
    with_windows = {key for key, quota in quotas.items() if quota.windows}
    require(with_windows == set(tenancy.in_force), "what is in force of quotas with windows is off")
    for key, item in tenancy.in_force.items():
        require(key == (item.kind, item.name), f"{key}: another's windows")
        require(-1 <= item.window < len(quotas[key].windows), f"{key}: window {item.window} does not exist")
    edge_ms = min((item.until_ms for item in tenancy.in_force.values() if item.until_ms), default=0)
    require(edge_ms == tenancy.edge_ms, "the next edge of a quota's window is off")


def _check_capacity(state: State) -> None:
    """No node is ordered twice at a time, and one that is being taken away holds nothing new."""
    books = state.supply
    names = [(order.way, order.node_name) for order in books.orders.values()]
    require(len(names) == len(set(names)), "a node is ordered twice")
    for order in books.orders.values():
        require(order.open, f"{order.order_id} is over, and still open")
        require(order.number < books.next_order, f"{order.order_id} has a number that is given again")
        require(order.node_name in books.slots, f"{order.order_id}: nothing is known of {order.node_name}")


SUBJECTS: tuple[Callable[[State], None], ...] = (
    _check_maintenance,
    _check_holds,
    _check_health,
    _check_loans,
    _check_ledger,
    _check_windows_of_quotas,
    _check_capacity,
)
