"""Runs seeds, minimises what fails, and sums up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.simulation.faults import KINDS, Fault
from tests.simulation.sim.world import Config, Result, World


def run(seed: int, config: Config, faults: list[Fault] | None = None) -> Result:
    """One run of one seed, with its own schedule of faults or with the given one."""
    return World(seed, config, faults).run()


def minimise(result: Result, config: Config, runs_max: int = 60, report: Callable[[str], None] = print) -> Result:
    """The smallest schedule found with which the seed still fails: chunks of faults are left out, halves first."""
    best, faults = result, [fault for fault in result.schedule if fault.at_ms <= _failed_ms(result)]
    chunk = max(1, len(faults) // 2)
    runs = 0
    while faults and runs < runs_max:
        shrunk = False
        start = 0
        while start < len(faults) and runs < runs_max:
            fewer = faults[:start] + faults[start + chunk :]
            runs += 1
            again = run(result.seed, config, fewer)
            if again.violations:
                best, faults, shrunk = again, fewer, True
            else:
                start += chunk
        if chunk == 1 and not shrunk:
            break
        chunk = max(1, chunk // 2)
    report(f"minimised {len(result.schedule)} faults to {len(faults)} in {runs} runs")
    best.schedule = faults
    return best


def _failed_ms(result: Result) -> int:
    return int(result.simulated_s * 1000) + 1


def story(result: Result, lines: int = 40) -> str:
    """A failure for people: what is wrong, with which faults, and what happened last."""
    text = [f"seed {result.seed}: {len(result.violations)} violations after {result.simulated_s:.3f} s"]
    text += [f"  VIOLATION {violation}" for violation in result.violations[:5]]
    text += ["  with these faults:", *([f"    {fault}" for fault in result.schedule] or ["    none"])]
    text += ["  what happened last:", *(f"    {line}" for line in result.trace[-lines:])]
    return "\n".join(text)


@dataclass(slots=True)
class Summary:
    """What all seeds together came to."""

    seeds: int = 0
    violations: int = 0
    events: int = 0
    steps: int = 0
    lease_operations: int = 0
    simulated_s: float = 0.0
    took_s: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, result: Result) -> None:
        """One more."""
        self.seeds += 1
        self.violations += len(result.violations)
        self.events += result.events
        self.steps += result.steps
        self.lease_operations += result.lease_operations
        self.simulated_s += result.simulated_s
        self.took_s += result.took_s
        self.faults += result.faults
        self.counts.update(result.counts)

    def as_json(self) -> dict[str, object]:
        """The last line. Rates are per second of one process."""
        took_s = max(self.took_s, 1e-9)
        return {
            "seeds": self.seeds,
            "events": self.events,
            "events_per_s": round(self.events / took_s),
            "loop_steps_per_s": round(self.steps / took_s),
            "lease_operations": self.lease_operations,
            "lease_operations_per_s": round(self.lease_operations / took_s),
            "simulated_s": round(self.simulated_s),
            "times_real_time": round(self.simulated_s / took_s, 1),
            "fault_kinds": len(self.faults),
            "fault_kinds_known": len(KINDS),
            "faults": self.faults.total(),
            "counts": dict(sorted(self.counts.items())),
            "violations": self.violations,
        }
