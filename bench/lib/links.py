"""What it costs to place devices of one request where their links are good.

The public lists say nothing of links. So each node's devices are taken to be in islands of so many, in their order, as
most machines with 8 cards have two. Every policy places the list twice: without looking at links (`any`), and as
requests are placed unless they say otherwise (`prefer`: an island, then a NUMA node, before the policy's own score).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.progress import Progress

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, Policy, make_policy
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.values.types import Demand, NodeSpec, Placement, Topology
from aliquot.plan.arrivals import tuned_arrivals
from aliquot.plan.replay import capacity_milli, fill, pool_of
from aliquot.plan.traces import TraceRequest

sys.path.append(str(Path(__file__).resolve().parents[2]))
from bench.lib.protocol import ARRIVE_MILLI, FIRST_SEED, PERCENTS, watcher

TOPOLOGIES = {"any": Topology.ANY, "prefer": Topology.PREFER_ISLAND}


class Found(NamedTuple):
    """One pass: allocated in % at each of `PERCENTS`, and of the requests for several devices that fit an island, how
    many % got one.
    """

    at: tuple[float, ...]
    linked_percent: float


class _Watched(Engine):
    """Counts the members that are in one island."""

    def __init__(self, inventory: Inventory, policy: Policy, size: int) -> None:
        super().__init__(inventory, policy)
        self._size = size
        self.several = self.linked = 0

    def place(self, demand: Demand, *, arrival: int = 0) -> Placement | None:
        """As the engine does."""
        placement = super().place(demand)
        if placement is not None and 1 < demand.count <= self._size:
            for member in placement.members:
                self.several += 1
                self.linked += len({self._island_of(piece.device_uuid) for piece in member}) == 1
        return placement

    def _island_of(self, uuid: str) -> int:
        return self.inventory.device_record(uuid).spec.nvlink_island


def linked_nodes(nodes: Sequence[NodeSpec], size: int) -> list[NodeSpec]:
    """The nodes, with their devices in islands and NUMA nodes of `size`."""
    return [
        msgspec.structs.replace(
            node,
            devices=tuple(
                msgspec.structs.replace(device, nvlink_island=number // size, numa_node=number // size)
                for number, device in enumerate(node.devices)
            ),
        )
        for node in nodes
    ]


def run(
    nodes: list[NodeSpec], requests: list[TraceRequest], size: int, policy_name: str, topology: Topology, seed: int
) -> Found:
    """The study's protocol, on nodes whose links are known."""
    nodes = linked_nodes(nodes, size)
    random.Random(seed).shuffle(nodes)
    inventory = pool_of(nodes)
    engine = _Watched(inventory, make_policy(policy_name), size)
    arrivals = tuned_arrivals(requests, capacity_milli(inventory), ARRIVE_MILLI, seed)
    demands = [msgspec.structs.replace(each.demand, topology=topology) for each in arrivals]
    filled = fill(engine, demands, before=watcher(engine.policy, requests, inventory))
    share = 100 * engine.linked / engine.several if engine.several else 0.0
    return Found(tuple(filled.at(percent) for percent in PERCENTS), share)


def report(
    options: argparse.Namespace, lists: tuple[list[NodeSpec], list[TraceRequest]], names: list[str], console: Console
) -> dict[str, dict[str, float]]:
    """By policy and topology: `at_100`, `at_130` and `linked_percent`, means over the seeds."""
    nodes, requests = lists
    result: dict[str, dict[str, float]] = {}
    keys = [(name, word) for name in names for word in TOPOLOGIES]
    with Progress(console=console) as progress, ProcessPoolExecutor(options.jobs, initializer=warm_up) as workers:
        bar = progress.add_task("placing", total=len(keys) * options.seeds)
        futures = {
            (name, word): [
                workers.submit(run, nodes, requests, options.islands, name, TOPOLOGIES[word], FIRST_SEED + seed)
                for seed in range(options.seeds)
            ]
            for name, word in keys
        }
        for (name, word), pending in futures.items():
            found = []
            for future in pending:
                found.append(future.result())
                progress.advance(bar)
            figures = {
                f"at_{percent}": round(statistics.mean(each.at[number] for each in found), 3)
                for number, percent in enumerate(PERCENTS)
            }
            figures["linked_percent"] = round(statistics.mean(each.linked_percent for each in found), 1)
            result[f"{name}@{word}"] = figures
            if not options.json:
                console.print(f"{name}@{word:8s} {figures}")
    return result
