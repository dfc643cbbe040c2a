"""How long to wait before trying again: exponential with full jitter, so that a thousand agents don't come
back as one.

The first tries come quickly: a coordinator that has just gone is replaced within seconds, and a node that is not
back takes no grants. What is gone for longer is tried ever less often.
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
    """Longest of the first `quick` waits."""
    most_s: float = 30.0
    quick: int = 20
    """After so many failures waits get longer: on average ten seconds, several times what a failover takes."""
    random: Uniform = field(default_factory=SystemRandom)
    failures: int = 0

    def succeeded(self) -> None:
        """Start again from the shortest wait."""
        self.failures = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The wait after one more failure. `at_least_s`: what the other side asked for, to which up to as much again
        is added: everybody was told the same.
        """
        self.failures += 1
        if at_least_s:
            return at_least_s + self.random.uniform(0.0, at_least_s)
        doublings = min(max(0, self.failures - self.quick), 20)
        return self.random.uniform(self.base_s / 10, min(self.most_s, self.base_s * 2**doublings))
