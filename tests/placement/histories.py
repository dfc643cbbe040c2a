"""Random demands and pools, drawn from a seed so that a failure can be run again."""

from __future__ import annotations

import random

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.values.types import Demand, NodeSpec, Topology
from tests.placement.pools import GIB, node, pool


def mixed_pool(nodes: int) -> Inventory:
    """Several models, widths, domains, MIG instances, and nodes that say nothing about CPU or links."""
    specs: list[NodeSpec] = []
    for number in range(nodes):
        name, domain = f"n{number:04d}", f"rack{number % 5}"
        match number % 6:
            case 0:
                spec = node(name, 8, island_size=4, numa_size=4, domain=domain)
            case 1:
                spec = node(name, 4, model="V100-32", memory_gib=32, numa_size=2, domain=domain)
            case 2:
                spec = node(name, 2, model="T4", memory_gib=16, cpu_milli=16_000)
            case 3:
                spec = node(name, 8, domain=domain, cpu_milli=-1)
            case 4:
                spec = node(name, 14, model="A100-40", memory_gib=5, mig_profile="1g.5gb", pool="mig")
            case _:
                spec = node(name, 1, model="A10", memory_gib=24, labels=(("kind", "edge"),))
        specs.append(spec)
    return pool(*specs)


def random_demand(rng: random.Random) -> Demand:
    """One of the shapes that people ask for, and some that they rarely do."""
    cpu = rng.choice([0, 0, 2000, 8000])
    kinds = [
        Demand(share_milli=rng.choice([50, 100, 190, 250, 333, 470, 500, 650, 810]), cpu_milli=cpu),
        Demand(share_milli=rng.choice([100, 500]), memory_bytes=rng.choice([2, 10, 30]) * GIB),
        Demand(memory_bytes=rng.choice([1, 7, 15]) * GIB, cpu_milli=cpu),
        Demand(count=1, cpu_milli=cpu),
        Demand(count=rng.choice([2, 4, 8])),
        Demand(count=2, share_milli=300, topology=Topology.ANY),
        Demand(count=rng.choice([2, 4]), topology=Topology.REQUIRE_ISLAND),
        Demand(count=2, share_milli=500, models=(("T4",), ("V100-32", "A100-80"))),
        Demand(mig_profile="1g.5gb", count=rng.choice([1, 3])),
        Demand(share_milli=rng.choice([50, 250]), memory_bytes=2 * GIB, cpu_milli=cpu, or_mig=True),
        Demand(count=0, cpu_milli=4000),
        Demand(share_milli=250, node_selector=(("kind", "edge"),)),
        Demand(
            share_milli=200,
            affinity_group=f"g{rng.randrange(3)}",
            max_per_node=rng.choice([0, 1, 2]),
            spread_domains=rng.random() < 0.5,
        ),
        Demand(gang_size=rng.choice([2, 5]), count=rng.choice([1, 2]), share_milli=rng.choice([500, 1000])),
        Demand(gang_size=rng.choice([2, 5]), count=rng.choice([1, 2]), share_milli=300, apart=True),
        Demand(
            share_milli=100,
            avoid_node_ids=(f"n{rng.randrange(8):04d}",),
            avoid_device_uuids=tuple(f"GPU-n{rng.randrange(8):04d}-{i}" for i in range(3)),
        ),
    ]
    return rng.choice(kinds)
