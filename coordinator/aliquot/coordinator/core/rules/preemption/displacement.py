"""A preemption as a whole: the victims, and the placement that they make room for, tried before any notice is given.

Members are put one after another where they cost least; then the engine itself places the demand on trial, without the
victims, by its own rules (links, host memory, affinity). Only what it finds is carried out, and victims that it does
not need are spared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, islice, product
from typing import NamedTuple

import msgspec

from aliquot.common.latest import Latest
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.limits import parts_of_placement
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import chain_of, forbidden, guarantee_scale, is_entitled
from aliquot.coordinator.core.rules.preemption.choosing import VictimChoice, VictimChooser
from aliquot.coordinator.core.rules.preemption.leaving import gone_by, take_off
from aliquot.coordinator.core.rules.preemption.nodecosts import Look, NodeCosts, Question
from aliquot.coordinator.core.rules.preemption.nodeview import NodeViews
from aliquot.coordinator.core.rules.preemption.search import Need
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS, Eligibility
from aliquot.coordinator.core.values.types import Demand, Placement

CACHES_MAX = 64
TRIALS_MAX = 3
WAYS_MAX = 3
"""To stay within disruption budgets on the nodes of one choice: a look at these nodes each."""


class Displacement(NamedTuple):
    """Who ends, and what starts instead."""

    victims: tuple[str, ...]
    placement: Placement
    reclaim: bool
    shortened: tuple[str, ...] = ()
    """Borrowers that are ending already, with a longer notice than an entitled request has to wait."""


class NoDisplacement(NamedTuple):
    """Nothing can be preempted for this now."""

    again_ms: int
    """When asking again may help, because a lease will have run its minimum; `NEVER_MS`: not for that reason."""


class Preemption:
    """Finds preemptions on one State. What it knows of each node between questions is a cache."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._views = NodeViews(known)
        self._caches: Latest[tuple[object, ...], dict[str, Look]] = Latest(CACHES_MAX)

    def may(self, lease: Lease) -> bool:
        """Whether it is worth asking: it is entitled, or somebody of lower priority holds something."""
        return is_entitled(self._known, lease) or by_priority(self._known, lease)

    def find(
        self, lease: Lease, demand: Demand, now_ms: int, giving_way: frozenset[str] = frozenset()
    ) -> Displacement | NoDisplacement:
        """The cheapest preemption that lets `demand` start for this waiting lease. Changes nothing.

        Devices kept for the leases in `giving_way` count as free.
        """
        known = self._known
        if not demand.count:
            return NoDisplacement(NEVER_MS)
        reclaim = is_entitled(known, lease)
        priority = lease.request.priority if by_priority(known, lease) else -NEVER_MS
        eligible = Eligibility(
            known,
            priority=priority,
            preemptor=lease.lease_id,
            reclaim=reclaim,
            scale=guarantee_scale(known) if known.tenancy.guarantees else 0,
            now_ms=now_ms,
        )
        again_ms = NEVER_MS
        for shape in known.engine.matcher.shapes(demand):
            owners = giving_way | {lease.lease_id}
            need = Need(shape, frozenset(demand.avoid_device_uuids), owners, demand.admitted_on, {})
            question = Question(known, self._views, need, lease, demand, shape, eligible)
            found = _answer(question, NodeCosts(question, self._cache_for(need, eligible)))
            if isinstance(found, Displacement):
                return found
            again_ms = min(again_ms, found.again_ms)
        return NoDisplacement(again_ms)

    def _cache_for(self, need: Need, eligible: Eligibility) -> dict[str, Look]:
        """What is known of each node for equal questions."""
        known = self._known
        versions = (known.tenancy.guaranteed_version, guarantee_scale(known)) if known.tenancy.guarantees else (0, 0)
        owners = need.owners if any(owner in known.holds for owner in need.owners) else ()
        key = (need.demand, need.avoid, owners, need.admitted_on, eligible.priority, eligible.reclaim, *versions)
        cache = self._caches.get(key, {})
        self._caches[key] = cache  # as the one that was asked for last
        if len(cache) > len(known.nodes):
            for node_id in [node_id for node_id in cache if node_id not in known.nodes]:
                del cache[node_id]
        return cache


def by_priority(known: Known, lease: Lease) -> bool:
    """Whether its queue lets it preempt by priority, and somebody of lower priority holds something."""
    if not known.holding_by_priority or min(known.holding_by_priority) >= lease.request.priority:
        return False
    return known.tenancy.queue_spec(known.tenancy.queue_of(lease.request.tenant, lease.request.queue)).preempts


def _answer(question: Question, costs: NodeCosts) -> Displacement | NoDisplacement:
    """The best choice that the engine agrees to."""
    chooser = VictimChooser(question)
    banned: set[str] = set()
    undisturbed_ms = NEVER_MS
    untried: list[VictimChoice] = []
    for number in range(TRIALS_MAX):
        choice = chooser.best(costs.but_for(banned))
        if choice is not None:
            banned.update(choice.node_ids)  # by the engine's own rules it may not fit: then look elsewhere
            until_ms = _undisturbed_until_ms(question, choice.victims)
            if until_ms:
                undisturbed_ms = min(undisturbed_ms, until_ms)
            within = _within_budgets(question, choice) if until_ms else choice
            untried += [within] if within is not None else []
            if until_ms and number + 1 < TRIALS_MAX:
                continue  # who else ends there may be dearer than other nodes
        untried.sort(key=lambda found: chooser.key(found.victims))
        for found in untried:
            plan = _tried_out(question, chooser, found)
            if plan is not None:
                return plan
        untried.clear()
        if choice is None:
            break
    return NoDisplacement(min(costs.again_ms, undisturbed_ms))


def _within_budgets(question: Question, choice: VictimChoice) -> VictimChoice | None:
    """What else makes room on the same nodes, where a choice is more at once than disruption budgets allow.

    Of each tenant whose budget it exceeds, as many leases as the budget allows may end, in several ways: those that
    were chosen come first.
    """
    eligible, leases = question.eligible, question.known.leases
    chosen = Counter(leases[lease_id].request.tenant for lease_id in choice.victims)
    exceeded = {tenant for tenant, number in chosen.items() if eligible.undisturbed_until_ms(tenant, number)}
    of_tenant: dict[str, dict[str, None]] = {tenant: {} for tenant in sorted(exceeded)}
    there = (h.lease_id for node in choice.node_ids for d in question.views.of(node).devices for h in d.holdings)
    for lease_id in (*choice.victims, *there):
        if leases[lease_id].request.tenant in exceeded and eligible.endable_ms(lease_id) <= eligible.now_ms:
            of_tenant[leases[lease_id].request.tenant][lease_id] = None
    ways = [combinations(ids, max(0, eligible.disruptions_left(tenant))) for tenant, ids in of_tenant.items()]
    best: tuple[tuple[int, int], VictimChoice] | None = None
    for kept in islice(product(*ways), WAYS_MAX):
        other = replace(question, eligible=eligible.but_only(dict(zip(of_tenant, kept, strict=True))))
        chooser = VictimChooser(other)
        found = chooser.best(NodeCosts(other, {}).among(choice.node_ids))
        if found is not None and (best is None or chooser.key(found.victims) < best[0]):
            best = chooser.key(found.victims), found
            if len(found.victims) == len(choice.victims):
                break  # fewer there are not
    return best[1] if best is not None else None


def _tried_out(question: Question, chooser: VictimChooser, choice: VictimChoice) -> Displacement | None:
    """Ask the engine, without the victims; spare those that its answer does not need."""
    known, lease, eligible = question.known, question.lease, question.eligible
    kept = [uuid for owner in question.need.owners if owner in known.holds for uuid in known.holds[owner].device_uuids]
    demand = msgspec.structs.replace(
        question.demand,
        models=question.shape.models,
        vendor=question.shape.vendor,
        vendors=(),
        node_ids=tuple(choice.node_ids),
    )
    with known.inventory.trial() as inventory:
        inventory.open_devices(kept)
        take_off(known, inventory, gone_by(known, choice.node_ids, choice.victims, eligible.soon_ms))
        placement = known.engine.place(demand)
    if placement is None:
        return None
    chain = chain_of(known, lease.request)
    if forbidden(known, lease.request, chain, placement, eligible.now_ms, lease.preempted_at_ms) is not None:
        return None
    by_reclaim = eligible.reclaim and is_entitled(known, lease, parts_of_placement(known.inventory, placement))
    needed = chooser.needed(placement, choice.victims)
    if not by_reclaim and any(not _is_lower(question, lease_id) for lease_id in needed):
        return None
    shortened = tuple(lease_id for lease_id in needed if known.leases[lease_id].end_reason)
    victims = tuple(lease_id for lease_id in needed if lease_id not in shortened)
    return Displacement(victims, placement, by_reclaim, shortened)


def _is_lower(question: Question, lease_id: str) -> bool:
    """Whether this victim could be chosen by priority alone."""
    request = question.known.leases[lease_id].request
    return request.preemptible and request.priority < question.eligible.priority


def _undisturbed_until_ms(question: Question, victims: Iterable[str]) -> int:
    """When the disruption budgets allow to end all of these at once; 0: now."""
    if question.eligible.reclaim:
        return 0
    counts = Counter(question.known.leases[lease_id].request.tenant for lease_id in victims)
    return max((question.eligible.undisturbed_until_ms(*counted) for counted in counts.items()), default=0)
