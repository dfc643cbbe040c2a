"""When will what waits start? The queue, played forward many times.

Each time, how long everything that runs will still run is drawn from what is known of its like, and what waits starts
in its order as soon as a node has room and limits allow it, smaller requests passing those that do not fit. So each
request gets as many possible starts as there were plays. Limits are known with the times at which windows of quotas
change them. What is left out: requests that come later, preemption, guarantees, limits on memory or on one kind of
devices, and how shares lie within a node; what these do to the outcome the intervals learn from outcomes (`Starts`).
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

import msgspec

from aliquot.forecast.intervals import HourAhead
from aliquot.forecast.lifetimes import Lifetimes

PLAYS = 15
ENDED_MIN = 20
"""With fewer ends of its own, a tenant's leases are taken to be like everybody's."""
ADAPTING = 0.1
"""Outcomes come late and in no order: each must count for more than one of demand does, which comes by the hour."""
ERRORS_MAX = 200
SOFTENING_S = 60.0
"""Added before waits are compared by their ratio: nobody minds a minute."""


class Running(msgspec.Struct, frozen=True, array_like=True):
    """A lease that holds something."""

    tenant: str
    age_s: float
    parts: tuple[tuple[int, int], ...]
    """(number of the node, thousandths of devices that it holds there)."""
    ends_in_s: float = 0.0
    """It will have ended by then, by its time limit; 0: it has none."""
    bounds: tuple[int, ...] = ()
    """The numbers of the bounds that it counts against."""


class Waiting(msgspec.Struct, frozen=True, array_like=True):
    """A request that waits."""

    lease_id: str
    tenant: str
    milli: int
    """Thousandths of devices that one member takes, on one node."""
    members: int = 1
    models: tuple[str, ...] = ()
    """Any of these; empty: any at all."""
    limit_s: float = 0.0
    bounds: tuple[int, ...] = ()


class Bound(msgspec.Struct, frozen=True, array_like=True):
    """A limit on what many hold together, in thousandths of devices."""

    held: int
    """Now, by whomever."""
    steps: tuple[tuple[float, int], ...]
    """(in how many seconds it begins, the limit from then on; below zero: none), rising; the first is 0.0."""


class Line(msgspec.Struct, frozen=True, array_like=True):
    """The pool at one moment."""

    nodes: tuple[tuple[str, int], ...]
    """(model, thousandths of devices that are free)."""
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    """In the order in which they are served."""
    ended_s: Mapping[str, Sequence[float]]
    """By tenant: how long leases ran that have ended, in seconds."""
    bounds: tuple[Bound, ...] = ()


def play(line: Line, *, plays: int = PLAYS, seed: int = 1) -> dict[str, tuple[float, ...]]:
    """Seconds until each waiting request starts, sorted, one for each play in which it does. One that no node could
    ever take is left out.
    """
    chance = random.Random(seed)  # noqa: S311 - a reproducible play, nothing secret
    lifetimes = _Lifetimes(line)
    found: dict[str, list[float]] = {}
    for _ in range(plays):
        for lease_id, start_s in _Play(line, lifetimes, chance).run():
            found.setdefault(lease_id, []).append(start_s)
    return {lease_id: tuple(sorted(starts)) for lease_id, starts in found.items()}


def middle(starts: Sequence[float]) -> float:
    """The median of the plays."""
    return starts[len(starts) // 2]


class Starts:
    """Intervals around expected waits, learnt from what became of earlier ones, as ratios: waits span magnitudes."""

    def __init__(self, covered: float = 0.9) -> None:
        self._ratios = HourAhead(covered, adapting=ADAPTING, errors_max=ERRORS_MAX)

    def around(self, expected_s: float) -> tuple[float, float] | None:
        """(earliest, latest) in seconds from when `expected_s` was said; None: too few outcomes are known."""
        around = self._ratios.around()
        if around is None:
            return None
        low, high = ((expected_s + SOFTENING_S) * math.exp(part) - SOFTENING_S for part in around)
        return max(low, 0.0), high

    def outcome(self, expected_s: float, waited_s: float) -> None:
        """A request that was expected to wait so long has started."""
        self._ratios.learn(math.log((waited_s + SOFTENING_S) / (expected_s + SOFTENING_S)))


class _Lifetimes:
    """By tenant, where enough of it has ended."""

    def __init__(self, line: Line) -> None:
        self._ended = line.ended_s
        self._ages: dict[str, list[float]] = {}
        for running in line.running:
            self._ages.setdefault(running.tenant, []).append(running.age_s)
        self._all = Lifetimes(
            [length for lengths in line.ended_s.values() for length in lengths],
            [age for ages in self._ages.values() for age in ages],
        )
        self._of: dict[str, Lifetimes] = {}

    def of(self, tenant: str) -> Lifetimes:
        known = self._of.get(tenant)
        if known is None:
            ended = self._ended.get(tenant, ())
            enough = len(ended) >= ENDED_MIN
            known = self._of[tenant] = Lifetimes(ended, self._ages.get(tenant, ())) if enough else self._all
        return known


class _Play:
    """One way in which it could go."""

    def __init__(self, line: Line, lifetimes: _Lifetimes, chance: random.Random) -> None:
        self._line = line
        self._lifetimes = lifetimes
        self._chance = chance
        self._free = [free for _, free in line.nodes]
        self._by_room: dict[str, list[tuple[int, int]]] = {}
        for number, (model, free) in enumerate(line.nodes):
            self._by_room.setdefault(model, []).append((free, number))
        for rooms in self._by_room.values():
            rooms.sort()
        self._held = [bound.held for bound in line.bounds]
        self._limits = [bound.steps[0][1] for bound in line.bounds]
        self._edges = sorted(
            ((at_s, number, milli) for number, bound in enumerate(line.bounds) for at_s, milli in bound.steps[1:]),
            reverse=True,
        )
        """The next one last."""
        self._ends: list[tuple[float, int, tuple[tuple[int, int], ...], tuple[int, ...]]] = []
        for number, running in enumerate(line.running):
            left_s = self._length(running.tenant, running.age_s) - running.age_s
            ends_s = min(left_s, running.ends_in_s) if running.ends_in_s else left_s
            self._ends.append((max(ends_s, 0.0), number, running.parts, running.bounds))
        heapq.heapify(self._ends)

    def run(self) -> list[tuple[str, float]]:
        """(lease, seconds until it starts), in the order of their starts."""
        found: list[tuple[str, float]] = []
        left: Sequence[Waiting] = self._line.waiting
        now_s = 0.0
        while True:
            left = self._serve(left, now_s, found)
            if not left or not (self._ends or self._edges):
                return found
            now_s = min(times[0][0] for times in (self._ends, self._edges[-1:]) if times)
            while self._ends and self._ends[0][0] <= now_s:
                _, _, parts, bounds = heapq.heappop(self._ends)
                self._give_back(parts)
                self._count(bounds, -sum(milli for _, milli in parts))
            while self._edges and self._edges[-1][0] <= now_s:
                _, number, milli = self._edges.pop()
                self._limits[number] = milli

    def _serve(self, line: Sequence[Waiting], now_s: float, found: list[tuple[str, float]]) -> list[Waiting]:
        kept: list[Waiting] = []
        failed: set[tuple[int, int, tuple[str, ...]]] = set()
        for waiting in line:
            shape = waiting.milli, waiting.members, waiting.models
            if shape in failed or not self._allowed(waiting):
                kept.append(waiting)
                continue
            parts = self._place(waiting)
            if parts is None:
                failed.add(shape)
                kept.append(waiting)
                continue
            self._count(waiting.bounds, waiting.milli * waiting.members)
            found.append((waiting.lease_id, now_s))
            length_s = self._length(waiting.tenant, 0.0)
            length_s = min(length_s, waiting.limit_s) if waiting.limit_s else length_s
            number = len(self._line.running) + len(found)
            heapq.heappush(self._ends, (now_s + length_s, number, parts, waiting.bounds))
        return kept

    def _allowed(self, waiting: Waiting) -> bool:
        """Whether all limits leave room for a request."""
        more = waiting.milli * waiting.members
        return all(not 0 <= self._limits[number] < self._held[number] + more for number in waiting.bounds)

    def _count(self, bounds: Sequence[int], milli: int) -> None:
        for number in bounds:
            self._held[number] += milli

    def _length(self, tenant: str, age_s: float) -> float:
        return self._lifetimes.of(tenant).draw(age_s, 1 - self._chance.random())

    def _place(self, waiting: Waiting) -> tuple[tuple[int, int], ...] | None:
        """Each member on the node with the least room that is enough."""
        parts: list[tuple[int, int]] = []
        for _ in range(waiting.members):
            best: tuple[int, int] | None = None
            for model in waiting.models or self._by_room:
                rooms = self._by_room.get(model, [])
                index = bisect_left(rooms, (waiting.milli, 0))
                if index < len(rooms) and (best is None or rooms[index] < best):
                    best = rooms[index]
            if best is None:
                self._give_back(parts)
                return None
            parts.append((best[1], waiting.milli))
            self._change(best[1], -waiting.milli)
        return tuple(parts)

    def _give_back(self, parts: Sequence[tuple[int, int]]) -> None:
        for node, milli in parts:
            self._change(node, milli)

    def _change(self, node: int, milli: int) -> None:
        rooms = self._by_room[self._line.nodes[node][0]]
        del rooms[bisect_left(rooms, (self._free[node], node))]
        self._free[node] += milli
        insort(rooms, (self._free[node], node))
