"""Which nodes, and whose leases: the cheapest choice that can be found among near nodes.

Members are put one after another where they cost least, from several starting points; where the question is
small, an exact search has the last word.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Container, Iterable
from typing import NamedTuple

from aliquot.coordinator.core.rules.preemption.exact import NODES_MAX, SLICES_MAX, UNBOUNDED, cost_of, improve
from aliquot.coordinator.core.rules.preemption.nodecosts import NodeAt, Question
from aliquot.coordinator.core.rules.preemption.nodeview import NodeView
from aliquot.coordinator.core.rules.preemption.search import cost_of_node
from aliquot.coordinator.core.values.types import Placement

NEAR_NODES = 48
"""Nodes among which the choice is made, the cheapest ones; two more for each member."""
SEEDS_MAX = 6


class VictimChoice(NamedTuple):
    """Where members go, and whose leases end for it, in the order in which they were chosen."""

    node_ids: list[str]
    victims: dict[str, None]


class VictimChooser:
    """Chooses for one question."""

    def __init__(self, question: Question) -> None:
        self._question = question
        self._known = question.known
        self._views = question.views
        self._need = question.need
        self._demand = question.demand
        self._eligible = question.eligible

    def best(self, costs: list[NodeAt]) -> VictimChoice | None:
        """The cheapest of several greedy choices, the plain one and some that begin with a large lease, or what the
        exact search finds below that.
        """
        near = heapq.nsmallest(NEAR_NODES + 2 * self._demand.gang_size, costs)
        found = self._choose(near)
        small = self._demand.gang_size * self._demand.count <= SLICES_MAX
        if found is None:
            return self._exact_choice(near, UNBOUNDED) if near and small else None
        best, best_key = found, self.key(found.victims)
        if not small:
            return best
        for seed in self._large(near) if best_key[0] > 1 else ():
            found = self._choose(near, seed=seed)
            if found is not None and self.key(found.victims) < best_key:
                best, best_key = found, self.key(found.victims)
        exact = self._exact_choice(near, cost_of(tuple(best.victims), self._eligible))
        return exact if exact is not None else best

    def needed(self, placement: Placement, victims: dict[str, None]) -> dict[str, None]:
        """The victims that the placement needs."""
        return self._reduced(placement.by_device(), Counter(placement.node_ids), victims)

    def _nearest(self, near: list[NodeAt]) -> list[tuple[str, NodeView, int]]:
        """The nodes among which the best choice is looked for, and how many members each may take."""
        return [
            (node_id, self._views.of(node_id), self._question.members_max(node_id))
            for _, _, node_id, _ in near[:NODES_MAX]
        ]

    def _exact_choice(self, near: list[NodeAt], bound: int) -> VictimChoice | None:
        """What the exact search finds below this cost on the nearest nodes."""
        found = improve(self._nearest(near), self._need, self._eligible, self._demand.gang_size, bound)
        return VictimChoice(list(found.node_ids), dict.fromkeys(found.victims)) if found is not None else None

    def key(self, victims: Iterable[str]) -> tuple[int, int]:
        """What is compared: fewest leases, then least lost work."""
        victims = tuple(victims)
        return len(victims), sum(self._eligible.lost_now(lease_id) for lease_id in victims)

    def _large(self, near: list[NodeAt]) -> list[str]:
        """Leases on these nodes that hold several devices and may be ended: the largest first."""
        sizes: dict[str, int] = {}
        for _, _, node_id, _ in near:
            for load in self._views.of(node_id).devices:
                for holding in load.holdings:
                    sizes[holding.lease_id] = sizes.get(holding.lease_id, 0) + 1
        eligible = self._eligible
        several = [i for i, n in sizes.items() if n > 1 and eligible.endable_ms(i) <= eligible.now_ms]
        several.sort(key=lambda i: (-sizes[i], eligible.lost_now(i), i))
        return several[:SEEDS_MAX]

    def _choose(self, near: list[NodeAt], *, seed: str = "") -> VictimChoice | None:
        """Members one after another where they cost least; the nodes and the victims of all.

        `seed` ends in any case.
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
                for piece in self._known.leases[lease_id].slices:
                    if piece.plan.node_id in rank:
                        touched[piece.plan.node_id] = None
            for node_id in touched:
                generation[node_id] += 1
                members = per_node.get(node_id, 0)
                if members >= self._question.members_max(node_id):
                    continue
                cost = cost_of_node(self._views.of(node_id), self._need, self._eligible, taken, victims, members)
                if cost is not None:
                    heapq.heappush(heap, (cost.key(now_ms), rank[node_id], node_id, generation[node_id], cost))

        per_node: dict[str, int] = {}
        again(tuple(victims))
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
        return VictimChoice(list(per_node), self._reduced(taken, per_node, victims))

    def _reduced(self, taken: dict[str, list[int]], members: dict[str, int], victims: Iterable[str]) -> dict[str, None]:
        """The victims needed for so much of each device and so many members on each node: the dearest spared first."""
        left = dict.fromkeys(victims)
        demand = self._demand
        hosted = bool(demand.cpu_milli or demand.host_memory_bytes)
        for lease_id in sorted(left, key=lambda i: (-self._eligible.lost_now(i), i)):
            rest = {other: None for other in left if other != lease_id}
            plans = [piece.plan for piece in self._known.leases[lease_id].slices if piece.holds_capacity]
            devices = {plan.device_uuid for plan in plans if plan.device_uuid in taken}
            of_group = self._known.leases[lease_id].request.demand.affinity_group
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
        node, demand = self._known.inventory.node(node_id), self._demand
        cpu, memory = node.cpu_left_milli, node.host_memory_left_bytes
        for lease_id, (of_cpu, of_memory) in self._views.of(node_id).hosted.items():
            if not lease_id or lease_id in victims:
                cpu, memory = cpu + of_cpu, memory + of_memory
        return demand.cpu_milli * members <= cpu and demand.host_memory_bytes * members <= memory

    def _fits(self, uuid: str, wanted: list[int], victims: Container[str]) -> bool:
        record = self._known.inventory.device_record(uuid)
        load = next(d for d in self._views.of(record.node_id).devices if d.record.spec.uuid == uuid)
        share, memory = load.left(self._eligible.soon_ms)
        for lease_id, of_share, of_memory in load.others(self._eligible.soon_ms):
            if lease_id in victims:
                share, memory = share + of_share, memory + of_memory
        return wanted[0] <= share and wanted[1] <= memory

    def _take(self, taken: dict[str, list[int]], devices: tuple[str, ...]) -> None:
        for uuid in devices:
            size = self._need.on(self._known.inventory.device_record(uuid))
            assert size is not None, "a device was chosen on which the slice never fits"
            sums = taken.setdefault(uuid, [0, 0])
            sums[0] += size[0]
            sums[1] += size[1]
