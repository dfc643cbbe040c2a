"""A pool half in MIG mode, and parts of cards for which an instance does as well or does not.

    python bench/mig.py --policies price,fgd --seeds 3 --json

Twelve nodes of eight undivided A100-80, and twelve whose eight cards are cut in three ways. Of the arrivals, 40 % are
for a MIG profile by name, 50 % for a part of a card by share and memory, and 10 % for a whole card; they come in random
order (the seed) until 110 % of the pool's share has come, and none leaves. Each seed is played twice: parts are served
by undivided cards alone, as without `or_mig`, and either way. The last line has, by policy and way, what is allocated
of the share at the end, and how many of 100 were served of each kind; means over the seeds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.rules.trial import hold
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, NodeSpec
from aliquot.plan.traces import TraceRequest
from bench.lib.driving import GIB
from bench.lib.protocol import FIRST_SEED, watcher

NODES, CARDS = 12, 8
PROFILES = {"1g.10gb": (142, 9_728), "2g.20gb": (285, 19_968), "3g.40gb": (428, 40_192), "4g.40gb": (571, 40_192)}
"""Compute in thousandths of the card, and MiB to lease."""
CUTS = (("1g.10gb",) * 7, ("2g.20gb",) * 3 + ("1g.10gb",), ("4g.40gb", "3g.40gb"))
BY_NAME = {"1g.10gb": 6, "2g.20gb": 3, "3g.40gb": 1, "4g.40gb": 1}
PARTS = ((100, 6), (125, 9), (250, 15), (250, 18), (500, 30))
"""Share in thousandths, and GiB."""
ARRIVE_PERCENT = 110
KINDS = ("by profile", "part", "whole")


def pool() -> Inventory:
    """The same for all."""
    inventory = Inventory()
    for number in range(NODES):
        cut = tuple(
            DeviceSpec(
                f"MIG-{number}-{card}-{place}",
                "A100-80",
                PROFILES[profile][1] << 20,
                index=card,
                mig_profile=profile,
                compute_milli=PROFILES[profile][0],
            )
            for card in range(CARDS)
            for place, profile in enumerate(CUTS[card % len(CUTS)])
        )
        whole = tuple(DeviceSpec(f"GPU-{number}-{card}", "A100-80", 80 * GIB, index=card) for card in range(CARDS))
        for name, devices in ((f"mig-{number}", cut), (f"whole-{number}", whole)):
            inventory.put_node(NodeSpec(name, name, devices))
            inventory.set_grantable(name, True)
    return inventory


def requests(seed: int, *, or_mig: bool) -> list[Demand]:
    """What arrives: with and without `or_mig`, the same."""
    rng = random.Random(seed)
    found: list[Demand] = []
    arrived, capacity = 0, sum(totals.share_capacity_milli for totals in pool().totals().values())
    while arrived * 100 < capacity * ARRIVE_PERCENT:
        kind = rng.choices(KINDS, (40, 50, 10))[0]
        if kind == "by profile":
            profile = rng.choices(list(BY_NAME), list(BY_NAME.values()))[0]
            found.append(Demand(share_milli=1000, mig_profile=profile))
            arrived += PROFILES[profile][0]
        elif kind == "part":
            share, gib = rng.choice(PARTS)
            found.append(Demand(share_milli=share, memory_bytes=gib * GIB, or_mig=or_mig))
            arrived += share
        else:
            found.append(Demand(share_milli=1000))
            arrived += 1000
    return found


def kind_of(demand: Demand) -> str:
    """One of `KINDS`."""
    return "by profile" if demand.mig_profile else "whole" if demand.share_milli == 1000 else "part"


def play(policy_name: str, demands: list[Demand]) -> dict[str, float]:
    """What is allocated, and how many of 100 of each kind were served."""
    inventory, policy = pool(), make_policy(policy_name)
    engine = Engine(inventory, policy, compiled=False)
    watch = watcher(policy, [TraceRequest("", demand, 0.0, 0.0) for demand in demands], inventory)
    came, served = Counter(map(kind_of, demands)), Counter[str]()
    for arrival, demand in enumerate(demands):
        if watch is not None:
            watch(arrival, demand)
        placement = engine.place(demand)
        if placement is not None:
            hold(inventory, demand, placement)
            served[kind_of(demand)] += 1
    totals = inventory.totals().values()
    allocated = sum(each.share_used_milli for each in totals) / sum(each.share_capacity_milli for each in totals)
    return {"allocated": allocated * 100} | {kind: served[kind] * 100 / came[kind] for kind in KINDS}


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--policies", default="price,fgd")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, dict[str, float]] = {}
    for policy in options.policies.split(","):
        for or_mig in (False, True):
            seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
            runs = [play(policy, requests(seed, or_mig=or_mig)) for seed in seeds]
            name = f"{policy}, {'either way' if or_mig else 'undivided alone'}"
            found[name] = {key: round(sum(run[key] for run in runs) / len(runs), 1) for key in runs[0]}
            print(f"{name:>24}", *(f"{key} {value:5.1f}" for key, value in found[name].items()), sep="  ")
    if options.json:
        print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
