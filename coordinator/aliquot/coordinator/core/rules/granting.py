"""What may this request have now? The question behind Allocate, the pass along the lines, and Explain."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from aliquot.common.catalog import covers, kind_of
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, SliceGrant
from aliquot.coordinator.core.books.leases.records import Lease, slice_id_of
from aliquot.coordinator.core.books.tenancy import ceilings, offences
from aliquot.coordinator.core.books.tenancy.accounts import Chain
from aliquot.coordinator.core.books.tenancy.limits import (
    OverLimit,
    bound_above,
    capacity_kept,
    covered,
    entitled,
    least_parts,
    over_limit,
    parts_of_placement,
    promised,
    scale_of,
)
from aliquot.coordinator.core.books.tenancy.owning import check_owner
from aliquot.coordinator.core.books.tenancy.ranking import Part
from aliquot.coordinator.core.books.tenancy.specs import Amount, OverLimitAction
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.matching import either, is_part
from aliquot.coordinator.core.placement.policies import BY_WORKLOAD
from aliquot.coordinator.core.rules.closing import place_before
from aliquot.coordinator.core.values.errors import (
    InvalidField,
    QuotaExceeded,
    TenantHeldBack,
    TenantNotFound,
)
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, Placement, RequestSpec

_MODELS_TRIED_MAX = 8
WORKLOAD_LABEL = "workload-type"
WORKLOADS = {"training": "binpack", "inference": "spread", "serving": "spread"}
"""By which policy who says this of itself is placed where its queue or pool goes by that; others by the usual one."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A placement within all limits, or what stands against it."""

    placement: Placement | None = None
    over: OverLimit | None = None
    """A limit, a budget or a bound forbids it; None with no placement: there is no capacity."""


def chain_of(known: Known, request: RequestSpec) -> Chain:
    """The accounts a request would count against."""
    chains = known.memory.chains.at(known.tenancy.chains_version)
    key = request.tenant, request.queue
    chain = chains.get(key)
    if chain is None:
        chain = chains[key] = known.tenancy.chain(*key)
    return chain


def least_held(known: Known, demand: Demand) -> list[Part]:
    """The least that a demand will hold, as accounts count it."""
    return least_parts(known.inventory, demand, known.engine.matcher.matches(demand))


def offer(
    known: Known,
    request: RequestSpec,
    demand: Demand,
    now_ms: int,
    *,
    preempted_at_ms: tuple[int, ...] = (),
) -> Offer:
    """The best placement that every limit allows. Changes nothing."""
    chain = chain_of(known, request)
    over = suspended(known, request, now_ms)
    if over is None and chain.limited:
        over = over_limit(chain, least_held(known, demand))
    if over is not None:
        return Offer(over=over)
    full = demand in known.memory.known_full
    if full and not known.closed:
        return Offer()
    left = [demand]
    for _ in range(_MODELS_TRIED_MAX):
        tried = left.pop()
        placement = None if full else known.engine.place(tried)
        if placement is None:
            if tried is demand and not full:
                known.memory.known_full.add(demand)
            placement = place_before(known, request, tried, now_ms) if known.closed else None
        if placement is not None:
            over = forbidden(known, request, chain, placement, now_ms, preempted_at_ms)
            if over is None:
                return Offer(placement)
            left += _narrowed(known, tried, over)
        if not left:
            break
    return Offer(over=over)


def offer_before(
    known: Known,
    request: RequestSpec,
    demand: Demand,
    now_ms: int,
    *,
    preempted_at_ms: tuple[int, ...] = (),
) -> Placement | None:
    """The best placement on nodes that close, for a request that ends in time, that every limit allows."""
    placement = place_before(known, request, demand, now_ms)
    if placement is None or suspended(known, request, now_ms) is not None:
        return None
    over = forbidden(known, request, chain_of(known, request), placement, now_ms, preempted_at_ms)
    return placement if over is None else None


def granted(lease_id: str, lease_epoch: int, placement: Placement, now_ms: int) -> LeaseGranted:
    """The fact that holds a placement's capacity for a lease."""
    slices: list[SliceGrant] = []
    for member, plans in enumerate(placement.members):
        for plan in plans:
            slices.append(SliceGrant(slice_id_of(lease_id, lease_epoch, len(slices)), member, plan))
    return LeaseGranted(
        at_ms=now_ms, lease_id=lease_id, lease_epoch=lease_epoch, slices=tuple(slices), note=placement.note
    )


def forbidden(
    known: Known,
    request: RequestSpec,
    chain: Chain,
    placement: Placement,
    now_ms: int,
    preempted_at_ms: tuple[int, ...],
) -> OverLimit | None:
    """What forbids this very placement, or None."""
    pools = limited_pools(known)
    recent = recent_preemptions(known, preempted_at_ms, now_ms)
    if not chain.limited and not pools and recent < known.config.preemptions_max:
        return None
    parts = parts_of_placement(known.inventory, placement)
    over = over_limit(chain, parts)
    if over is not None:
        return over
    if recent >= known.config.preemptions_max and not entitled(chain, parts, guarantee_scale(known)):
        return OverLimit(
            chain.tenant.label,
            f"it was preempted {recent} times within {known.config.preemption_period_ms // 60_000} minutes and waits "
            "until it can stay",
        )
    for pool in pools:
        over = _over_pool(known, pool, placement)
        if over is not None:
            return over
    return None


def exhausted(known: Known, tenant: str, now_ms: int) -> OverLimit | None:
    """Whether the tenant's budget for this period is used up."""
    meter = known.meters.get(tenant)
    if meter is None or meter.permille(now_ms) < 1000:
        return None
    return OverLimit(
        f"tenant {tenant}",
        f"the budget of tenant {tenant} for this {meter.budget.period} is used up; the next one begins in "
        f"{(meter.period_end_ms(now_ms) - now_ms) // 1000} s",
    )


def suspended(known: Known, request: RequestSpec, now_ms: int) -> OverLimit | None:
    """Whether nothing is granted to the request's tenant for now: its budget is used up, or it is held back."""
    over = exhausted(known, request.tenant, now_ms)
    if over is not None or not known.tenancy.offences:
        return over
    held = held_to(known, request, now_ms)
    if held is None or held.policy.action is not OverLimitAction.REFUSE:
        return None
    return OverLimit(f"tenant {request.tenant}", held.story(now_ms), until_ms=held.until_ms)


def held_to(known: Known, request: RequestSpec, now_ms: int) -> offences.Held | None:
    """What its tenant is held to for this request because of leases that ended as `OVER_LIMIT`; None: nothing."""
    return offences.held(known.tenancy, request.tenant, request.queue, now_ms)


def refuse_held_back(known: Known, request: RequestSpec, now_ms: int) -> None:
    """Raises TenantHeldBack for a new request of a tenant that is granted nothing for now."""
    held = held_to(known, request, now_ms)
    if held is not None and held.policy.action is OverLimitAction.REFUSE:
        raise TenantHeldBack(held.story(now_ms), held.until_ms)


def sterner(known: Known, request: RequestSpec, demand: Demand, now_ms: int) -> Demand:
    """The demand as its tenant is held to it now: for parts of devices, with a stronger tier."""
    if not known.tenancy.offences:
        return demand
    held = held_to(known, request, now_ms)
    if held is None or held.policy.action is not OverLimitAction.STRONGER_TIER or not is_part(demand):
        return demand
    if demand.min_tier >= held.policy.min_tier:
        return demand
    return msgspec.structs.replace(demand, min_tier=held.policy.min_tier)


def recent_preemptions(known: Known, preempted_at_ms: tuple[int, ...], now_ms: int) -> int:
    """How often a lease was preempted within `preemption_period_ms`."""
    since_ms = now_ms - known.config.preemption_period_ms
    return sum(at_ms > since_ms for at_ms in preempted_at_ms)


def guarantee_scale(known: Known) -> int:
    """How much of every guarantee the pool can keep now, in millionths."""
    key = (known.capacity_version, known.tenancy.version)
    if known.memory.scale_key != key:
        known.memory.scale_key = key
        kept = capacity_kept(known.inventory, counted_on(known))
        known.memory.scale = scale_of(promised(known.tenancy), kept)
    return known.memory.scale


def counted_on(known: Known) -> list[str]:
    """The nodes on which promises rest."""
    return [node_id for node_id, node in known.nodes.items() if node.counted_on]


def is_entitled(known: Known, lease: Lease, parts: list[Part] | None = None) -> bool:
    """Whether a guarantee covers what a lease asks for: `parts`, or as far as is known before it is placed.

    An owner's guarantee covers its leases by priority, then by arrival. So younger leases of the same owner that were
    small enough to start first don't use up what an older request is entitled to; they count as borrowing.
    """
    if not known.tenancy.guarantees:
        return False
    chain = chain_of(known, lease.request)
    if not chain.guaranteed:
        return False
    if parts is not None or not lease.lease_id:
        parts = least_held(known, lease.request.demand) if parts is None else parts
        return _is_covered(known, lease, chain, parts)
    version = (known.tenancy.covered_version, known.capacity_version, known.inventory.structure_version)
    found = known.memory.entitled.at(version)
    old = found.get(lease.lease_id)
    if old is None:
        old = found[lease.lease_id] = _is_covered(known, lease, chain, least_held(known, lease.request.demand))
    return old


def _is_covered(known: Known, lease: Lease, chain: Chain, parts: list[Part]) -> bool:
    """Whether a guarantee covers these parts for a lease, after all that it covers earlier."""
    scale, rank = guarantee_scale(known), lease.seniority
    for account in chain.guaranteed:
        # What others will be granted as soon as their victims have gone uses up guarantees like what is held.
        everything = (account, account.coming.sums(but_for=lease.lease_id))
        if covered(account.quota, everything, parts, scale):
            return True
        older = (account.ranked.before(rank), account.coming.before(rank))
        if covered(account.quota, older, parts, scale):
            return True
    return False


def check_access(known: Known, request: RequestSpec) -> RequestSpec:
    """The request with its queue's pool, and by which policy it is placed. Raises for an unknown tenant or queue, and
    for a request above a limit.
    """
    declared = known.memory.declared.at((known.tenancy.version, known.config.strict_tenants))
    allowed = declared.get(request)
    if allowed is None:
        allowed = declared[request] = _as_declared(known, request)
    chain = chain_of(known, allowed)
    if chain.limited:
        over = over_limit(chain, least_held(known, allowed.demand))
        if over is not None and over.for_ever:
            raise QuotaExceeded(
                over.subject, over.detail, "ask for less, or have the limit raised; waiting will not help"
            )
    return allowed


def _as_declared(known: Known, request: RequestSpec) -> RequestSpec:
    """The same as far as it depends on declarations alone."""
    tenancy = known.tenancy
    name = tenancy.queue_of(request.tenant, request.queue)
    check_owner(tenancy, request.tenant, request.queue, strict=known.config.strict_tenants)
    if request.tenant not in tenancy.tenants and (above := bound_above(tenancy, request.tenant)):
        raise TenantNotFound(
            f"there is no tenant {request.tenant!r}, and what tenant {above} above it may use is limited",
            hint=f"ask as {above}, or have an administrator declare {request.tenant}",
        )
    demand, placement = request.demand, ""
    for queue in tenancy.path(name):
        spec = tenancy.queue_spec(queue)
        pool, placement = spec.pool, placement or spec.placement
        if pool and demand.pool not in ("", pool):
            raise InvalidField("pool", f"queue {name} is served by pool {pool}, not by {demand.pool}")
        if pool:
            demand = msgspec.structs.replace(demand, pool=pool)
    if not placement and demand.pool in tenancy.pools:
        placement = tenancy.pools[demand.pool].spec.placement
    if placement == BY_WORKLOAD:
        placement = WORKLOADS.get(dict(request.labels).get(WORKLOAD_LABEL, ""), "")
    if placement:
        demand = msgspec.structs.replace(demand, placement=placement)
    if tenancy.ceilings:
        ceilings.check_priority(tenancy.tenants, request)
    return request if demand is request.demand else msgspec.structs.replace(request, demand=demand)


def limited_pools(known: Known) -> list[str]:
    """Pools of which a part is kept free."""
    return [
        name
        for name, pool in known.tenancy.pools.items()
        if pool.spec.limit.share_milli >= 0 or pool.spec.limit.memory_bytes >= 0
    ]


def _over_pool(known: Known, pool: str, placement: Placement) -> OverLimit | None:
    share = memory = 0
    for member in placement.members:
        for plan in member:
            if known.inventory.node(plan.node_id).spec.pool == pool:
                share += plan.own_share_milli
                memory += plan.own_memory_bytes
    if not share:
        return None
    for (name, _), totals in known.inventory.totals().items():
        if name == pool:
            share += totals.share_used_milli
            memory += totals.memory_used_bytes
    limit = known.tenancy.pools[pool].spec.limit
    if 0 <= limit.share_milli < share or 0 <= limit.memory_bytes < memory:
        return OverLimit(f"pool {pool}", f"pool {pool} keeps some of its devices free: its limit is reached")
    return None


def _narrowed(known: Known, demand: Demand, over: OverLimit) -> list[Demand]:
    """What to try instead of a place that a limit forbids, the last one first. Where either will do: undivided devices
    alone, then MIG instances alone, for each may hold less than the other; else what is not of the limited kind.
    """
    without = _without(known, demand, over.model)
    narrowed = [without] if without is not None else []
    if either(demand):
        alone = msgspec.structs.replace(demand, or_mig=False)
        narrowed += [msgspec.structs.replace(alone, min_tier=Tier.MIG), alone]
    return narrowed


def _without(known: Known, demand: Demand, kind: str) -> Demand | None:
    """The demand, but not on devices of this kind; None where that leaves nothing."""
    if not kind:
        return None
    vendors = {c.model: c.vendor for c in known.inventory.classes}
    alternatives = demand.models or (tuple(sorted(vendors)),)
    others = (
        tuple(name for name in models if not covers(kind, kind_of(name, vendors.get(name, ""))))
        for models in alternatives
    )
    left = tuple(kept for kept in others if kept)
    return msgspec.structs.replace(demand, models=left) if left else None


def whole_pool(known: Known) -> Amount:
    """Capacity of all pools, for comparing parts of it. Never zero."""
    share = memory = 0
    for totals in known.inventory.totals().values():
        share += totals.share_capacity_milli
        memory += totals.memory_capacity_bytes
    return Amount(max(share, WHOLE_SHARE_MILLI), max(memory, 1))
