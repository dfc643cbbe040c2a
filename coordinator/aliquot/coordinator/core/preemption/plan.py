"""A preemption as a whole: the victims, and the placement that they make room for, tried out before anybody is told.

Members are put one after another where they cost least; then the engine itself places the demand on an overlay
without the victims, by its own rules (links, host memory, affinity). Only what it finds is carried out, and whoever
is not needed for what it found is spared.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from aliquot.coordinator.core.granting import (
    chain_of,
    forbidden,
    guarantee_scale,
    is_entitled,
    parts_of_placement,
)
from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.placement.capacity import listed_rows
from aliquot.coordinator.core.preemption.exact import NODES_MAX, SLICES_MAX, cost_of, improve
from aliquot.coordinator.core.preemption.nodeview import NodeView, NodeViews
from aliquot.coordinator.core.preemption.overlay import Overlay
from aliquot.coordinator.core.preemption.search import Need, NodeCost, cost_of_node
from aliquot.coordinator.core.preemption.victims import NEVER_MS, Eligibility
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.types import Demand, Placement

FRESH_NODES_MAX = 16
"""Nodes that one question looks at without knowing anything of them; more only where these do not suffice."""
CACHES_MAX = 64
TRIALS_MAX = 3
NEAR_NODES = 48
"""The choice is made among so many of the cheapest nodes (and twice as many as there are members)."""
SEEDS_MAX = 6
SPARED_MAX = 6


class Plan(NamedTuple):
    """Who ends, and what starts instead."""

    victims: tuple[str, ...]
    placement: Placement
    reclaim: bool
    hurried: tuple[str, ...] = ()
    """Borrowers that are ending already, and have longer to go than whoever is owed a guarantee has to wait."""


class NoPlan(NamedTuple):
    """Nothing can be preempted for this now."""

    again_ms: int
    """When asking again may help, because a lease will have run its minimum; `NEVER_MS`: not for that reason."""


class _Known(NamedTuple):
    version: int
    again_ms: int
    cost: NodeCost | None


_NodeAt = tuple[tuple[int, int], int, str, NodeCost]
"""(cost now, rank, node, cost)."""


class Preemption:
    """Plans preemptions on one State. Keeps what it knows of each node between questions; all of it can be derived
    anew.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self._views = NodeViews(state)
        self._caches: OrderedDict[tuple[object, ...], dict[str, _Known]] = OrderedDict()

    def may(self, lease: Lease) -> bool:
        """Whether it is worth asking: it is owed something, or somebody of lower priority holds something."""
        state = self._state
        if state.tenancy.guarantees and is_entitled(state, lease):
            return True
        return by_priority(state, lease)

    def find(
        self, lease: Lease, demand: Demand, now_ms: int, giving_way: frozenset[str] = frozenset()
    ) -> Plan | NoPlan:
        """The cheapest preemption that lets `demand` start for this waiting lease. Changes nothing.

        Devices kept for the leases in `giving_way` count as free.
        """
        state = self._state
        if not demand.count:
            return NoPlan(NEVER_MS)
        reclaim = is_entitled(state, lease)
        priority = lease.request.priority if by_priority(state, lease) else -NEVER_MS
        eligible = Eligibility(
            state,
            priority=priority,
            preemptor=lease.lease_id,
            reclaim=reclaim,
            scale=guarantee_scale(state) if state.tenancy.guarantees else 0,
            now_ms=now_ms,
        )
        again_ms = NEVER_MS
        for shape in state.engine.matcher.shapes(demand):
            found = _Search(self, lease, demand, shape, eligible, giving_way).run()
            if isinstance(found, Plan):
                return found
            again_ms = min(again_ms, found.again_ms)
        return NoPlan(again_ms)

    def cache_for(self, need: Need, eligible: Eligibility) -> dict[str, _Known]:
        """What is known of each node for this sort of question."""
        state = self._state
        versions = (state.tenancy.guaranteed_version, guarantee_scale(state)) if state.tenancy.guarantees else (0, 0)
        owners = need.owners if any(owner in state.holds for owner in need.owners) else ()
        key = (need.demand, need.avoid, owners, eligible.priority, eligible.reclaim, *versions)
        cache = self._caches.get(key)
        if cache is None:
            cache = self._caches[key] = {}
            if len(self._caches) > CACHES_MAX:
                self._caches.popitem(last=False)
        else:
            self._caches.move_to_end(key)
        return cache

    @property
    def state(self) -> State:
        """What it plans on."""
        return self._state

    @property
    def views(self) -> NodeViews:
        """What sits where."""
        return self._views


def by_priority(state: State, lease: Lease) -> bool:
    """Whether its queue lets it preempt by priority, and somebody of lower priority holds something."""
    if not state.holding_by_priority or min(state.holding_by_priority) >= lease.request.priority:
        return False
    return state.tenancy.queue_spec(state.tenancy.queue_of(lease.request.tenant, lease.request.queue)).preempts


class _Search:
    """One question about one model alternative."""

    def __init__(
        self,
        preemption: Preemption,
        lease: Lease,
        demand: Demand,
        shape: Demand,
        eligible: Eligibility,
        giving_way: frozenset[str],
    ) -> None:
        self._state = preemption.state
        self._views = preemption.views
        self._need = Need(shape, frozenset(demand.avoid_device_uuids), giving_way | {lease.lease_id}, {})
        self._cache = preemption.cache_for(self._need, eligible)
        self._lease = lease
        self._demand = demand
        self._shape = shape
        self._eligible = eligible
        self._again_ms = NEVER_MS
        self._banned: set[str] = set()

    def run(self) -> Plan | NoPlan:
        for _ in range(TRIALS_MAX):
            found = self._best(self._costs(self._node_ids()))
            if found is None:
                break
            plan = self._try_out(*found)
            if plan is not None:
                return plan
            # By the engine's own rules it does not fit there after all: look elsewhere.
            self._banned.update(found[0])
        return NoPlan(self._again_ms)

    def _best(self, costs: list[_NodeAt]) -> tuple[list[str], dict[str, None]] | None:
        """The cheapest of several greedy choices: the plain one, some that begin with a large lease, some that spare
        one.
        """
        near = heapq.nsmallest(NEAR_NODES + 2 * self._demand.gang_size, costs)
        found = self._choose(near)
        if found is None:
            return None
        best, best_key = found, self._key(found[1])
        if self._demand.gang_size * self._demand.count > SLICES_MAX:
            return best
        for seed in self._large(near) if best_key[0] > 1 else ():
            found = self._choose(near, seed=seed)
            if found is not None and self._key(found[1]) < best_key:
                best, best_key = found, self._key(found[1])
        exact = improve(self._nearest(near), self._need, self._eligible, self._demand.gang_size, self._cost(best[1]))
        if exact.choice is not None:
            best = list(exact.choice.node_ids), dict.fromkeys(exact.choice.victims)
            best_key = self._key(best[1])
        if not exact.proven and len(best[1]) <= SPARED_MAX:
            attempts = 0
            dearest = sorted(best[1], key=lambda i: -self._eligible.lost_now(i))
            while dearest and attempts < SPARED_MAX:
                attempts += 1
                self._eligible.spared = frozenset((dearest.pop(0),))
                found = self._choose(near, afresh=self._eligible.spared)
                self._eligible.spared = frozenset()
                if found is not None and self._key(found[1]) < best_key:
                    best, best_key = found, self._key(found[1])
                    dearest = sorted(best[1], key=lambda i: -self._eligible.lost_now(i))
        return best

    def _nearest(self, near: list[_NodeAt]) -> list[tuple[str, NodeView, int]]:
        """The nodes among which the best choice is looked for, and how many members each may take."""
        return [(node_id, self._views.of(node_id), self._members_max(node_id)) for _, _, node_id, _ in near[:NODES_MAX]]

    def _members_max(self, node_id: str) -> int:
        """How many members a node may take, beside those of the affinity group that are there."""
        demand = self._demand
        if not demand.max_per_node:
            return demand.gang_size
        return demand.max_per_node - self._state.inventory.groups.get(demand.affinity_group, {}).get(node_id, 0)

    def _cost(self, victims: dict[str, None]) -> int:
        return cost_of(tuple(victims), self._eligible)

    def _key(self, victims: dict[str, None]) -> tuple[int, int]:
        return len(victims), sum(self._eligible.lost_now(lease_id) for lease_id in victims)

    def _large(self, near: list[_NodeAt]) -> list[str]:
        """Leases on these nodes that hold several devices and may be ended: the largest first."""
        sizes: dict[str, int] = {}
        for _, _, node_id, _ in near:
            for load in self._views.of(node_id).devices:
                for occupant in load.occupants:
                    sizes[occupant.lease_id] = sizes.get(occupant.lease_id, 0) + 1
        eligible = self._eligible
        several = [i for i, n in sizes.items() if n > 1 and eligible.ripe_ms(i) <= eligible.now_ms]
        several.sort(key=lambda i: (-sizes[i], eligible.lost_now(i), i))
        return several[:SEEDS_MAX]

    def _node_ids(self) -> list[str]:
        """Nodes that suit the shape, those with most room first."""
        inventory, engine = self._state.inventory, self._state.engine
        slot = engine.index.slot(self._shape)
        table = inventory.table
        rows = table.rows
        eligible = engine.shapes.eligible_rows(slot) & listed_rows(inventory, self._demand) & table.grantable[:rows]
        free = table.share_left[:rows].sum(axis=1)
        order = np.flatnonzero(eligible)
        order = order[np.argsort(-free[order], kind="stable")]
        found: dict[str, None] = {}
        for row in order.tolist():
            node = table.node_of_row[row]
            if node is not None and node.spec.node_id not in self._banned and self._members_max(node.spec.node_id) > 0:
                found[node.spec.node_id] = None
        return list(found)

    def _choose(
        self, near: list[_NodeAt], *, seed: str = "", afresh: Iterable[str] = ()
    ) -> tuple[list[str], dict[str, None]] | None:
        """Members one after another where they cost least; the nodes and the victims of all.

        `seed` ends in any case; nodes with leases in `afresh` are looked at anew.
        """
        now_ms = self._eligible.now_ms
        rank = {node_id: position for _, position, node_id, _ in near}
        generation = dict.fromkeys(rank, 0)
        taken: dict[str, list[int]] = {}
        victims: dict[str, None] = {seed: None} if seed else {}
        heap = [(key, position, node_id, 0, cost) for key, position, node_id, cost in near]
        heapq.heapify(heap)

        def again(lease_ids: Iterable[str], *node_ids: str) -> None:
            touched = dict.fromkeys(node_ids)
            for lease_id in lease_ids:
                for piece in self._state.leases[lease_id].slices:
                    if piece.plan.node_id in rank:
                        touched[piece.plan.node_id] = None
            for node_id in touched:
                generation[node_id] += 1
                members = per_node.get(node_id, 0)
                if members >= self._members_max(node_id):
                    continue
                cost = cost_of_node(self._views.of(node_id), self._need, self._eligible, taken, victims, members)
                if cost is not None:
                    heapq.heappush(heap, (cost.key(now_ms), rank[node_id], node_id, generation[node_id], cost))

        per_node: dict[str, int] = {}
        again((*victims, *afresh))
        for _ in range(self._demand.gang_size):
            while heap and heap[0][3] != generation[heap[0][2]]:
                heapq.heappop(heap)
            if not heap:
                return None
            _, _, node_id, _, cost = heapq.heappop(heap)
            per_node[node_id] = per_node.get(node_id, 0) + 1
            fresh = [lease_id for lease_id in cost.victims if lease_id not in victims]
            victims.update(dict.fromkeys(fresh))
            self._take(taken, cost.devices)
            again(fresh, node_id)
        return list(per_node), self._reduced(taken, per_node, victims)

    def _reduced(self, taken: dict[str, list[int]], members: dict[str, int], victims: Iterable[str]) -> dict[str, None]:
        """The victims without those who are not needed for so much of each device and so many members on each node;
        the dearest is spared first.
        """
        left = dict.fromkeys(victims)
        demand = self._demand
        hosted = bool(demand.cpu_milli or demand.host_memory_bytes)
        for lease_id in sorted(left, key=lambda i: (-self._eligible.lost_now(i), i)):
            rest = {other: None for other in left if other != lease_id}
            plans = [piece.plan for piece in self._state.leases[lease_id].slices if piece.holds_capacity]
            devices = {plan.device_uuid for plan in plans if plan.device_uuid in taken}
            of_group = self._state.leases[lease_id].request.demand.affinity_group
            if demand.max_per_node and of_group == demand.affinity_group and any(p.node_id in members for p in plans):
                continue  # the engine may have counted on its place in the group
            hosts = {plan.node_id for plan in plans if plan.node_id in members} if hosted else ()
            if all(self._fits(uuid, taken[uuid], rest) for uuid in devices) and all(
                self._hosts(node_id, members[node_id], rest) for node_id in hosts
            ):
                left = rest
        return left

    def _hosts(self, node_id: str, members: int, victims: Container[str]) -> bool:
        """Whether a node has CPU and host memory for so many members once these have ended."""
        node, demand = self._state.inventory.node(node_id), self._demand
        cpu, memory = node.cpu_left_milli, node.host_memory_left_bytes
        for lease_id, (of_cpu, of_memory) in self._views.of(node_id).hosted.items():
            if not lease_id or lease_id in victims:
                cpu, memory = cpu + of_cpu, memory + of_memory
        return demand.cpu_milli * members <= cpu and demand.host_memory_bytes * members <= memory

    def _costs(self, node_ids: list[str]) -> list[_NodeAt]:
        """What every node that is known costs, and a bounded number of others."""
        now_ms, cache, versions = self._eligible.now_ms, self._cache, self._state.node_versions
        found: list[_NodeAt] = []
        unknown: list[tuple[int, int, str]] = []
        again_ms = self._again_ms
        for position, node_id in enumerate(node_ids):
            known = cache.get(node_id)
            if known is None or known.version != versions.get(node_id, 0) or not self._still_true(known):
                unknown.append((self._views.of(node_id).least_victims(self._demand.count), position, node_id))
                continue
            again_ms = min(again_ms, known.again_ms)
            cost = known.cost
            if cost is not None:
                found.append(((len(cost.victims), cost.slope * now_ms - cost.offset), position, node_id, cost))
        self._again_ms = again_ms
        unknown.sort()
        for number, (_, position, node_id) in enumerate(unknown):
            if number >= FRESH_NODES_MAX and len(found) >= self._demand.gang_size:
                break
            known = self._look(node_id)
            self._again_ms = min(self._again_ms, known.again_ms)
            if known.cost is not None:
                found.append((known.cost.key(now_ms), position, node_id, known.cost))
        return found

    def _still_true(self, known: _Known) -> bool:
        """Whether what is remembered of a node that has not changed holds at this moment, too."""
        now_ms = self._eligible.now_ms
        if known.again_ms <= now_ms:
            return False
        if self._state.disruptions and known.cost is not None:
            return all(self._eligible.ripe_ms(i) <= now_ms for i in known.cost.victims)
        return True

    def _look(self, node_id: str) -> _Known:
        view = self._views.of(node_id)
        cost = cost_of_node(view, self._need, self._eligible, {}, ())
        again_ms = cost.again_ms if cost is not None else self._next_ripe_ms(node_id)
        known = self._cache[node_id] = _Known(view.version, again_ms, cost)
        return known

    def _next_ripe_ms(self, node_id: str) -> int:
        """When another lease of a node becomes a candidate."""
        eligible = self._eligible
        times: list[int] = []
        for load in self._views.of(node_id).devices:
            times += [eligible.ripe_ms(occupant.lease_id) for occupant in load.occupants]
            times += [leaver.deadline_ms - eligible.soon_ms + eligible.now_ms for leaver in load.late]
        return min((time for time in times if time > eligible.now_ms), default=NEVER_MS)

    def _take(self, taken: dict[str, list[int]], devices: tuple[str, ...]) -> None:
        for uuid in devices:
            size = self._need.on(self._state.inventory.device_record(uuid))
            assert size is not None, "a device was chosen on which the slice never fits"
            sums = taken.setdefault(uuid, [0, 0])
            sums[0] += size[0]
            sums[1] += size[1]

    def _try_out(self, node_ids: list[str], victims: dict[str, None]) -> Plan | None:
        """Ask the engine, without the victims; spare whoever is not in the way of its answer."""
        state, lease = self._state, self._lease
        if not self._within_disruption_budgets(victims):
            return None
        kept = [uuid for owner in self._need.owners if owner in state.holds for uuid in state.holds[owner].device_uuids]
        demand = msgspec.structs.replace(self._demand, models=self._shape.models, node_ids=tuple(node_ids))
        kept = [uuid for uuid in kept if state.inventory.has_device(uuid)]
        with Overlay(state, node_ids, victims, kept, self._eligible.soon_ms):
            placement = state.engine.place(demand, arrival=lease.arrival)
        if placement is None:
            return None
        chain, eligible = chain_of(state, lease.request), self._eligible
        if forbidden(state, lease.request, chain, placement, eligible.now_ms, lease.preempted_at_ms) is not None:
            return None
        by_reclaim = eligible.reclaim and is_entitled(state, lease, parts_of_placement(state, placement))
        needed = self._needed(placement, victims)
        if not by_reclaim and any(not self._lower(lease_id) for lease_id in needed):
            return None
        hurried = tuple(lease_id for lease_id in needed if state.leases[lease_id].end_reason)
        victims = {lease_id: None for lease_id in needed if lease_id not in hurried}
        return Plan(tuple(victims), placement, by_reclaim, hurried)

    def _lower(self, lease_id: str) -> bool:
        """Whether this victim could be chosen by priority alone."""
        request = self._state.leases[lease_id].request
        return request.preemptible and request.priority < self._eligible.priority

    def _within_disruption_budgets(self, victims: dict[str, None]) -> bool:
        counts: dict[str, int] = {}
        for lease_id in victims:
            tenant = self._state.leases[lease_id].request.tenant
            counts[tenant] = counts.get(tenant, 0) + 1
        if self._eligible.reclaim:
            return True
        return all(count <= self._eligible.disruptions_left(tenant) for tenant, count in counts.items())

    def _needed(self, placement: Placement, victims: dict[str, None]) -> dict[str, None]:
        """The victims without whom the placement would not fit."""
        wanted: dict[str, list[int]] = {}
        for member in placement.members:
            for plan in member:
                sums = wanted.setdefault(plan.device_uuid, [0, 0])
                sums[0] += plan.share_milli
                sums[1] += plan.memory_bytes
        members: dict[str, int] = {}
        for node_id in placement.node_ids:
            members[node_id] = members.get(node_id, 0) + 1
        return self._reduced(wanted, members, victims)

    def _fits(self, uuid: str, wanted: list[int], victims: Container[str]) -> bool:
        record = self._state.inventory.device_record(uuid)
        load = next(d for d in self._views.of(record.node_id).devices if d.record.spec.uuid == uuid)
        share, memory = load.left(self._eligible.soon_ms)
        for lease_id, of_share, of_memory in load.others(self._eligible.soon_ms):
            if lease_id in victims:
                share, memory = share + of_share, memory + of_memory
        return wanted[0] <= share and wanted[1] <= memory
