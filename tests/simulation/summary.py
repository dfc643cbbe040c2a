"""What many runs came to, as the last line of `make simulate` says it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.simulation.faults import KINDS
from tests.simulation.sim.world import Result


@dataclass(slots=True)
class Summary:
    """See the module's docstring."""

    seeds: int = 0
    violations: int = 0
    events: int = 0
    steps: int = 0
    lease_operations: int = 0
    simulated_s: float = 0.0
    took_s: float = 0.0
    cpu_s: float = 0.0
    compared: int = 0
    """Runs that were made a second time."""
    different: int = 0
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
        self.cpu_s += result.cpu_s
        self.faults += result.faults
        self.counts.update(result.counts)

    def compare(self, first: Result, second: Result) -> bool:
        """Two runs of one case: were they the same?"""
        self.compared += 1
        same = (first.digest, first.events, first.violations) == (second.digest, second.events, second.violations)
        self.different += not same
        return same

    @property
    def good(self) -> bool:
        """Nothing was violated, and second runs were the same."""
        return not self.violations and not self.different

    def as_json(self, wall_s: float, jobs: int) -> dict[str, object]:
        """`events_per_s`, `lease_operations_per_s` and `times_real_time` are of the whole command, by the wall clock.

        Second runs take their part of that time, but are not counted as events. The same per second of one processor,
        which a busy machine does not disturb as much, is `events_per_cpu_s`.
        """
        wall_s, cpu_s = max(wall_s, 1e-9), max(self.cpu_s, 1e-9)
        return {
            "seeds": self.seeds,
            "events": self.events,
            "events_per_s": round(self.events / wall_s),
            "events_per_cpu_s": round(self.events / cpu_s),
            "jobs": jobs,
            "wall_s": round(wall_s, 1),
            "lease_operations": self.lease_operations,
            "lease_operations_per_s": round(self.lease_operations / wall_s, 1),
            "lease_operations_per_cpu_s": round(self.lease_operations / cpu_s, 1),
            "loop_steps_per_cpu_s": round(self.steps / cpu_s),
            "simulated_s": round(self.simulated_s),
            "times_real_time": round(self.simulated_s / wall_s, 1),
            "fault_kinds": len(self.faults),
            "fault_kinds_known": len(KINDS),
            "faults": self.faults.total(),
            "hashes_compared": self.compared,
            "hashes_equal": not self.different if self.compared else None,
            "counts": dict(sorted(self.counts.items())),
            "violations": self.violations,
        }
