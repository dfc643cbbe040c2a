"""`python -m tests.simulation`: run seeds, print violations with a minimised schedule, and one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import replace

from tests.simulation.sim.world import SMALL, Config, World


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulate")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--about")
    parser.add_argument("--trace", action="store_true")
    a = parser.parse_args()
    config = SMALL if a.small else Config()
    if a.nodes:
        config = replace(config, nodes=a.nodes)
    kinds: Counter[str] = Counter()
    bad = 0
    for seed in range(a.first, a.first + a.seeds):
        world = World(seed, config)
        if a.about:
            world.auditor.keep_everything()
        r = world.run()
        if a.about:
            words = a.about.split(",")
            print("\n".join(line[:700] for line in r.trace if any(word in line for word in words)))
        kinds += r.faults
        rate = r.events / r.took_s
        print(seed, r.digest[:12], f"{r.simulated_s:.0f}s sim in {r.took_s:.1f}s, {r.events} events, {rate:.0f}/s, steps {r.steps}", r.counts if seed == a.first else "", flush=True)
        if r.violations:
            bad += 1
            if a.trace:
                print("\n".join(r.trace[-60:]))
            for v in r.violations[:3]:
                print("   VIOLATION", v[:600])
    print(json.dumps({"violations": bad, "fault_kinds": len(kinds)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
