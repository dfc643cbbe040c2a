"""A million devices as cells, played: who waits, and what stays idle, against one pool of the same size.

Jobs come by a Poisson process, in the sizes and lengths below, each from a tenant whose home is one cell. A cell serves
its line in order and lets smaller jobs pass where they fit (as a pool does); it knows devices by number, not by place,
so that the play has no fragmentation: what it shows is the cost of the walls between cells alone.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from dataclasses import dataclass
from typing import Literal

SIZES = ((1, 0.55), (2, 0.12), (4, 0.1), (8, 0.15), (32, 0.05), (128, 0.02), (512, 0.01))
"""Devices of a job, and how many of 1 have so many: most are small, most of the time goes to the few large ones."""
MEAN_LIFE_S = 3_600.0
TENANTS_PER_CELL = 40
_PASS = 64
"""How far behind the head of a line a job may be that passes it."""

Door = Literal["home", "lend", "one"]
"""Jobs go to their tenant's cell; or, where that has no room, to the one that has most; or there are no walls."""


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it. Waits in seconds; `idle_with_line` in parts of the devices, averaged over the time."""

    jobs: int
    lent: float
    wait_mean_s: float
    wait_p99_s: float
    idle_with_line: float


def play(devices: int, cells: int, door: Door, *, load: float, hours: float, seed: int, skew: float = 0.3) -> Played:
    """`load`: devices that are asked for over those that there are. `skew`: how far tenants' cells differ in load."""
    dice = random.Random(seed)
    walls = 1 if door == "one" else cells
    room = devices // walls
    free, lines = [room] * walls, [deque[tuple[float, int, float]]() for _ in range(walls)]
    weights = [1 + skew * (2 * number / max(cells - 1, 1) - 1) for number in range(cells)]
    mean = sum(size * part for size, part in SIZES)
    per_s = load * devices / (mean * MEAN_LIFE_S)
    ends: list[tuple[float, int, int]] = []
    waits: list[float] = []
    now_s, until_s, lent, jobs, idle_s = 0.0, hours * 3_600, 0, 0, 0.0
    warm_s = until_s / 3
    waiting, sum_free = False, 0
    sizes, parts = zip(*SIZES, strict=True)

    def start(cell: int, came_s: float, size: int, life_s: float) -> None:
        free[cell] -= size
        heapq.heappush(ends, (now_s + life_s, cell, size))
        if came_s > warm_s:
            waits.append(now_s - came_s)

    def serve(cell: int) -> None:
        line, behind = lines[cell], deque[tuple[float, int, float]]()
        for _ in range(min(len(line), _PASS)):
            came_s, size, life_s = line.popleft()
            if size <= free[cell]:
                start(cell, came_s, size, life_s)
            else:
                behind.append((came_s, size, life_s))
        line.extendleft(reversed(behind))

    next_s = dice.expovariate(per_s)
    while now_s < until_s:
        before_s = now_s
        if ends and ends[0][0] <= next_s:
            now_s, cell, size = heapq.heappop(ends)
            free[cell] += size
            if lines[cell]:
                serve(cell)
        else:
            now_s = next_s
            next_s = now_s + dice.expovariate(per_s)
            jobs += 1
            cell = dice.choices(range(cells), weights)[0] if walls > 1 else 0
            (size,) = dice.choices(sizes, parts)
            life_s = dice.expovariate(1 / MEAN_LIFE_S)
            if door == "lend" and (lines[cell] or size > free[cell]):
                other = max(range(walls), key=free.__getitem__)
                if size <= free[other]:
                    cell, lent = other, lent + 1
            lines[cell].append((now_s, size, life_s))
            serve(cell)
        if now_s > warm_s and waiting:
            idle_s += (now_s - before_s) * sum_free
        waiting, sum_free = any(lines), sum(free)
    waits.sort()
    return Played(
        jobs=jobs,
        lent=lent / max(jobs, 1),
        wait_mean_s=sum(waits) / max(len(waits), 1),
        wait_p99_s=waits[int(len(waits) * 0.99)] if waits else 0.0,
        idle_with_line=idle_s / (devices * (until_s - warm_s)),
    )
