"""How declarations of pools, tenants and queues change the State."""

from __future__ import annotations

from aliquot.coordinator.core.books.tenancy.accounts import Average
from aliquot.coordinator.core.books.tenancy.facts import (
    OffencesForgotten,
    PoolApplied,
    PoolRemoved,
    QueueApplied,
    QueueRemoved,
    QuotasInForce,
    TenantApplied,
    TenantRemoved,
)
from aliquot.coordinator.core.books.tenancy.in_force import InForce
from aliquot.coordinator.core.books.tenancy.offences import KEPT, counted_for_ms, policy_of
from aliquot.coordinator.core.books.tenancy.specs import OverLimitAction, Pool, Queue, Tenant
from aliquot.coordinator.core.evolve import saving
from aliquot.coordinator.core.evolve.counting import recount_all
from aliquot.coordinator.core.evolve.saving import Saved, Subject
from aliquot.coordinator.core.queueing import WaitingLines
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due


def _pool_applied(state: State, fact: PoolApplied) -> None:
    state.tenancy.pools[fact.spec.name] = Pool(fact.spec, fact.version)
    redeclared(state)


def _tenant_applied(state: State, fact: TenantApplied) -> None:
    state.tenancy.accrue(fact.at_ms)
    state.tenancy.tenants[fact.spec.name] = Tenant(fact.spec, fact.version)
    state.tenancy.in_force.pop(("t", fact.spec.name), None)
    redeclared(state)


def _queue_applied(state: State, fact: QueueApplied) -> None:
    state.tenancy.accrue(fact.at_ms)
    state.tenancy.queues[fact.spec.name] = Queue(fact.spec, fact.version)
    state.tenancy.in_force.pop(("q", fact.spec.name), None)
    redeclared(state)


def _pool_removed(state: State, fact: PoolRemoved) -> None:
    del state.tenancy.pools[fact.name]
    redeclared(state)


def _tenant_removed(state: State, fact: TenantRemoved) -> None:
    state.tenancy.accrue(fact.at_ms)
    del state.tenancy.tenants[fact.name]
    state.tenancy.in_force.pop(("t", fact.name), None)
    redeclared(state)


def _queue_removed(state: State, fact: QueueRemoved) -> None:
    state.tenancy.accrue(fact.at_ms)
    del state.tenancy.queues[fact.name]
    state.tenancy.in_force.pop(("q", fact.name), None)
    redeclared(state)


def _quotas_in_force(state: State, fact: QuotasInForce) -> None:
    edge_ms = state.tenancy.edge_ms
    if state.tenancy.put_in_force(fact.items):
        _watch_next(state, edge_ms)
        state.free_capacity()
        return
    state.tenancy.accrue(fact.at_ms)
    state.tenancy.set_in_force(fact.items)
    redeclared(state)


def redeclared(state: State) -> None:
    """Queues may have moved and orders changed: count and line up anew. Rare, and O(leases).

    The caller has let averages accrue before, with what was held and the half-life until now.
    """
    edge_ms = state.tenancy.edge_ms
    state.tenancy.redeclared()
    _watch_next(state, edge_ms)
    for tenant in state.tenancy.offences:
        watch_offences(state, tenant)
    recount_all(state)
    line_up_anew(state)
    state.free_capacity()


def _watch_next(state: State, edge_ms: int) -> None:
    """Look at the next edge instead of this one."""
    if state.tenancy.edge_ms != edge_ms:
        state.timers.drop(edge_ms, Due.QUOTA, "")
        watch_quotas(state)


def watch_quotas(state: State) -> None:
    """Remember when the next window of a quota opens or closes."""
    if state.tenancy.edge_ms:
        state.timers.add(state.tenancy.edge_ms, Due.QUOTA, "")


def offended(state: State, tenant: str, queue: str, at_ms: int) -> None:
    """A lease ends as `OVER_LIMIT`: it is held against its tenant where a policy says so."""
    if policy_of(state.tenancy, tenant, queue).action is not OverLimitAction.NONE:
        state.tenancy.set_offences(tenant, (*state.tenancy.offences.get(tenant, ()), at_ms)[-KEPT:])
        watch_offences(state, tenant)


def watch_offences(state: State, tenant: str) -> None:
    """Remember to look at this tenant when one of its offences stops counting."""
    for at_ms in state.tenancy.offences[tenant]:
        for for_ms in counted_for_ms(state.tenancy, tenant) or (0,):
            state.timers.add(at_ms + for_ms, Due.OFFENCE, tenant)


def _offences_forgotten(state: State, fact: OffencesForgotten) -> None:
    offences = state.tenancy.offences.get(fact.tenant, ())
    state.tenancy.set_offences(fact.tenant, tuple(at_ms for at_ms in offences if at_ms > fact.up_to_ms))
    state.free_capacity()


def line_up_anew(state: State) -> None:
    """Put everybody in line anew."""
    waiting = [state.leases[lease_id] for lease_id in state.lines.ids()]
    lines = WaitingLines(state.tenancy, state.lines.served)
    for lease in waiting:
        place = state.lines.place_of(lease.lease_id)
        lines.add(lease, resting=place is not None and place.resting)
    state.lines = lines  # a pass along the old ones is over


def _index(state: State) -> None:
    """Who is below whom, and when offences and windows of quotas change."""
    state.tenancy.redeclared()
    for tenant in state.tenancy.offences:
        watch_offences(state, tenant)
    watch_quotas(state)


SUBJECT = Subject(
    name="tenancy",
    apply=by_kind(
        _offences_forgotten,
        _quotas_in_force,
        _pool_applied,
        _tenant_applied,
        _queue_applied,
        _pool_removed,
        _tenant_removed,
        _queue_removed,
    ),
    saves=(
        saving.records("pools", Pool, "tenancy.pools", key="spec.name"),
        saving.records("tenants", Tenant, "tenancy.tenants", key="spec.name"),
        saving.records("queues", Queue, "tenancy.queues", key="spec.name"),
        saving.records("in_force", InForce, "tenancy.in_force", key="kind name"),
        saving.pairs("offences", tuple[int, ...], "tenancy.offences"),
        Saved(
            "averages",
            tuple[Average, ...],
            lambda state: state.tenancy.averages(state.now_ms),
            lambda state, saved: state.tenancy.set_averages(saved),
        ),
    ),
    index=_index,
)
