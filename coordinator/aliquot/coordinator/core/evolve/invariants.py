"""What must be true between any two groups of facts. Tests and simulation check it after every step."""

from __future__ import annotations

from collections import Counter

from aliquot.coordinator.core.books.elastic import bounds_of, core_of, is_elastic
from aliquot.coordinator.core.books.holds import HoldKind
from aliquot.coordinator.core.books.leases.records import Lease, parts_of, queue_of
from aliquot.coordinator.core.books.tenancy.limits import parts_of_placement
from aliquot.coordinator.core.evolve import SUBJECTS
from aliquot.coordinator.core.evolve.subject import require
from aliquot.coordinator.core.state import State


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
    for subject in SUBJECTS:
        if subject.check is not None:
            subject.check(state)
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
