"""One question of preemption: who asks, for what, and who may be ended for it."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.leases.records import Lease
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.preemption.nodeview import NodeViews
from aliquot.coordinator.core.preemption.search import Need
from aliquot.coordinator.core.preemption.victims import Eligibility
from aliquot.coordinator.core.types import Demand


@dataclass(frozen=True, slots=True)
class Question:
    """One model alternative of a demand."""

    state: Planning
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
        return demand.max_per_node - self.state.inventory.groups.get(demand.affinity_group, {}).get(node_id, 0)
