"""How cards in MIG mode would have to be cut for a request to fit: pure arithmetic, and a trial placement.

Parts in use stay where they are. Of the idle ones as few as possible go, and the new ones are put as far to the end of
a card as they may be, so that large parts, which may begin only in few places, find theirs free later. Whether a
request fits a pool that is cut so is not guessed: it is placed, by the placement engine, on an inventory of what would
be free.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from msgspec.structs import replace

from aliquot.common.tiers import Tier
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.matching import compute_of, either, may_serve
from aliquot.coordinator.core.placement.obstacles import charge
from aliquot.coordinator.core.values.types import (
    UNKNOWN,
    WHOLE_SHARE_MILLI,
    Demand,
    DeviceSpec,
    MigCard,
    MigPart,
    MigProfile,
    NodeSpec,
)

TRIALS_MAX = 16
"""Placements that are tried for one request: one costs a few tenths of a millisecond for each node in it."""


@dataclass(frozen=True, slots=True)
class MigNode:
    """A node with cards that may be cut now."""

    spec: NodeSpec
    """With the CPU and the host memory that are left."""
    cards: tuple[tuple[MigCard, frozenset[str]], ...]
    """Each with the UUIDs of its parts that are in use."""
    in_group: int = 0
    """Members of the request's affinity group that are here already."""


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """What to do with one card."""

    node_id: str
    card: MigCard
    parts: tuple[MigPart, ...]
    """All of them, afterwards; new ones have no UUID."""
    lost: tuple[MigPart, ...]

    @property
    def made(self) -> int:
        """How many parts are new."""
        return len(self.parts) - (len(self.card.parts) - len(self.lost))


def change_layout(node_id: str, card: MigCard, in_use: Collection[str], name: str, count: int) -> LayoutChange | None:
    """The least change that gives the card `count` more parts of a profile; None: it can't have them."""
    profiles = {profile.name: profile for profile in card.profiles}
    wanted = profiles.get(name)
    if wanted is None or not all(part.profile in profiles for part in card.parts):
        return None
    fixed = [part for part in card.parts if part.uuid in in_use or part.profile == name]
    loose = [part for part in card.parts if part not in fixed]
    taken = _slices(fixed, profiles)
    starts = [start for start in wanted.starts if not taken & _span(start, wanted)]
    best: tuple[tuple[int, int, list[int]], LayoutChange] | None = None
    for chosen in combinations(sorted(starts, reverse=True), count):
        new = [_span(start, wanted) for start in chosen]
        covered = frozenset().union(*new)
        if len(covered) != count * wanted.length:
            continue
        lost = tuple(part for part in loose if _slices([part], profiles) & covered)
        kept = [part for part in card.parts if part not in lost]
        parts = tuple(sorted([*kept, *(MigPart(name, start) for start in chosen)], key=lambda part: part.start))
        cost = (len(lost), len(_slices(lost, profiles)), [-start for start in chosen])
        if best is None or cost < best[0]:
            best = (cost, LayoutChange(node_id, card, parts, lost))
    return best[1] if best is not None else None


def _span(start: int, profile: MigProfile) -> frozenset[int]:
    return frozenset(range(start, start + profile.length))


def _slices(parts: Iterable[MigPart], profiles: dict[str, MigProfile]) -> frozenset[int]:
    return frozenset().union(*(_span(part.start, profiles[part.profile]) for part in parts))


class _Trials:
    """Trial placements, of which there may be only so many."""

    def __init__(self, demand: Demand) -> None:
        self._demand = demand
        self._left = TRIALS_MAX

    def fits(self, nodes: Sequence[MigNode], cuts: Sequence[LayoutChange]) -> bool:
        """Whether the demand was placed; False also when there are no trials left."""
        self._left -= 1
        return self._left >= 0 and fits(nodes, self._demand, cuts)


def plan(nodes: Sequence[MigNode], demand: Demand) -> tuple[LayoutChange, ...]:
    """The cuts with which the demand would fit beside all that runs; empty: none were found. One card where one is
    enough, else as many as it takes.
    """
    trials = _Trials(demand)
    nodes = [node for node in nodes if may_serve(node.spec, demand)]
    options = _options(nodes, demand)
    # One member sits on one node: then only that node is tried.
    groups = [[node] for node in nodes] if demand.gang_size == 1 else [list(nodes)]
    group_of = {node.spec.node_id: group for group in groups for node in group}
    for option in options:
        if trials.fits(group_of[option.node_id], (option,)):
            return (option,)
    if demand.count * demand.gang_size == 1:
        return ()
    for group in groups:
        node_ids = {node.spec.node_id for node in group}
        found = _several(group, [option for option in options if option.node_id in node_ids], trials)
        if found:
            return found
    return ()


def _several(nodes: Sequence[MigNode], options: Sequence[LayoutChange], trials: _Trials) -> tuple[LayoutChange, ...]:
    """Card after card, the least change first, until it fits; then without those that it does not need."""
    most = {option.card.uuid: option for option in options}  # the last of each card makes the most parts
    chosen: list[LayoutChange] = []
    for option in sorted(most.values(), key=lambda option: len(option.lost)):
        chosen.append(option)
        if len(chosen) > 1 and trials.fits(nodes, chosen):
            for spare in list(chosen):
                rest = [each for each in chosen if each is not spare]
                if trials.fits(nodes, rest):
                    chosen = rest
            return tuple(chosen)
    return ()


def _options(nodes: Sequence[MigNode], demand: Demand) -> list[LayoutChange]:
    """What could be done to single cards, the least change first."""
    found: list[LayoutChange] = []
    for node in nodes:
        for card, in_use in node.cards:
            for count in range(1, demand.count * demand.gang_size + 1):
                option = change_layout(node.spec.node_id, card, in_use, demand.mig_profile, count)
                if option is None:
                    break
                found.append(option)
    return sorted(found, key=lambda option: (len(option.lost), option.made))


def fits(nodes: Sequence[MigNode], demand: Demand, cuts: Sequence[LayoutChange]) -> bool:
    """Whether the demand could be placed on what would be free after these cuts."""
    inventory = Inventory()
    engine = Engine(inventory, make_policy("binpack"), compiled=False)
    parts_of = {cut.card.uuid: cut.parts for cut in cuts}
    for node in nodes:
        devices = [
            _device(card, part)
            for card, in_use in node.cards
            for part in parts_of.get(card.uuid, card.parts)
            if part.uuid not in in_use
        ]
        inventory.put_node(replace(node.spec, devices=tuple(devices), cards=()))
        inventory.set_grantable(node.spec.node_id, True)
        for _ in range(node.in_group):
            inventory.reserve_member(node.spec.node_id, Demand(count=0, affinity_group=demand.affinity_group))
    return engine.fits(demand)


def _device(card: MigCard, part: MigPart) -> DeviceSpec:
    profile = next(profile for profile in card.profiles if profile.name == part.profile)
    return DeviceSpec(
        uuid=f"{card.uuid}/{part.start}",
        model=card.model,
        memory_total_bytes=profile.memory_bytes,
        mig_profile=part.profile,
        parent_uuid=card.uuid,
        compute_milli=compute_of(card, profile.compute_slices) or WHOLE_SHARE_MILLI,
        best_tier=Tier.MIG,
    )


def with_nothing_on_it(spec: NodeSpec) -> MigNode:
    """The node with nothing on it: for what could ever be."""
    return MigNode(replace(spec, cards=()), tuple((card, frozenset()) for card in spec.cards))


def left(spec: NodeSpec, cpu_milli: int, host_memory_bytes: int) -> NodeSpec:
    """The node with only this much of its CPU and memory; what is unknown stays so."""
    return replace(
        spec,
        cpu_milli=UNKNOWN if spec.cpu_milli == UNKNOWN else max(0, cpu_milli),
        host_memory_bytes=UNKNOWN if spec.host_memory_bytes == UNKNOWN else max(0, host_memory_bytes),
    )


# --------------------
# Which profiles serve a demand, and whether cards could ever be cut for it.


MIG_SLICES = 8
"""Of memory, on any card there is: no more parts of a profile than that."""


CONCEIVABLE_MAX = 64
"""Nodes asked whether they could ever serve a request; where there are more, the request may wait."""


def as_profiles(known: Known, demand: Demand) -> tuple[Demand, ...]:
    """A demand as the profiles that serve it, in order of preference; empty: cutting cards is not what it needs."""
    if demand.mig_profile:
        return (demand,)
    return tuple(match.demand for match in known.engine.matcher.matches(demand)) if known.cutting else ()


def served_by(known: Known, demand: Demand) -> list[str]:
    """For people: the profiles that serve a request by share or memory, and what they charge."""
    serves, so = ("may be served as well", "then ") if either(demand) else ("is served", "")
    return [
        f"it {serves} by a {match.demand.mig_profile} of {match.demand.models[0][0]}, and {so}charged for all of that: "
        f"{charge(match.compute_milli, match.memory_bytes)}"
        for match in known.engine.matcher.matches(demand)
    ]


def conceivable(known: Known, demand: Demand) -> bool:
    """Whether the cards there are, cut for nothing else, could ever serve a demand that no part fits."""
    return bool(known.cutting) and any(_conceivable(known, each) for each in as_profiles(known, demand))


def _conceivable(known: Known, demand: Demand) -> bool:
    nodes: list[MigNode] = []
    cuts: list[LayoutChange] = []
    for node_id in known.cutting:
        cards = _cards_of(known, node_id)
        if not cards or not may_serve(known.nodes[node_id].spec, demand):
            continue
        made = [option for card in cards if (option := _filled(node_id, card, demand.mig_profile))]
        if not made:
            continue
        if len(nodes) == CONCEIVABLE_MAX:
            return True
        node = with_nothing_on_it(known.nodes[node_id].spec)
        if demand.gang_size == 1 and fits([node], demand, made):
            return True
        nodes.append(node)
        cuts += made
    return demand.gang_size > 1 and bool(cuts) and fits(nodes, demand, cuts)


def _filled(node_id: str, card: MigCard, profile: str) -> LayoutChange | None:
    """The card with as many parts of a profile as it can have, and no others."""
    bare = MigCard(card.uuid, card.model, card.profiles)
    options = (change_layout(node_id, bare, (), profile, count) for count in range(MIG_SLICES, 0, -1))
    return next((option for option in options if option is not None), None)


def _cards_of(known: Known, node_id: str) -> tuple[MigCard, ...]:
    node = known.nodes.get(node_id)
    return node.spec.cards if node is not None else ()
