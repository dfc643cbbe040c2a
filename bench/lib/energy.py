"""What a pool draws while the openb list arrives, and the published policy that goes by power.

Lettich, Carlini, Nardini, Perego, Trani, "Power- and Fragmentation-aware Online Scheduling for GPU Datacenters", CCGrid
2025 (arXiv 2412.17484). Model and policy are those of its public simulator, written anew from its description:

- A card on which nothing is leased draws its idle power, any other its full power, however small the leased part is.
- A node has as many CPU packages as its cores need, two of its CPUs to a core. Each package that a started core makes
  necessary draws full power, the others idle power.
- PWR scores a node by the whole watts that the request would add there, scaled to 0..100 over the nodes on which it
  fits; FGD's 0..100 is added, the two weighed in thousandths (`pwr100` is 100 to 900). The card is FGD's.

T4, A10, P100 and V100 have the power of their data sheets. What G2 and G3 are is not public: 25 and 250 W are that
simulator's invention, and they are three quarters of the cards. Which CPUs the nodes have is its guess, too.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, Policy, make_policy
from aliquot.coordinator.core.placement.candidates import Candidates
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.placement.scoring import NO_SCORE
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, NodeSpec, Placement
from aliquot.plan.arrivals import tuned_arrivals
from aliquot.plan.replay import capacity_milli, fill, pool_of
from aliquot.plan.traces import TraceRequest

sys.path.append(str(Path(__file__).resolve().parents[2]))
from bench.lib.protocol import ARRIVE_MILLI, FIRST_SEED, watcher
from bench.lib.published import Fgd

CORE_MILLI = 2000
"""Two CPUs of a node are one core of a package."""
ALL_MILLI = 1000
COMBINED = "pwr"
"""`pwr100`: PWR by 100 and FGD by 900 thousandths."""
STEP = 10
"""The curve is told at each so many % of the capacity that arrived."""


class Power(NamedTuple):
    """Of a card and of the CPU packages beside it, in watts."""

    idle: int
    full: int
    package_idle: int
    package_full: int
    package_cores: int


POWER = {
    "T4": Power(10, 70, 20, 165, 24),
    "P100": Power(25, 250, 15, 120, 16),
    "V100-16": Power(30, 300, 20, 185, 16),
    "V100-32": Power(30, 300, 20, 185, 16),
    "A10": Power(30, 150, 20, 270, 32),
    "G2": Power(25, 250, 20, 270, 32),
    "G3": Power(25, 250, 20, 270, 32),
}


class Drawn:
    """What the rows of a pool draw, in watts."""

    def __init__(self, inventory: Inventory) -> None:
        self.table = inventory.table
        self._power: Ints = np.array([POWER[each.model] for each in inventory.classes], np.int64)

    def of(self, rows: Ints) -> Ints:
        """[what, row]: the fields of `Power`."""
        return self._power[self.table.class_id[rows]].T

    def packages(self, rows: Ints, cpu_left: Ints) -> Ints:
        """[row, …] what the packages draw with so much CPU left ([row, …])."""
        idle, full, cores = (each[:, None] for each in self.of(rows)[2:])
        real = -(-self.table.cpu_capacity[rows][:, None] // CORE_MILLI)
        awake = -(-(real - cpu_left // CORE_MILLI) // cores)
        drawn: Ints = awake * full + (-(-real // cores) - awake) * idle
        return drawn

    def pool(self) -> tuple[int, int]:
        """(cards, packages) in all."""
        rows = np.arange(self.table.rows)
        idle, full = self.of(rows)[:2]
        free = (self.table.share_left[rows] == WHOLE_SHARE_MILLI).sum(axis=1)
        cards = int((free * idle + (self.table.width[rows] - free) * full).sum())
        return cards, int(self.packages(rows, self.table.cpu_left[rows][:, None]).sum())


class Pwr(Policy):
    """Minus the watts that are added."""

    name = "pwr"
    summary = "fewest watts added"
    per_device = True
    utilisation_ties = False

    def learn_classes(self, inventory: Inventory) -> None:
        """See `Policy.learn_classes`."""
        self.drawn = Drawn(inventory)

    def device_scores(self, c: Candidates) -> Ints:
        """A card on which something is leased already adds nothing."""
        idle, full = self.drawn.of(c.rows)[:2, c.row_of, None]
        cards = c.count * (full - idle) * (c.left == WHOLE_SHARE_MILLI)
        added = self.drawn.packages(c.rows, c.cpu_left - c.cpu) - self.drawn.packages(c.rows, c.cpu_left)
        scores: Ints = -cards - added[c.row_of]
        return scores


class PowerAware(Engine):
    """PWR + FGD: the node by the sum, the card by FGD."""

    def __init__(self, inventory: Inventory, policy: Policy, weight_milli: int) -> None:
        super().__init__(inventory, policy)
        self._by_power = Engine(inventory, Pwr())
        self._weight_milli = weight_milli

    def place(self, demand: Demand) -> Placement | None:
        """As the engine does, where the request fits."""
        watts = self._by_power.scores(demand, demand)
        scores = self.scores(demand, demand)
        fits = np.flatnonzero(scores > NO_SCORE)
        if not len(fits):
            return None
        watts = watts[fits]
        least, span = watts.min(), watts.max() - watts.min()
        scaled = (watts - least) * 100 // span if span else np.full_like(watts, 100)
        row = fits[(self._weight_milli * scaled + (ALL_MILLI - self._weight_milli) * scores[fits]).argmax()]
        node = self.inventory.table.node_of_row[row]
        assert node is not None
        slices = self.choose_on(demand, demand, node.spec.node_id)
        assert slices is not None, "it fits there"
        return Placement((slices,), (node.spec.node_id,), "")


class Seen(NamedTuple):
    """One pass, in % that arrived: what was allocated in %, and the kilowatts of cards and of packages."""

    allocated: dict[int, float]
    cards_kw: dict[int, float]
    packages_kw: dict[int, float]


def engine_of(inventory: Inventory, name: str) -> Engine:
    """A policy by its name, or `pwr` and a weight in thousandths."""
    weight = name.removeprefix(COMBINED)
    if weight != name and weight.isdecimal():
        return PowerAware(inventory, Fgd(), int(weight))
    return Engine(inventory, make_policy(name))


def run(nodes: list[NodeSpec], requests: list[TraceRequest], name: str, seed: int) -> Seen:
    """The protocol of the `fgd` study, with the pool's power after each arrival."""
    random.Random(seed).shuffle(nodes)
    inventory = pool_of(nodes)
    engine = engine_of(inventory, name)
    demands = [each.demand for each in tuned_arrivals(requests, capacity_milli(inventory), ARRIVE_MILLI, seed)]
    learns = watcher(engine.policy, requests, inventory)
    drawn = Drawn(inventory)
    before: list[tuple[int, int]] = []

    def watch(arrival: int, demand: Demand) -> None:
        before.append(drawn.pool())
        if learns is not None:
            learns(arrival, demand)

    filled = fill(engine, demands, before=watch)
    watts = np.array([*before[1:], drawn.pool()])
    capacity = filled.capacity_milli
    arrived = np.array([round(100 * each / capacity) for each in filled.arrived_milli])
    seen = Seen({}, {}, {})
    for percent in range(STEP, ARRIVE_MILLI // 10 + 1, STEP):
        cards, packages = (watts[arrived == percent].mean(axis=0) / 1000).tolist()
        seen.allocated[percent], seen.cards_kw[percent], seen.packages_kw[percent] = filled.at(percent), cards, packages
    return seen


def report(
    options: argparse.Namespace, lists: tuple[list[NodeSpec], list[TraceRequest]], names: list[str], console: Console
) -> dict[str, dict[str, dict[int, float]]]:
    """By policy, means over the seeds by % that arrived: `allocated`, `cards_kw`, `packages_kw`, `kw`, and of `kw` the
    ratio to the first policy's as `watts_ratio`, of `allocated` as `allocated_ratio`.
    """
    nodes, requests = lists
    result: dict[str, dict[str, dict[int, float]]] = {}
    with Progress(console=console) as progress, ProcessPoolExecutor(options.jobs, initializer=warm_up) as workers:
        bar = progress.add_task("placing", total=len(names) * options.seeds)
        futures = {
            name: [workers.submit(run, nodes, requests, name, FIRST_SEED + seed) for seed in range(options.seeds)]
            for name in names
        }
        for name, pending in futures.items():
            passes = []
            for future in pending:
                passes.append(future.result())
                progress.advance(bar)
            means = {
                what: {at: statistics.mean(getattr(each, what)[at] for each in passes) for at in passes[0].allocated}
                for what in Seen._fields
            }
            means["kw"] = {at: kw + means["packages_kw"][at] for at, kw in means["cards_kw"].items()}
            base = result.get(names[0], means)
            for what, ratio in (("kw", "watts_ratio"), ("allocated", "allocated_ratio")):
                means[ratio] = {at: value / base[what][at] for at, value in means[what].items()}
            result[name] = means
    rounded = {
        name: {
            what: {at: round(value, 4 if "ratio" in what else 2) for at, value in row.items()}
            for what, row in m.items()
        }
        for name, m in result.items()
    }
    if not options.json:
        for what in ("allocated", "kw", "watts_ratio"):
            for name, rows in rounded.items():
                console.print(f"{name:10s} {what:12s} {list(rows[what].values())}")
    return rounded
