"""The price programme: a cutting-stock problem over the pool's devices, whose dual prices each sort of request.

A device is cut into slices of the sorts that arrive, each of which takes a share and an amount of memory of it, or does
not suit its class. Requests for several whole devices take a place on a node that has so many free, and CPU enough: the
ways to divide a node into such places are columns, too, and nodes are counted by what they have free. The programme
serves the mix, as much of it as the idle devices hold in all, with the cheapest devices: one costs what its compute and
memory are of an average one, and as its class, or nodes with so much free, run out, what others lose by that (column
generation; both pricing problems are the knapsack of `worth.most`: share and memory of a device, devices and CPU of a
node). What can't be served costs `UNSERVED` times its size, which bounds the prices of what is short. At a CPU price λ,
a sort's price is the mean over its requests of max(0, price − λ · CPU).

Floats live in here only; what leaves is a `PriceTable` of integers, and the tables of worth that follow from it. As a
program (`python -m`) it reads a `MixSummary` from its standard input and writes a `Lesson` to its standard output: that
is how the coordinator runs it, so that SciPy and the seconds that it takes stay out of the process that decides.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from aliquot.coordinator.core.placement.mix import ClassTotals, MixSummary
from aliquot.coordinator.core.placement.prices import DEVICE, PriceTable, SortPrice
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.placement.worth import like, worth_on
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.upkeep.price_learner import Lesson
from aliquot.coordinator.upkeep.price_solver import Floats, Programme
from aliquot.coordinator.upkeep.price_sorts import Entries, merge_classes, sorts_of, unseen

NICENESS = 10
"""Prices may come a little later; decisions may not."""

CPU_PRICES = 8


def learn_prices(mix: Mapping[Demand, int], version: int, classes: Sequence[ClassTotals]) -> PriceTable | None:
    """Prices for a mix of requests with counts, on a pool of these devices; None where it asks for none of them."""
    merged = merge_classes(classes)
    own = [each.device_class for each in merged]
    sorts = sorts_of(mix, own)
    if not sorts:
        return None
    if any(sort.count > 1 for sort in sorts):
        sorts = sorts_of(Counter(mix) + Counter(unseen(merged)), own)
    names = sorted(sorts, key=repr)
    prices = Programme(names, [sum(n for _, n in sorts[name]) for name in names], merged).solve()
    cpu_prices = _cpu_price_grid(prices, [sorts[name] for name in names])
    alike: dict[Demand, Entries] = {}
    for name in names:
        alike.setdefault(_whatever_cpu(name), []).extend(sorts[name])
    table = [
        SortPrice(name, _worths(price, cpu_prices, alike[_whatever_cpu(name)]))
        for name, price in zip(names, prices.tolist(), strict=True)
    ]
    return PriceTable(
        version,
        tuple(cpu_prices.tolist()),
        sorts=tuple(each for each in table if each.sort.count == 1),
        together=tuple(each for each in table if each.sort.count > 1),
    )


def _whatever_cpu(sort: Demand) -> Demand:
    """Places for several that differ in their CPU alone lose as much of their worth as CPU gets dear: else the rare one
    that needs little of it would say what all devices are worth where CPU is short.
    """
    return msgspec.structs.replace(sort, cpu_milli=0)


def _worths(price: float, cpu_prices: Ints, requests: Entries) -> tuple[int, ...]:
    """What a price leaves at each CPU price, on average over requests, in millionths of a device."""
    total = sum(weight for _, weight in requests)
    worths: Floats = np.zeros(len(cpu_prices))
    for cpu_milli, weight in requests:
        worths += weight / total * np.maximum(0.0, price - cpu_prices * cpu_milli / DEVICE)
    return tuple(np.rint(worths * DEVICE).astype(np.int64).tolist())


def _cpu_price_grid(prices: Floats, requests: Sequence[Entries]) -> Ints:
    """CPU prices: evenly up to the one at which half of the requests stop being worth their CPU, and the last."""
    breaks = sorted(
        (price * DEVICE / cpu_milli, weight)
        for price, entries in zip(prices.tolist(), requests, strict=True)
        for cpu_milli, weight in entries
        if cpu_milli > 0 and price > 0
    )
    if not breaks:
        return np.zeros(1, np.int64)
    weights = np.cumsum([weight for _, weight in breaks])
    median = breaks[int(np.searchsorted(weights, weights[-1] / 2))][0]
    points = np.append(np.linspace(0, median, CPU_PRICES - 1), breaks[-1][0])
    return np.unique(np.rint(points).astype(np.int64))


def lesson_of(summary: MixSummary, version: int) -> Lesson | None:
    """The table, and what it says of every class that the pool knows."""
    table = learn_prices(dict(summary.types), version, summary.classes)
    if table is None:
        return None
    classes = dict.fromkeys(like(each.device_class) for each in summary.classes)
    return Lesson(table, tuple((each, worth_on(table, each).astype(np.int32).tobytes()) for each in classes))


def main() -> int:
    """`python -m` this module `VERSION`: MessagePack in and out; no output: nothing to learn."""
    os.nice(NICENESS)
    summary = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=MixSummary)
    lesson = lesson_of(summary, int(sys.argv[1]))
    if lesson is not None:
        sys.stdout.buffer.write(msgspec.msgpack.encode(lesson))
    return 0


if __name__ == "__main__":
    sys.exit(main())
