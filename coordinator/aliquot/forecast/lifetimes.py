"""How long leases run, learnt from those that ended and from those that still run (Kaplan and Meier, 1958).

Leaving out what still runs would take the short ones for all of them: those that have ended lately are the short ones.
Beyond the longest end that was seen, what has run so long is expected to run as long again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

LEAST_S = 60.0


class Lifetimes:
    """The survival curve of some leases, and draws from it."""

    def __init__(self, ended_s: Iterable[float], running_s: Iterable[float]) -> None:
        seen = sorted([(length, True) for length in ended_s] + [(age, False) for age in running_s])
        self._times = [0.0]
        self._alive = [1.0]
        """[i] the part that lives on after `_times[i]`."""
        for number, (length, over) in enumerate(seen):
            if over:
                alive = self._alive[-1] * (1 - 1 / (len(seen) - number))
                if length == self._times[-1]:
                    self._alive[-1] = alive
                else:
                    self._times.append(length)
                    self._alive.append(alive)
        self._fallen = [-part for part in self._alive]

    def draw(self, age_s: float, chance: float) -> float:
        """A length of one that has run `age_s`, in seconds; `chance` in (0, 1] is how lucky it is to end early."""
        index = max(bisect_right(self._times, age_s) - 1, 0)
        alive = self._alive[index]
        goal = chance * alive
        found = bisect_right(self._fallen, -goal)
        while found < len(self._times) and self._times[found] <= age_s:
            found += 1
        if found < len(self._times) and self._alive[found] > 0:
            return self._times[found]
        if found < len(self._times) and goal > 0 and self._times[found] > age_s and self._alive[found - 1] > goal:
            return self._times[found]
        longest = max(self._times[-1], age_s, LEAST_S)
        rest = self._alive[-1] or alive
        return longest * max(1.0, rest / max(goal, 1e-6)) if rest > goal else max(longest, age_s * 1.05)
