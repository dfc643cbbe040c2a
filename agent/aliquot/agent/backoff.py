"""How long to wait before trying again: exponential with full jitter, so that a thousand agents don't come
back as one.
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

    base_s: float = 0.5
    most_s: float = 30.0
    random: Uniform = field(default_factory=SystemRandom)
    failures: int = 0

    def succeeded(self) -> None:
        """Start again from the shortest wait."""
        self.failures = 0

    def next_s(self, at_least_s: float = 0.0) -> float:
        """The wait after one more failure. `at_least_s`: what the other side asked for, jittered on top."""
        self.failures += 1
        ceiling_s = min(self.most_s, self.base_s * 2 ** min(self.failures, 20))
        return at_least_s + self.random.uniform(0.0 if at_least_s else self.base_s / 5, ceiling_s)
