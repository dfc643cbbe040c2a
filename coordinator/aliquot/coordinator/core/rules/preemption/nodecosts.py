"""What it costs to put a member on each node: remembered between questions, computed again where a node has changed.

That is dear, so one question computes it for a bounded number of unknown nodes.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import NamedTuple

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.preemption.nodeview import NodeViews
from aliquot.coordinator.core.rules.preemption.search import Need, NodeCost, cost_of_node
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS, Eligibility
from aliquot.coordinator.core.values.types import Demand

# --------------------
# One question of preemption: who asks, for what, and who may be ended for it.


@dataclass(frozen=True, slots=True)
class Question:
    """One model alternative of a demand."""

    known: Known
    views: NodeViews
    need: Need
    lease: Lease
    demand: Demand
    shape: Demand
    """The demand as it is for these models."""
    eligible: Eligibility

    def members_max(self, node_id: str) -> int:
        """How many members a node may take, beside those of the affinity group that are there."""
        demand = self.demand
        if not demand.max_per_node:
            return demand.gang_size
        return demand.max_per_node - self.known.inventory.groups.get(demand.affinity_group, {}).get(node_id, 0)


FRESH_NODES_MAX = 16
"""Unknown nodes that one question looks at; more only where these do not suffice."""


class Look(NamedTuple):
    """What a look at a node gave."""

    version: int
    again_ms: int
    cost: NodeCost | None


NodeAt = tuple[tuple[int, int], int, str, NodeCost]
"""(cost now, rank, node, cost)."""


class NodeCosts:
    """The costs of one question. `cache`: what is known for equal questions, by node."""

    def __init__(self, question: Question, cache: dict[str, Look]) -> None:
        self._question = question
        self._known = question.known
        self._views = question.views
        self._need = question.need
        self._demand = question.demand
        self._shape = question.shape
        self._eligible = question.eligible
        self._cache = cache
        self.again_ms = NEVER_MS
        """When asking again may help."""

    def but_for(self, banned: Container[str]) -> list[NodeAt]:
        """Those of all nodes that suit, without these."""
        return self._costs(self._node_ids(banned))

    def among(self, node_ids: list[str]) -> list[NodeAt]:
        """Those of these nodes."""
        return self._costs(node_ids)

    def _node_ids(self, banned: Container[str]) -> list[str]:
        """Nodes that suit the shape, those with most room first."""
        suiting = self._known.engine.roomiest(self._demand, (self._shape,))
        return [node_id for node_id in suiting if node_id not in banned and self._question.members_max(node_id) > 0]

    def _costs(self, node_ids: list[str]) -> list[NodeAt]:
        """What every node that is known costs, and a bounded number of others."""
        now_ms, cache, versions = self._eligible.now_ms, self._cache, self._known.node_versions
        found: list[NodeAt] = []
        unknown: list[tuple[int, int, str]] = []
        again_ms = self.again_ms
        for position, node_id in enumerate(node_ids):
            known = cache.get(node_id)
            if known is None or known.version != versions.get(node_id, 0) or not self._still_true(known):
                unknown.append((self._views.of(node_id).least_victims(self._demand.count), position, node_id))
                continue
            again_ms = min(again_ms, known.again_ms)
            cost = known.cost
            if cost is not None:
                found.append(((len(cost.victims), cost.slope * now_ms - cost.offset), position, node_id, cost))
        self.again_ms = again_ms
        unknown.sort()
        for number, (_, position, node_id) in enumerate(unknown):
            if number >= FRESH_NODES_MAX and len(found) >= self._demand.gang_size:
                break
            known = self._look(node_id)
            self.again_ms = min(self.again_ms, known.again_ms)
            if known.cost is not None:
                found.append((known.cost.key(now_ms), position, node_id, known.cost))
        return found

    def _still_true(self, known: Look) -> bool:
        """Whether what is remembered of a node that has not changed holds at this moment, too."""
        now_ms = self._eligible.now_ms
        if known.again_ms <= now_ms:
            return False
        if self._known.disruptions and known.cost is not None:
            return all(self._eligible.endable_ms(i) <= now_ms for i in known.cost.victims)
        return True

    def _look(self, node_id: str) -> Look:
        view = self._views.of(node_id)
        cost = cost_of_node(view, self._need, self._eligible, {}, ())
        again_ms = cost.again_ms if cost is not None else self._next_endable_ms(node_id)
        known = self._cache[node_id] = Look(view.version, again_ms, cost)
        return known

    def _next_endable_ms(self, node_id: str) -> int:
        """When another lease of a node becomes a candidate."""
        eligible = self._eligible
        times: list[int] = []
        for load in self._views.of(node_id).devices:
            times += [eligible.endable_ms(holding.lease_id) for holding in load.holdings]
            times += [leaver.deadline_ms - eligible.soon_ms + eligible.now_ms for leaver in load.late]
        return min((time for time in times if time > eligible.now_ms), default=NEVER_MS)
