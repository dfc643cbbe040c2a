"""`python -m tests.simulation`: run seeds, say what fails with a minimised trace, and one JSON line at the end."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tests.simulation.checking import check_mutants
from tests.simulation.running import Case, everything_about, minimise, run, story
from tests.simulation.sim.world import SIZES, Result
from tests.simulation.summary import Summary


def main() -> int:
    """The program. Exit code 1 when anything was violated, a second run differed, or a mutant was not caught."""
    arguments = _parser().parse_args()
    # Whoever runs this twice must find the same hashes: not by chance, but although the order of sets differs.
    os.environ["PYTHONHASHSEED"] = "random"
    if arguments.mutants is not None:
        return check_mutants(arguments.mutants, jobs=arguments.jobs, tell=_say)
    if arguments.case or arguments.about:
        case = Case.read(arguments.case) if arguments.case else Case(arguments.first, arguments.size)
        return _tell_all(case, arguments.about)
    return _run_seeds(arguments)


def _run_seeds(arguments: argparse.Namespace) -> int:
    cases = [Case(seed, arguments.size) for seed in range(arguments.first, arguments.first + arguments.seeds)]
    twice = {case.seed for case in cases[:: arguments.twice_every]} if arguments.twice_every else set()
    summary = Summary()
    started = time.perf_counter()
    for case, results in _in_parallel(cases, twice, arguments.jobs):
        result = results[0]
        summary.add(result)
        _say(_line(result))
        if len(results) > 1 and not summary.compare(*results):
            _say(f"seed {case.seed}: a second run gives {results[1].digest}, not {result.digest}")
        if result.violations:
            _say(f"seed {case.seed} fails; looking for the fewest faults with which it does")
            _say(story(*(minimise(case, result) if arguments.minimise else (case, result))))
    _say(json.dumps(summary.as_json(time.perf_counter() - started, arguments.jobs)))
    return int(not summary.good)


def _in_parallel(cases: list[Case], twice: set[int], jobs: int) -> Iterator[tuple[Case, list[Result]]]:
    """Each case's results (two, where it is run twice), as they come. Every run has a new interpreter of its own."""
    progress = Progress(
        TextColumn("seeds"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    spawn = multiprocessing.get_context("spawn")
    with progress, ProcessPoolExecutor(jobs, mp_context=spawn, max_tasks_per_child=1) as pool:
        bar = progress.add_task("seeds", total=len(cases))
        runs: dict[Future[Result], Case] = {}
        for case in cases:
            for _ in range(2 if case.seed in twice else 1):
                runs[pool.submit(run, case)] = case
        came: dict[Case, list[Result]] = {}
        for future in as_completed(runs):
            case = runs[future]
            results = came.setdefault(case, [])
            results.append(future.result())
            if len(results) == (2 if case.seed in twice else 1):
                progress.advance(bar)
                yield case, came.pop(case)


def _tell_all(case: Case, about: str) -> int:
    """One case with a trace of everything, or of whatever has one of the given words in it."""
    result = everything_about(case, about.split(",") if about else [], _say)
    _say(_line(result))
    for violation in result.violations:
        _say(f"VIOLATION {violation}")
    return int(bool(result.violations))


def _line(result: Result) -> str:
    rate = result.events / max(result.cpu_s, 1e-9)
    return (
        f"seed {result.seed}  {result.digest[:16]}  {result.simulated_s:.0f} s in {result.took_s:.1f} s, "
        f"{result.events} events ({rate:.0f} a second of processor), {result.faults.total()} faults, "
        f"{result.counts['grants']} grants, {len(result.violations)} violations"
    )


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first of them")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--size", choices=SIZES, default="whole", help="whole: 200 nodes, 10 minutes; small: 12 nodes")
    parser.add_argument(
        "--twice-every", type=int, default=10, metavar="N", help="run each N-th seed twice and compare hashes; 0: none"
    )
    parser.add_argument(
        "--minimise", action=argparse.BooleanOptionalAction, default=True, help="shrink the faults of a seed that fails"
    )
    parser.add_argument("--case", default="", metavar="JSON", help="run one case again, as printed for a failure")
    parser.add_argument(
        "--about", default="", metavar="WORD[,WORD]", help="one seed or case: print only lines with one of these words"
    )
    parser.add_argument(
        "--mutants", nargs="*", metavar="NAME", help="run the broken variants (these, or all) until each is caught"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
