"""How many devices to buy: requests to come, and what they would wait for on pools with more and more nodes.

What comes is drawn from what came: whole weeks of the latest ones, so that days keep their shape and requests that come
together still do, made denser or thinner as the work asked for has grown from week to week. That growth is the median
of all slopes between weeks (Theil and Sen), which one wild week does not move. Each pool is replayed with the same
requests.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.values.types import NodeSpec
from aliquot.plan.arrivals import share_of
from aliquot.plan.nodes import more_of
from aliquot.plan.timeline import Timeline
from aliquot.plan.traces import TraceRequest
from aliquot.plan.whatif import evaluate, has_times

WEEK_S = 7 * 86_400
WEEKS_DRAWN = 8
"""Of the latest: what came long ago says little."""
GROWTH_FROM_WEEKS = 4
GROWTH_MAX = 0.1
"""A week; nothing grows faster for long."""
REQUESTS_MAX = 500_000
TRIED_MAX = 12


@dataclass(frozen=True, slots=True)
class Option:
    """One pool."""

    more_nodes: int
    devices: int
    more_devices: int
    cost: float
    """Of the devices that are more, over the time looked at."""
    wait_p50_s: float
    wait_p95_s: float
    """Infinite where so many were never placed."""
    allocated_percent: float
    met: bool
    """Whether the 95th percentile of waits is within the target."""


@dataclass(frozen=True, slots=True)
class Purchase:
    """All pools that were tried, the smallest first."""

    requests: int
    growth_per_week: float
    options: tuple[Option, ...]

    @property
    def advised(self) -> Option | None:
        """The smallest that meets the target; None: none does."""
        return next((option for option in self.options if option.met), None)


def weeks_of(requests: Sequence[TraceRequest]) -> list[list[TraceRequest]]:
    """Whole weeks, the latest last, counted back from the last arrival; arrivals are seconds within their week."""
    end_s = max(request.arrival_s for request in requests)
    count = int((end_s - min(request.arrival_s for request in requests)) // WEEK_S)
    weeks: list[list[TraceRequest]] = [[] for _ in range(count)]
    for request in requests:
        index = count - 1 - int((end_s - request.arrival_s) // WEEK_S)
        if index >= 0:
            since_s = end_s - (count - index) * WEEK_S
            weeks[index].append(request._replace(arrival_s=request.arrival_s - since_s))
    return weeks


def growth_of(weeks: Sequence[Sequence[TraceRequest]]) -> float:
    """By how much the work asked for grows in a week, as a logarithm; 0 where there are too few weeks to say."""
    work = [sum(share_of(request) * request.duration_s for request in week) for week in weeks]
    points = [(number, math.log(each)) for number, each in enumerate(work) if each > 0]
    if len(points) < GROWTH_FROM_WEEKS:
        return 0.0
    slopes = [(second[1] - first[1]) / (second[0] - first[0]) for first, second in itertools.combinations(points, 2)]
    return min(max(statistics.median(slopes), -GROWTH_MAX), GROWTH_MAX)


def requests_to_come(
    weeks: Sequence[Sequence[TraceRequest]], days: int, growth_per_week: float, seed: int
) -> list[TraceRequest]:
    """Of so many days. Raises ConfigError where they are too many to replay."""
    chance = random.Random(seed)  # noqa: S311 - a reproducible draw, nothing secret
    first = max(0, len(weeks) - WEEKS_DRAWN)
    found: list[TraceRequest] = []
    for number in range(-(-days // 7)):
        chosen = chance.randrange(first, len(weeks))
        density = math.exp(growth_per_week * (len(weeks) + number - chosen))
        for request in weeks[chosen]:
            arrival_s = number * WEEK_S + request.arrival_s
            copies = int(density) + (chance.random() < density % 1)
            if arrival_s < days * 86_400:
                found += [
                    request._replace(name=f"{request.name}/{number}.{copy}", arrival_s=arrival_s)
                    for copy in range(copies)
                ]
        if len(found) > REQUESTS_MAX:
            raise ConfigError(
                f"more than {REQUESTS_MAX:,} requests in {days} days",
                hint="look fewer days ahead, or thin the list out",
            )
    return found


def buy(
    nodes: Sequence[NodeSpec],
    requests: Sequence[TraceRequest],
    policy: str,
    *,
    days: int,
    price: float,
    wait_s: float,
    growth_per_week: float | None,
    most_nodes: int,
    like: str,
    seed: int,
    begin: Callable[[str, int], Callable[[int], None]],
) -> Purchase:
    """Replay what comes on pools with more and more nodes, until waits are short enough. `price` is that of a device
    for an hour; `most_nodes`: 0 is twice as many as there are. Raises ConfigError for a list that says too little.
    """
    if not has_times(requests):
        raise ConfigError(
            "a forecast needs arrivals and durations", hint="see docs/placement.md for the list's columns"
        )
    weeks = weeks_of(requests)
    if not weeks:
        raise ConfigError("a forecast needs requests of a week at least", hint="give a longer list")
    growth = growth_of(weeks) if growth_per_week is None else growth_per_week
    coming = requests_to_come(weeks, days, growth, seed)
    if not coming:
        raise ConfigError("nothing was asked for in the latest weeks", hint="give a list that ends with requests")
    before = sum(len(node.devices) for node in nodes)
    options: list[Option] = []
    for more in itertools.islice(_steps(most_nodes or max(len(nodes), 1)), TRIED_MAX):
        pool = [*nodes, *(more_of(nodes, more, like) if more else [])]
        found = evaluate(f"+{more}", pool, coming, policy, in_time=True, progress=begin(f"+{more} nodes", len(coming)))
        assert found.timeline is not None
        devices = sum(len(node.devices) for node in pool)
        p95_s = _quantile(found.timeline, 0.95)
        options.append(
            Option(
                more_nodes=more,
                devices=devices,
                more_devices=devices - before,
                cost=(devices - before) * days * 24 * price,
                wait_p50_s=_quantile(found.timeline, 0.5),
                wait_p95_s=p95_s,
                allocated_percent=found.allocated_percent,
                met=p95_s <= wait_s,
            )
        )
        if p95_s <= wait_s:
            break
    return Purchase(len(coming), growth, tuple(options))


def _steps(most: int) -> Iterator[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, … up to `most`."""
    yield 0
    step = 1
    while step < most:
        yield step
        if step >= 2 and step + step // 2 < most:
            yield step + step // 2
        step *= 2
    yield most


def _quantile(timeline: Timeline, part: float) -> float:
    """Of all waits; what never fits the pool, or still waits in the end, waits for ever."""
    count = len(timeline.waits_s) + timeline.left_waiting + timeline.impossible
    index = min(int(count * part), count - 1)
    return timeline.waits_s[index] if index < len(timeline.waits_s) else math.inf
