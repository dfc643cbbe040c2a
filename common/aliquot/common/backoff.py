"""How long to wait before trying again: exponential with full jitter, so that agents don't all reconnect at once.

The first tries come quickly: a lost coordinator is replaced within seconds, and a node gets no grants until it is
back. After that, tries become rarer.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import SystemRandom
from typing import Protocol


class Uniform(Protocol):
    """What `random.Random` offers."""

    def uniform(self, a: float, b: float, /) -> float:
        """A number between two others."""


@dataclass(slots=True)
class Backoff:
    """Counts failures in a row."""

    base_s: float = 1.0
    """The longest of the first `quick` waits."""
    most_s: float = 30.0
    quick: int = 20
    """After this many failures waits get longer: after ten seconds on average, several times what a failover takes."""
    random: Uniform = field(default_factory=SystemRandom)
    failures: int = 0

    def succeeded(self) -> None:
        """Start again from the shortest wait."""
        self.failures = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The wait after one more failure. `at_least_s`: the wait that the other side asked for. Up to as much again is
        added to it, because everybody was told the same.
        """
        self.failures += 1
        if at_least_s:
            return at_least_s + self.random.uniform(0.0, at_least_s)
        doublings = min(max(0, self.failures - self.quick), 20)
        return self.random.uniform(self.base_s / 10, min(self.most_s, self.base_s * 2**doublings))
