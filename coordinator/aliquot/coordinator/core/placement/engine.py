"""Placement: which devices a demand gets, decided on cached scores and never changing the inventory.

The engine itself knows what is feasible and what equals what; how good a place is, its policy says. A
decision is a function of the inventory, the policy's parameters, the demand, and of
nothing else: no clock, no hash order, no randomness.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np

from aliquot.common import catalog
from aliquot.common.latest import Latest
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import explain
from aliquot.coordinator.core.placement.gang import place_gang
from aliquot.coordinator.core.placement.index import ScoreIndex
from aliquot.coordinator.core.placement.matching import Matcher
from aliquot.coordinator.core.placement.mix import ArrivalMix
from aliquot.coordinator.core.placement.move_budget import MoveBudget
from aliquot.coordinator.core.placement.obstacles import charge
from aliquot.coordinator.core.placement.placer import MemberPlacer
from aliquot.coordinator.core.placement.policies import POLICIES
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.policy import Policy
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.placement.reasons import RESTRICTED
from aliquot.coordinator.core.placement.room import listed_rows, room
from aliquot.coordinator.core.placement.scoring import Scorer
from aliquot.coordinator.core.placement.shapes import Bools, Ints, ShapeTable
from aliquot.coordinator.core.values.types import Demand, Placement, Shortfall, SlicePlan

POSSIBLE_CACHE_MAX = 4096


class Engine:
    """Places demands on one inventory: by one policy, or by another one that a demand names."""

    def __init__(
        self,
        inventory: Inventory,
        policy: Policy,
        *,
        mix: ArrivalMix | None = None,
        index: type[ScoreIndex] = ScoreIndex,
        compiled: bool = True,
    ) -> None:
        """`compiled`: score by machine code once that has been brought in, and where the policy has a kernel."""
        self.inventory = inventory
        self.policy = policy
        self._index_type, self._compiled = index, compiled
        self._utilisation: dict[str, int] = {}
        """How busy devices are, in thousandths. Volatile: it decides only between equal places."""
        self._measured_version = -1
        own = self._make_placer(policy)
        self.index = own.index
        self.shapes = own.shapes
        self._placers = {"": own}
        """By the name of their policy. Each keeps scores of its own, which are made when somebody asks for them."""
        self._prices: PriceTable | None = None
        self.mix = ArrivalMix() if mix is None else mix
        """What has arrived lately. Volatile: prices learnt of it (`upkeep.price_learner`) come back as a fact."""
        self.moves = MoveBudget()
        """What may be moved to make room. Volatile too."""
        self.matcher = Matcher(inventory)
        """Which MIG profiles serve requests by share or memory."""
        self._possible: Latest[Demand, bool] = Latest(POSSIBLE_CACHE_MAX)
        self._possible_version = -1

    def place(self, demand: Demand) -> Placement | None:
        """Where the demand goes now, or None if it does not fit. The inventory is as before on return.

        Devices that don't admit everything come last.
        """
        placement = self._place(demand)
        if placement is None and self.inventory.restricted:
            for most in (level for level in RESTRICTED if level <= demand.admitted_on):
                with self.inventory.trial() as inventory:
                    placement = self._place(demand) if inventory.admit(most) else None
                if placement is not None:
                    return placement
        return placement

    def _place(self, demand: Demand) -> Placement | None:
        placer = self._placer_of(demand)
        for position, shape in enumerate(self.matcher.shapes(demand)):
            if demand.gang_size > 1:
                placement = place_gang(placer, demand, shape)
            else:
                placement = _place_one(placer, demand, shape)
            if placement is not None:
                if position and shape.mig_profile == demand.mig_profile:
                    placement = _with_note(placement, _as_alternative(demand, shape, position))
                return self.with_charges(demand, shape, placement)
        return None

    def with_charges(self, demand: Demand, shape: Demand, placement: Placement) -> Placement:
        """The same, its note saying what parts of cards are charged that are served by MIG instances."""
        if demand.mig_profile or not (shape.mig_profile or shape.instances):
            return placement
        members = [plans[0] for plans in placement.members]
        specs = [self.inventory.device(plan.device_uuid) for plan in members]
        charges = Counter(
            (spec.mig_profile, charge(plan.share_milli, plan.memory_bytes))
            for spec, plan in zip(specs, members, strict=True)
            if spec.mig_profile
        )
        alike = len(charges) == 1 and charges.total() == len(members)
        if not charges:
            return placement
        notes = []
        for (profile, charged), number in sorted(charges.items()):
            who = "" if alike else f"{number} of {len(members)} members "
            notes.append(f"{who}served by a {profile}, and charged for all of it: {charged}")
        return _with_note(placement, "; ".join(notes))

    def fits(self, demand: Demand) -> bool:
        """Whether `place` would find room. It counts what is left and scores nothing, so it takes the same time
        however many rows changed since the last question.
        """
        if self._fits(demand):
            return True
        if not (self.inventory.restricted and demand.admitted_on):
            return False
        with self.inventory.trial() as inventory:
            return inventory.admit(demand.admitted_on) and self._fits(demand)

    def _fits(self, demand: Demand) -> bool:
        return any(room(self.inventory, demand, shape) >= demand.gang_size for shape in self.matcher.shapes(demand))

    def roomiest(self, demand: Demand, shapes: Iterable[Demand]) -> Iterator[str]:
        """Nodes that are open and suit the demand as one of these shapes, those with most share left first."""
        table = self.inventory.table
        suits: Bools = np.zeros(table.rows, np.bool_)
        for shape in shapes:
            suits |= self.shapes.eligible_rows(self.index.slot(shape))
        rows = np.flatnonzero(suits & listed_rows(self.inventory, demand) & table.grantable[: table.rows])
        ranked = rows[np.argsort(-table.share_left[rows].sum(axis=1), kind="stable")].tolist()
        return iter(dict.fromkeys(node.spec.node_id for row in ranked if (node := table.node_of_row[row]) is not None))

    def scores(self, demand: Demand, shape: Demand) -> Ints:
        """[row] how good each is for one member of `demand` as this shape; `NO_SCORE` where it does not fit. For
        comparing rows, and good for nothing else.
        """
        return self._placer_of(demand).scores(demand, shape)

    def choose_on(self, demand: Demand, shape: Demand, node_id: str) -> tuple[SlicePlan, ...] | None:
        """What one member of `demand` would get as this shape on this node, or None if it does not fit there."""
        node = self.inventory.node(node_id)
        within: Bools = np.zeros(self.inventory.table.rows, np.bool_)
        within[node.first_row : node.first_row + node.row_count] = True
        chosen = self._placer_of(demand).choose(demand, shape, within)
        return chosen.slices if chosen is not None else None

    @property
    def by_prices(self) -> list[tuple[MemberPlacer, Price]]:
        """Those who place by prices: where there are none, nothing is to be learnt."""
        return [(each, each.policy) for each in self._placers.values() if isinstance(each.policy, Price)]

    @property
    def scoring_passes(self) -> int:
        """How often scores were brought up to date that compiled code (`machine_code.warm_up`) would give sooner."""
        return sum(placer.index.passes for placer, _ in self.by_prices)

    def set_prices(self, table: PriceTable) -> None:
        """Take prices that were learnt elsewhere; of no consequence to policies that know none."""
        self._prices = table
        for _, policy in self.by_prices:
            policy.set_prices(table)

    def _placer_of(self, demand: Demand) -> MemberPlacer:
        """Who places it. A policy that is not installed any more, which a journal may name, is as none."""
        name = demand.placement
        placer = self._placers.get(name)
        if placer is None:
            if name == self.policy.name or name not in POLICIES:
                return self._placers[""]
            policy = POLICIES[name]()
            placer = self._placers[name] = self._make_placer(policy)
            if self._prices is not None and isinstance(policy, Price):
                policy.set_prices(self._prices)
        return placer

    def _make_placer(self, policy: Policy) -> MemberPlacer:
        scorer = Scorer(self.inventory, policy, ShapeTable(self.inventory))
        return MemberPlacer(self._index_type(scorer, compiled=self._compiled), self._utilisation)

    def measured(self, uuid: str, utilisation_milli: int) -> None:
        """How busy a device was lately, in thousandths."""
        self._utilisation[uuid] = utilisation_milli
        if self._measured_version != self.inventory.structure_version:
            self._measured_version = self.inventory.structure_version
            for gone in [known for known in self._utilisation if not self.inventory.has_device(known)]:
                del self._utilisation[gone]

    def possible(self, demand: Demand) -> bool:
        """Would the demand fit an empty pool with every node ready? Cached until the structure changes."""
        if self._possible_version != self.inventory.structure_version:
            self._possible.clear()
            self._possible_version = self.inventory.structure_version
        known = self._possible.get(demand)
        if known is None:
            known = self._possible[demand] = explain.possible(self.inventory, self.matcher, demand)
        return known

    def explain(self, demand: Demand) -> Shortfall:
        """Why the demand does not fit now, by device class, with the smallest change that would fit."""
        return explain.shortfall(self.inventory, self.matcher, demand)


def _place_one(placer: MemberPlacer, demand: Demand, shape: Demand) -> Placement | None:
    chosen = placer.choose(demand, shape)
    if chosen is None:
        return None
    return Placement((chosen.slices,), (chosen.node_id,), chosen.note)


def _as_alternative(demand: Demand, shape: Demand, position: int) -> str:
    """Which of the alternatives it is that was got, where it is not the first."""
    models = ", ".join(shape.models[0]) if shape.models else ""
    if not demand.vendors:
        return f"model alternative {position + 1} of {len(demand.models)} ({models})"
    got = f"{catalog.vendor_title(shape.vendor)}, {models}" if models else catalog.vendor_title(shape.vendor)
    return f"alternative {position + 1} of {len(demand.vendors) * max(len(demand.models), 1)} ({got})"


def _with_note(placement: Placement, note: str) -> Placement:
    return Placement(placement.members, placement.node_ids, f"{note}; {placement.note}" if placement.note else note)
