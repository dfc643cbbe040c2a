"""What one coordinator bears, and a million devices as cells behind one door (docs/scale.md).

    python bench/cells.py --json                 # the plan, the play and two real cells
    python bench/cells.py --measure --write      # first measure this machine, for minutes, and keep it

A cell is an ordinary pool with its own journal and leader. Fields:

    bottleneck_10k, _100k, _1m   what one coordinator of so many devices runs out of first, and how far it is
    devices_max                  of one coordinator: nothing is used up, by lines through what was measured
    cells_1m                     how many cells of that size a million devices are
    wait_p99_s_one, _home, _lend of jobs on one ideal pool of a million devices, on cells where each tenant keeps to
                                 its own, and on cells that lend (`lib/cell_play.py`); `wait_mean_s_*`; `idle_*`: part
                                 of the devices that was idle while somebody waited; `lent`: part of the jobs
    door_p50_ratio               a lease through the door over one without it (`lib/two_cells.py`)
    full_home_lent_to            the cell that serves a tenant whose home is full
    other_cell_served            part of the calls to one cell that were served while the other was dead: 1
    lost_cell_lent               part of the dead cell's calls that the other served
    leases_kept                  of the cell that was killed and begun again: 1
    lost_cell_back_s             until it listed them
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.lib.cell_costs import KEPT, Costs, measured
from bench.lib.cell_play import play
from bench.lib.two_cells import try_out

_MILLION = 1_000_000
_SIZES = {"10k": 10_000, "100k": 100_000, "1m": _MILLION}


def main() -> None:
    """Plan, play, and try two."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure this machine instead of reading what is kept")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--write", action="store_true", help="keep what was measured")
    parser.add_argument("--load", type=float, default=0.95, help="devices that are asked for over those that there are")
    parser.add_argument("--hours", type=float, default=6.0, help="that are played")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    options = parser.parse_args()
    read = measured(quick=options.quick) if options.measure else json.loads(KEPT.read_text())
    if options.write:
        KEPT.write_text(json.dumps(read, indent=1) + "\n")
    costs = Costs(read)
    found = _plan(costs, say=not options.json)
    found |= _played(found["cells_1m"], options)
    found |= asyncio.run(try_out())
    print(json.dumps(found))


def _plan(costs: Costs, *, say: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, devices in _SIZES.items():
        demands = costs.demands(devices)
        worst = max(demands, key=lambda one: one.part)
        found[f"bottleneck_{name}"] = [worst.what, round(worst.part, 2)]
        if say:
            parts = ", ".join(f"{one.what} {one.part:.0%} ({one.takes:.3g} of {one.there_is:g})" for one in demands)
            print(f"{name} devices: {parts}; a page opens with {costs.fleet_mb(devices):.1f} MB")
    found["devices_max"] = costs.largest()
    found["cells_1m"] = -(-_MILLION // found["devices_max"])
    return found


def _played(cells: int, options: argparse.Namespace) -> dict[str, Any]:
    devices = _MILLION // 20 if options.quick else _MILLION
    one, home, lend = (
        play(devices, cells, door, load=options.load, hours=options.hours, seed=1) for door in ("one", "home", "lend")
    )
    if not options.json:
        for name, each in (("one pool", one), ("cells, home alone", home), ("cells that lend", lend)):
            print(f"{name}: {each}")
    found = {"lent": round(lend.lent, 3)}
    for name, each in (("one", one), ("home", home), ("lend", lend)):
        found[f"wait_mean_s_{name}"] = round(each.wait_mean_s, 1)
        found[f"wait_p99_s_{name}"] = round(each.wait_p99_s, 1)
        found[f"idle_{name}"] = round(each.idle_with_line, 4)
    return found


if __name__ == "__main__":
    main()
