"""Runs cases, minimises what fails, and says it so that it can be run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from tests.simulation.faults import Fault
from tests.simulation.sim.world import SIZES, Result, World

COMMAND = "python -m tests.simulation"


@dataclass(frozen=True, slots=True)
class Case:
    """What a run depends on, and all of it."""

    seed: int
    size: str = "whole"
    faults: tuple[Fault, ...] | None = None
    """None: those that the seed draws."""

    def world(self) -> World:
        """Not started yet."""
        return World(self.seed, SIZES[self.size], None if self.faults is None else list(self.faults))

    def __str__(self) -> str:
        """One line of JSON, for the list of past failures and for `--case`."""
        said: dict[str, object] = {"seed": self.seed, "size": self.size}
        if self.faults is not None:
            said["faults"] = [[fault.at_ms, fault.kind, fault.duration_ms, fault.seed] for fault in self.faults]
        return json.dumps(said)

    @classmethod
    def read(cls, text: str) -> Case:
        """Of a line written by `str`. Raises ValueError."""
        said = json.loads(text)
        faults = None if "faults" not in said else tuple(Fault(*fault) for fault in said["faults"])
        if said["size"] not in SIZES:
            raise ValueError(f"there is no size {said['size']!r}: use one of {', '.join(SIZES)}")
        return cls(int(said["seed"]), said["size"], faults)


def run(case: Case) -> Result:
    """One run."""
    return case.world().run()


run_once = cache(run)
"""The same, of the unbroken product: a case that several tests need runs once in a process."""


def minimise(case: Case, result: Result, runs_max: int = 60) -> tuple[Case, Result]:
    """The case with the fewest faults found with which it still fails: chunks are left out, halves first."""
    failed_ms = int(result.simulated_s * 1000) + 1
    best = result
    faults = [fault for fault in result.schedule if fault.at_ms <= failed_ms]
    chunk = max(1, len(faults) // 2)
    passed: set[tuple[Fault, ...]] = set()
    runs = 0
    while faults and runs < runs_max:
        shrunk = False
        start = 0
        while start < len(faults) and runs < runs_max:
            fewer = tuple(faults[:start] + faults[start + chunk :])
            if fewer in passed:
                start += chunk
                continue
            runs += 1
            again = run(Case(case.seed, case.size, fewer))
            if again.violations:
                best, faults, shrunk = again, list(fewer), True
            else:
                passed.add(fewer)
                start += chunk
        if chunk == 1 and not shrunk:
            break
        chunk = max(1, chunk // 2)
    return Case(case.seed, case.size, tuple(faults)), best


def story(case: Case, result: Result, lines: int = 40) -> str:
    """A failure for people: what is wrong, with which faults, what happened last, and how to see it again."""
    faults = result.schedule if case.faults is None else case.faults
    text = [f"seed {result.seed}: {len(result.violations)} violations after {result.simulated_s:.3f} s"]
    text += [f"  VIOLATION {violation}" for violation in result.violations[:5]]
    text += ["  with these faults:", *([f"    {fault}" for fault in faults] or ["    none"])]
    text += ["  what happened last:", *(f"    {line}" for line in result.trace[-lines:])]
    text += ["  again:", f"    {COMMAND} --case '{case}'"]
    return "\n".join(text)


def everything_about(case: Case, words: list[str], tell: Callable[[str], None]) -> Result:
    """Run with a trace of everything, and tell the lines that have one of these words (all, when there are none)."""
    world = case.world()
    world.auditor.keep_everything()
    result = world.run()
    for line in result.trace:
        if not words or any(word in line for word in words):
            tell(line)
    return result
