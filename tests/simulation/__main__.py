"""`python -m tests.simulation`: run seeds, say what fails with a minimised schedule, and one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from tests.simulation.running import Summary, minimise, run, story
from tests.simulation.sim.world import SMALL, Config, Result, World


def main() -> int:
    """The program. Exit code 1 when anything was violated, or a second run differed."""
    arguments = _parser().parse_args()
    config = SMALL if arguments.small else Config()
    if arguments.nodes:
        config = replace(config, nodes=arguments.nodes)
    if arguments.about:
        return _tell_all(arguments.first, config, arguments.about.split(","))
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    summary, failed = Summary(), False
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, mp_context=spawn) as pool:
        for result in pool.map(partial(run, config=config), seeds):
            summary.add(result)
            print(_line(result), flush=True)
            if arguments.twice:
                again = pool.submit(run, result.seed, config).result()
                if again.digest != result.digest:
                    failed = True
                    print(f"seed {result.seed}: a second run gives {again.digest}", flush=True)
            if result.violations:
                failed = True
                print(story(minimise(result, config) if arguments.minimise else result), flush=True)
    last = summary.as_json()
    if arguments.twice:
        last["equal_hashes"] = not failed
    print(json.dumps(last))
    return int(failed)


def _tell_all(seed: int, config: Config, words: list[str]) -> int:
    """Everything that happened to whatever has one of these words in it."""
    world = World(seed, config)
    world.auditor.keep_everything()
    result = world.run()
    for line in result.trace:
        if any(word in line for word in words):
            print(line)
    print(_line(result))
    return int(bool(result.violations))


def _line(result: Result) -> str:
    rate = result.events / max(result.took_s, 1e-9)
    return (
        f"seed {result.seed}  {result.digest[:16]}  {result.simulated_s:.0f} s in {result.took_s:.1f} s, "
        f"{result.events} events ({rate:.0f}/s), {result.faults.total()} faults, {result.counts['grants']} grants, "
        f"{len(result.violations)} violations"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--small", action="store_true", help="12 nodes, a few minutes")
    parser.add_argument("--nodes", type=int, help="another number of nodes")
    parser.add_argument("--twice", action="store_true", help="run each seed again and compare")
    parser.add_argument("--minimise", action="store_true", help="shrink the faults of a seed that fails")
    parser.add_argument("--about", metavar="WORD[,WORD]", help="one seed: print every line with one of these words")
    return parser


if __name__ == "__main__":
    sys.exit(main())
