"""Requests by share or memory as MIG instances: which profile serves them, and so what they are charged.

A MIG instance is held whole, so a part of a card is served there by the *smallest* profile that has both the compute
and the memory that were asked for, and by no larger one: what a request is charged depends on the hardware of its pool,
not on what happens to be free. A profile counts where there are instances of it, or where a card may be cut so.

Undivided cards serve such requests exactly, so instances come into it only where nothing else does: for a request whose
minimum is the tier `mig`, and where no undivided card of its pool, nodes and models could ever serve it. A request that
says that either will do (`Demand.or_mig`) is one shape that both suit, so that the policy weighs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec.structs import replace

from aliquot.common import catalog
from aliquot.common.latest import Latest
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.inventory.records import DeviceClass, asks_for_part
from aliquot.coordinator.core.placement.room import room
from aliquot.coordinator.core.placement.shapes import shape_of, shapes_of
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, MigCard, NodeSpec

MATCHES_MAX = 4096


class Match(NamedTuple):
    """One profile of one model as which a demand may be served."""

    compute_milli: int
    memory_bytes: int
    """What a slice of it holds, and is charged for. Of a card that is yet to be cut: as its driver states it."""
    demand: Demand
    """The demand, bound to the profile."""


class Matcher:
    """Which profiles serve a demand; remembered until the inventory's structure changes."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: Latest[Demand, tuple[Match, ...]] = Latest(MATCHES_MAX)
        self._version = -1
        self._partitioned = False

    def matches(self, demand: Demand) -> tuple[Match, ...]:
        """The profiles that serve a demand by share or memory, the smallest first; empty: undivided cards do, or the
        demand names its profile itself, or nothing serves it. Of one that either will do (`either`): besides these.
        """
        inventory = self._inventory
        if self._version != inventory.structure_version:
            self._version = inventory.structure_version
            self._partitioned = inventory.partitioned
            self._known.clear()
        if not self._partitioned or not is_part(demand):
            return ()
        known = self._known.get(demand)
        if known is None:
            known = self._known[demand] = self._match(demand)
        return known

    def shapes(self, demand: Demand) -> Iterator[Demand]:
        """What to look for, in order of preference."""
        matches = self.matches(demand)
        if either(demand):
            instances = tuple((match.demand.models[0][0], match.demand.mig_profile) for match in matches)
            yield from shapes_of(replace(demand, instances=tuple(dict.fromkeys(instances))))
        elif matches:
            for match in matches:
                yield shape_of(match.demand, match.demand.models[0])
        elif demand.min_tier < Tier.MIG or not is_part(demand):
            yield from shapes_of(demand)

    def _match(self, demand: Demand) -> tuple[Match, ...]:
        if (
            demand.min_tier < Tier.MIG
            and not demand.or_mig
            and any(self._room(demand, shape) for shape in shapes_of(demand))
        ):
            return ()
        return tuple(match for models in demand.models or ((),) for match in self._of_models(demand, models))

    def _room(self, demand: Demand, shape: Demand) -> bool:
        return room(self._inventory, demand, shape, empty=True) >= demand.gang_size

    def _of_models(self, demand: Demand, models: tuple[str, ...]) -> list[Match]:
        """The smallest profile of each model that has room for all members; the smallest of all first. Of a gang that
        either will do for, one with room for some where none has for all: others may be on undivided cards.
        """
        candidates = sorted(self._large_enough(demand, models))
        chosen: dict[str, Match] = {}
        for members in (demand.gang_size, 1) if either(demand) else (demand.gang_size,):
            for compute_milli, memory_bytes, model, profile, may_be_cut in candidates:
                if model not in chosen:
                    named = replace(demand, mig_profile=profile, models=((model,),), or_mig=False, gang_size=members)
                    if may_be_cut or self._room(named, shape_of(named, (model,))):
                        bound = replace(named, gang_size=demand.gang_size)
                        chosen[model] = Match(compute_milli, memory_bytes, bound)
        return sorted(chosen.values(), key=lambda match: match[:2])

    def _large_enough(self, demand: Demand, models: tuple[str, ...]) -> set[tuple[int, int, str, str, bool]]:
        """(compute, memory, model, profile, whether a card may be cut so) of what has as much as is asked for. What an
        instance has is better known than what its card's driver says that one would have.
        """
        found: set[tuple[int, int, str, str, bool]] = set()
        known: set[tuple[str, str]] = set()

        def note(compute_milli: int, memory_bytes: int, model: str, profile: str, *, may_be_cut: bool) -> None:
            if is_enough(demand, compute_milli, memory_bytes) and (not models or model in models):
                found.add((compute_milli, memory_bytes, model, profile, may_be_cut))

        for own in self._inventory.classes:
            if own.mig_profile and demand.takes_vendor(own.vendor):
                known.add((own.model, own.mig_profile))
                note(own.compute_milli, own.leasable_bytes, own.model, own.mig_profile, may_be_cut=False)
        there = {(model, profile) for _, _, model, profile, _ in found}
        seen: list[tuple[object, ...]] = []
        for spec in self._inventory.nodes_with_cards():
            for card in spec.cards if may_serve(spec, demand) else ():
                if not demand.takes_vendor(catalog.vendor_of(card.model) or "nvidia"):
                    continue
                if (card.model, card.profiles) in seen:
                    continue
                seen.append((card.model, card.profiles))
                for profile in card.profiles:
                    if (card.model, profile.name) in known - there:
                        continue
                    compute_milli = compute_of(card, profile.compute_slices)
                    note(compute_milli, profile.memory_bytes, card.model, profile.name, may_be_cut=True)
        return found


def either(demand: Demand) -> bool:
    """Whether an undivided device or a MIG instance will do, whichever the policy prefers."""
    return demand.or_mig and demand.min_tier < Tier.MIG


def is_enough(demand: Demand, compute_milli: int, memory_bytes: int) -> bool:
    """Whether an instance with so much serves a part of a device."""
    return 0 < compute_milli >= demand.share_milli and memory_bytes >= demand.memory_bytes


def instances_among(demand: Demand, classes: Iterable[DeviceClass]) -> tuple[tuple[str, str], ...]:
    """(model, profile) of the smallest instances of each model among these classes that serve a demand for which
    either will do: what `Matcher` finds, where nothing but the classes is known.
    """
    named = {model for models in demand.models for model in models}
    smallest: dict[str, tuple[int, int, str]] = {}
    for own in classes if either(demand) and is_part(demand) else ():
        suits = own.mig_profile and (not named or own.model in named) and demand.takes_vendor(own.vendor)
        if suits and is_enough(demand, own.compute_milli, own.leasable_bytes):
            size = own.compute_milli, own.leasable_bytes, own.mig_profile
            smallest[own.model] = min(size, smallest.get(own.model, size))
    return tuple((model, profile) for model, (_, _, profile) in sorted(smallest.items()))


def is_part(demand: Demand) -> bool:
    """Whether it asks for a part of a device, by share or memory."""
    return asks_for_part(demand)


def compute_of(card: MigCard, compute_slices: int) -> int:
    """So many slices as thousandths of the card's compute, rounded down: parts never come to more than the card. 0: its
    driver did not say.
    """
    units = max((start + profile.length for profile in card.profiles for start in profile.starts), default=0)
    most = max((profile.compute_slices for profile in card.profiles), default=0)
    if units and all(profile.length != units for profile in card.profiles):
        # Ascend has no template for a whole card.
        most = max(most, *(each.compute_slices * units // each.length for each in card.profiles if each.length))
    return compute_slices * WHOLE_SHARE_MILLI // most if most else 0


def may_serve(spec: NodeSpec, demand: Demand) -> bool:
    """Whether a demand allows a node at all: a shortcut that spares trials."""
    labels = dict(spec.labels)
    return (
        demand.pool in ("", spec.pool)
        and (not demand.node_ids or spec.node_id in demand.node_ids)
        and spec.node_id not in demand.avoid_node_ids
        and all(labels.get(key) == value for key, value in demand.node_selector)
    )
