"""The price programme: a cutting-stock problem whose dual says what remainders of devices are worth.

A device is a bar of 1000; the sizes of slice that arrive are cut from it. The dual of "serve the mix with the fewest
devices" prices every size (column generation: the pricing problem is an unbounded knapsack over 1000 units). What a
remainder is worth at a CPU price λ is the knapsack over those prices, each size's being the mean over its requests of
max(0, price − λ · CPU).

Floats live in here only; what leaves is a `PriceTable` of integers. As a program (`python -m`) it reads a `MixSummary`
from its standard input and writes the table to its standard output: that is how the coordinator runs it, so that SciPy
and the tenth of a second that the programme takes stay out of the process that decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from aliquot.coordinator.core.placement.mix import MixSummary
from aliquot.coordinator.core.placement.prices import DEVICE, PriceTable
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI, Demand

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

NICENESS = 10
"""Prices may come a little later; decisions may not."""

SIZES_MAX = 64
"""More sizes than this are rounded up to common ones: the programme stays small, and remainders are not truer."""

CPU_PRICES = 8

GROUPS_MAX = 8
"""Kinds of requests for several devices that are looked at, by devices and CPU: the largest part of the demand."""

ROUNDS_MAX = 200
"""Column generation for so few sizes ends long before; a bound all the same."""

TOLERANCE = 1e-7


def learn_prices(mix: Mapping[Demand, int], version: int, *, reference_bytes: int = 0) -> PriceTable | None:
    """Prices for a mix of requests with counts; None where the mix says nothing of devices.

    `reference_bytes` is the leasable memory of the typical device: what a request's memory is a part of.
    """
    requests = _by_size(mix, reference_bytes)
    if not requests:
        return None
    sizes = np.array(sorted(requests), np.int64)
    demand = np.array([sum(weight for _, weight in requests[int(size)]) for size in sizes], np.float64)
    prices = _dual_prices(sizes, demand / demand.sum())
    cpu_prices = _cpu_price_grid(sizes, prices, requests)
    values = np.zeros((len(sizes), len(cpu_prices)))
    for number, size in enumerate(sizes.tolist()):
        total = sum(weight for _, weight in requests[size])
        for cpu_milli, weight in requests[size]:
            values[number] += weight / total * np.maximum(0.0, prices[number] - cpu_prices * cpu_milli / DEVICE)
    worth = _knapsack(sizes, np.rint(values * DEVICE).astype(np.int64))
    return PriceTable(version, tuple(int(price) for price in cpu_prices), _steps(worth), _groups(mix))


def _groups(mix: Mapping[Demand, int]) -> tuple[tuple[int, int, int], ...]:
    """What places for several whole devices of one node are worth: their part of the demand, as far as that leaves too
    little to fill the gaps between them.

    As long as half of what is asked for fits into any gap, gaps fill themselves, and a place for eight is worth eight
    places for one.
    """
    types: dict[tuple[int, int], int] = {}
    total = 0
    for demand, count in mix.items():
        devices = max(count, 0) * demand.count * demand.gang_size
        total += devices * (demand.share_milli or WHOLE_SHARE_MILLI)
        if demand.count > 1 and demand.share_milli in (0, WHOLE_SHARE_MILLI) and not demand.memory_bytes:
            kind = demand.count, max(demand.cpu_milli, 1)
            types[kind] = types.get(kind, 0) + devices * WHOLE_SHARE_MILLI
    together = sum(types.values())
    scarce = max(0, 2 * together - total)
    largest = sorted(types.items(), key=lambda item: (-item[1], item[0]))[:GROUPS_MAX]
    worths = ((kind, DEVICE * devices * scarce // total**2) for kind, devices in sorted(largest))
    return tuple((*kind, worth) for kind, worth in worths if worth)


def _by_size(mix: Mapping[Demand, int], reference_bytes: int) -> dict[int, list[tuple[int, int]]]:
    """Size of slice -> (CPU of a slice, number of slices)."""
    requests: dict[int, list[tuple[int, int]]] = {}
    for demand, count in mix.items():
        if not demand.count or count <= 0:
            continue
        size = demand.share_milli or (0 if demand.memory_bytes else WHOLE_SHARE_MILLI)
        if demand.memory_bytes and reference_bytes:
            size = max(size, -(-demand.memory_bytes * WHOLE_SHARE_MILLI // reference_bytes))
        size = min(max(size, 1), WHOLE_SHARE_MILLI)
        slices = count * demand.count * demand.gang_size
        requests.setdefault(size, []).append((demand.cpu_milli // demand.count, slices))
    return _merge_sizes(requests)


def _merge_sizes(requests: dict[int, list[tuple[int, int]]]) -> dict[int, list[tuple[int, int]]]:
    """At most `SIZES_MAX` sizes: the rarest join the next larger one that is kept."""
    if len(requests) <= SIZES_MAX:
        return requests
    by_weight = sorted(requests, key=lambda size: (-sum(weight for _, weight in requests[size]), size))
    kept = sorted({*by_weight[: SIZES_MAX - 1], WHOLE_SHARE_MILLI})
    merged: dict[int, list[tuple[int, int]]] = {}
    for size, entries in requests.items():
        target = kept[int(np.searchsorted(kept, size))]
        merged.setdefault(target, []).extend(entries)
    return merged


def _dual_prices(sizes: Ints, demand: Floats) -> Floats:
    """Price of each size in devices: the dual of min Σ x over patterns x ≥ 0 with Σ pattern · x ≥ demand."""
    columns = [np.where(np.arange(len(sizes)) == i, WHOLE_SHARE_MILLI // size, 0) for i, size in enumerate(sizes)]
    prices: Floats = np.zeros(len(sizes))
    for _ in range(ROUNDS_MAX):
        matrix = np.column_stack(columns)
        solved = linprog(np.ones(len(columns)), A_ub=-matrix, b_ub=-demand, method="highs")
        if solved.status != 0:
            raise RuntimeError(f"the price programme was not solved: {solved.message}")
        prices = -np.asarray(solved.ineqlin.marginals)
        pattern, value = _best_pattern(sizes, prices)
        if value <= 1 + TOLERANCE:
            break
        columns.append(pattern)
    return np.maximum(prices, 0.0)


def _best_pattern(sizes: Ints, prices: Floats) -> tuple[Ints, float]:
    """The most valuable way to cut one device."""
    best = np.zeros(WHOLE_SHARE_MILLI + 1)
    choice = np.full(WHOLE_SHARE_MILLI + 1, -1, np.int64)
    for left in range(1, WHOLE_SHARE_MILLI + 1):
        best[left] = best[left - 1]
        fitting = int(np.searchsorted(sizes, left, side="right"))
        if fitting:
            values = best[left - sizes[:fitting]] + prices[:fitting]
            top = int(values.argmax())
            if values[top] > best[left] + TOLERANCE:
                best[left], choice[left] = values[top], top
    pattern = np.zeros(len(sizes), np.int64)
    left = WHOLE_SHARE_MILLI
    while left > 0:
        if choice[left] < 0:
            left -= 1
        else:
            pattern[choice[left]] += 1
            left -= int(sizes[choice[left]])
    return pattern, float(best[WHOLE_SHARE_MILLI])


def _cpu_price_grid(sizes: Ints, prices: Floats, requests: dict[int, list[tuple[int, int]]]) -> Ints:
    """CPU prices: evenly up to the one at which half of the requests stop being worth their CPU, and the last."""
    breaks = sorted(
        (prices[number] * DEVICE / cpu_milli, weight)
        for number, size in enumerate(sizes.tolist())
        for cpu_milli, weight in requests[size]
        if cpu_milli > 0 and prices[number] > 0
    )
    if not breaks:
        return np.zeros(1, np.int64)
    weights = np.cumsum([weight for _, weight in breaks])
    median = breaks[int(np.searchsorted(weights, weights[-1] / 2))][0]
    points = np.append(np.linspace(0, median, CPU_PRICES - 1), breaks[-1][0])
    return np.unique(np.rint(points).astype(np.int64))


def _knapsack(sizes: Ints, values: Ints) -> Ints:
    """[left, λ] the most that can be cut from a remainder."""
    worth = np.zeros((WHOLE_SHARE_MILLI + 1, values.shape[1]), np.int64)
    for left in range(1, WHOLE_SHARE_MILLI + 1):
        fitting = int(np.searchsorted(sizes, left, side="right"))
        worth[left] = worth[left - 1]
        if fitting:
            cut = (worth[left - sizes[:fitting]] + values[:fitting]).max(axis=0)
            np.maximum(worth[left], cut, out=worth[left])
    return worth


def _steps(worth: Ints) -> tuple[tuple[tuple[int, int], ...], ...]:
    """The table as the places where it rises."""
    rises = worth[1:] != worth[:-1]
    return tuple(
        tuple((int(left) + 1, int(worth[left + 1, column])) for left in np.flatnonzero(rises[:, column]))
        for column in range(worth.shape[1])
    )


def main() -> int:
    """`python -m` this module `VERSION`: MessagePack in and out; no output: nothing to learn."""
    os.nice(NICENESS)
    mix = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=MixSummary)
    table = learn_prices(dict(mix.types), int(sys.argv[1]), reference_bytes=mix.reference_bytes)
    if table is not None:
        sys.stdout.buffer.write(msgspec.msgpack.encode(table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
