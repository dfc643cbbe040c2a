"""Derive every index of the State from its books: after a snapshot is loaded, and to check what `evolve` maintains."""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease, Slice
from aliquot.coordinator.core.evolve.access import index as index_access
from aliquot.coordinator.core.evolve.counting import be_patient, recount_all
from aliquot.coordinator.core.evolve.elastic import enlist
from aliquot.coordinator.core.evolve.enrolment import index as index_enrolment
from aliquot.coordinator.core.evolve.health import index as index_health
from aliquot.coordinator.core.evolve.health import refresh_device
from aliquot.coordinator.core.evolve.holds import keep
from aliquot.coordinator.core.evolve.maintenance import watch
from aliquot.coordinator.core.evolve.mig import keep as keep_cuts
from aliquot.coordinator.core.evolve.nodes import note_closure
from aliquot.coordinator.core.evolve.tenancy import watch_offences, watch_quotas
from aliquot.coordinator.core.evolve.use import index as index_use
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.timers import Due


def rebuild_indexes(state: State) -> None:
    """Fill the indexes of a State whose books are set and whose indexes are empty."""
    state.tenancy.redeclared()
    for node_id, node in state.nodes.items():
        state.node_ids_by_name[node.spec.name] = node_id
        state.slice_ids_by_node[node_id] = {}
        state.inventory.put_node(node.spec)
        state.inventory.set_grantable(node_id, node.grantable)
    for window in state.windows.values():
        watch(state, window)
    for lease in state.leases.values():
        if lease.key:
            state.keys[(lease.request.tenant, lease.key)] = lease.lease_id
        if lease.ended:
            continue
        _hold(state, lease)
        _await(state, lease)
    for node in state.nodes.values():
        note_closure(state, node)
        keep_cuts(state, node)
    for hold in state.holds.values():
        keep(state, hold)
    index_health(state)
    for uuid in state.devices:
        refresh_device(state, uuid)
    index_use(state)
    index_access(state)
    index_enrolment(state)
    recount_all(state)
    for tenant in state.tenancy.offences:
        watch_offences(state, tenant)
    watch_quotas(state)
    state.offer_again()


def _hold(state: State, lease: Lease) -> None:
    demand = lease.request.demand
    holding = lease.holding
    if holding:
        state.count_lease(lease, len(holding))
        if lease.gives_back:
            state.ending[lease.lease_id] = None
        if lease.current and not lease.end_reason:
            enlist(state, lease)
    members: dict[tuple[int, int], Slice] = {}
    for piece in holding:
        state.inventory.reserve(piece.plan)
        state.slice_ids_by_node[piece.plan.node_id][piece.slice_id] = None
        members.setdefault((piece.lease_epoch, piece.member), piece)
    for piece in members.values():
        state.inventory.reserve_member(piece.plan.node_id, demand)


def _await(state: State, lease: Lease) -> None:
    if lease.waiting:
        resting = lease.not_before_ms > state.now_ms
        state.lines.add(lease, resting=resting)
        be_patient(state, lease)
        if lease.preempted_at_ms:
            state.since[Due.PREEMPTED].add(lease.preempted_at_ms[0], Due.PREEMPTED, lease.lease_id)
        if resting:
            state.timers.add(lease.not_before_ms, Due.RETRY, lease.lease_id)
        return
    if lease.ending:
        return
    if lease.request.time_limit_ms:
        state.timers.add(lease.granted_ms + lease.request.time_limit_ms, Due.TIME_LIMIT, lease.lease_id)
    for piece in lease.slices:
        if piece.shed and piece.deadline_ms:
            state.timers.add(piece.deadline_ms, Due.SHRINK, lease.lease_id)
    if lease.lease_id in state.elastic:
        state.since[Due.CONFIRM].add(lease.resized_ms, Due.CONFIRM, lease.lease_id)
    if not lease.active_ms:
        state.since[Due.CONFIRM].add(lease.granted_ms, Due.CONFIRM, lease.lease_id)
