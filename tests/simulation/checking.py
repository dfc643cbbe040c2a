"""Runs the deliberately broken variants: each must be caught in its scene, or within a few small seeds."""

from __future__ import annotations

import json
import multiprocessing
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from random import Random

from tests.simulation import (
    mutations,
    mutations_access,
    mutations_health,
    mutations_kept,
    mutations_orders,
    mutations_people,
    mutations_use,
)
from tests.simulation.faults import schedule
from tests.simulation.mutant import MUTANTS, Mutant
from tests.simulation.running import Case, run
from tests.simulation.sim.world import SIZES
from tests.simulation.stage import Stage

CATALOGUE = (
    mutations,
    mutations_people,
    mutations_kept,
    mutations_access,
    mutations_health,
    mutations_use,
    mutations_orders,
)
"""What fills the list of mutants."""
SEEDS_MAX = 16
"""A mutant that so many seeds do not catch counts as not caught."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one mutant."""

    name: str
    mistake: str
    where: str
    """The number of the seed that caught it, or of the last one that did not; or "scene"."""
    events: int
    """Of that, until then."""
    simulated_s: float
    violation: str
    """What caught it: the first thing that was wrong. Empty: nothing was."""

    @property
    def caught(self) -> bool:
        """Whether a rule was broken. That what a variant names is gone shows nothing: the variant has to be mended."""
        return bool(self.violation) and not re.search(r"(Attribute|Name)Error\(", self.violation)

    def row(self) -> str:
        """A line of the table in docs/measured.md."""
        told = self.violation.partition(" s: ")[2] or self.violation
        told = told if self.caught else f"**not caught** {told}".strip()
        return f"| {self.name} | {self.mistake} | {told} | {self.where} | {self.simulated_s:.0f} s, {self.events} |"


def named(name: str) -> Mutant:
    """Raises ValueError for a name that there is not."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise ValueError(f"there is no mutant {name!r}: {', '.join(sorted(mutant.name for mutant in MUTANTS))}")


def check(name: str, seeds_max: int = SEEDS_MAX) -> Verdict:
    """Run one mutant in its scene, if it has one, and on one small seed after the other, until it is caught."""
    mutant = named(name)
    if mutant.scene:
        stage = Stage()
        with mutant.applied():
            violations = stage.play_all(mutant.scene)
        if violations:
            events, now_s = stage.world.auditor.events(), stage.world.now_s()
            return Verdict(mutant.name, mutant.mistake, "scene", events, now_s, violations[0])
    for seed in range(1, seeds_max + 1):
        case = _case(mutant, seed)
        with mutant.applied():
            result = run(case)
        if result.violations or seed == seeds_max:
            wrong = result.violations[0] if result.violations else ""
            return Verdict(mutant.name, mutant.mistake, str(seed), result.events, result.simulated_s, wrong)
    raise AssertionError("at least one seed is needed")


def _case(mutant: Mutant, seed: int) -> Case:
    """The seed's own faults; of a mutant that shows in some kinds only, faults of these kinds, and more."""
    if not mutant.kinds:
        return Case(seed, mutant.size)
    config = SIZES[mutant.size]
    often = replace(config, faults_per_s=config.faults_per_s * mutant.often)
    return Case(seed, mutant.size, tuple(schedule(Random(seed), often, mutant.kinds)))


def check_mutants(names: Sequence[str], *, jobs: int, tell: Callable[[str], None]) -> int:
    """Run these, or all; tell a table of Markdown, and a line of JSON. Returns 1 when one was not caught."""
    chosen = list(names) or [mutant.name for mutant in MUTANTS]
    started = time.perf_counter()
    tell("| variant | mistake | caught by | seed | after (simulated time, events) |")
    tell("|---|---|---|---|---|")
    caught = 0
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=spawn) as pool:
        for verdict in pool.map(check, chosen):
            tell(verdict.row())
            caught += verdict.caught
    summary = {"mutants": len(chosen), "caught": caught, "wall_s": round(time.perf_counter() - started, 1)}
    tell(json.dumps(summary))
    return int(caught < len(chosen))
