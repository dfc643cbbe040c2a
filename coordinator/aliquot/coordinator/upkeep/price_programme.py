"""The price programme: a cutting-stock problem over the pool's devices, whose dual prices each sort of request.

A device is cut into slices of the sorts that arrive, each of which takes a share and an amount of memory of it, or does
not suit its class. The programme serves the mix, as much of it as the idle devices hold in all, with the cheapest
devices: one costs what its compute and memory are of an average one, and as its class runs out, what others lose by
that (column generation; the pricing problem is the knapsack of `worth.most`). What can't be served costs `UNSERVED`
times its size, which bounds the prices of what is short. At a CPU price λ, a sort's price is the mean over its requests
of max(0, price − λ · CPU).

Floats live in here only; what leaves is a `PriceTable` of integers, and the tables of worth that follow from it. As a
program (`python -m`) it reads a `MixSummary` from its standard input and writes a `Lesson` to its standard output: that
is how the coordinator runs it, so that SciPy and the seconds that it takes stay out of the process that decides.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from aliquot.coordinator.core.inventory.records import DeviceClass
from aliquot.coordinator.core.placement.mix import ClassTotals, MixSummary
from aliquot.coordinator.core.placement.prices import DEVICE, PriceTable, SortPrice
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.placement.worth import cuts, most, parts_of, slice_on, worth_on
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI, Demand
from aliquot.coordinator.upkeep.lesson import Lesson

Floats = npt.NDArray[np.float64]

NICENESS = 10
"""Prices may come a little later; decisions may not."""

SORTS_MAX = 64
"""Rarer sorts count as the most similar of so many: the programme stays small, and prices are not truer."""

CPU_PRICES = 8

GROUPS_MAX = 8
"""Kinds of requests for several devices that are looked at, by devices and CPU: the largest part of the demand."""

ROUNDS_MAX = 200
"""Column generation for so few sorts ends long before; a bound all the same."""

TOLERANCE = 1e-6

UNSERVED = 1.5
"""What a slice that can't be served costs, in devices of its size. Of 1, 1.2, 1.5, 2 and 4 the best on mixed pools."""

IDLE_MIN_PERMILLE = 10
"""Of a class, counted as idle besides what is: prices stay finite when it is full, and some will be free again."""

GIB = 1 << 30

ANY_CLASS = ClassTotals(DeviceClass("", "", 1 << 60, ""), 1, WHOLE_SHARE_MILLI)
"""Where nothing is known of the pool: requests are sizes of one device."""

Entries = list[tuple[int, int]]
"""Of one sort: (CPU of a slice, number of slices)."""


def learn_prices(
    mix: Mapping[Demand, int], version: int, classes: Sequence[ClassTotals] = (ANY_CLASS,)
) -> PriceTable | None:
    """Prices for a mix of requests with counts, on a pool of these devices; None where it asks for none of them."""
    merged = _merge_classes(classes)
    sorts = _sorts(mix, [each.device_class for each in merged])
    if not sorts:
        return None
    names = sorted(sorts, key=repr)
    programme = _Programme(names, [sum(n for _, n in sorts[name]) for name in names], merged)
    prices = programme.solve()
    entries = [sorts[name] for name in names]
    cpu_prices = _cpu_price_grid(prices, entries)
    table = []
    for name, price, requests in zip(names, prices.tolist(), entries, strict=True):
        total = sum(weight for _, weight in requests)
        worths: Floats = np.zeros(len(cpu_prices))
        for cpu_milli, weight in requests:
            worths += weight / total * np.maximum(0.0, price - cpu_prices * cpu_milli / DEVICE)
        table.append(SortPrice(name, tuple(np.rint(worths * DEVICE).astype(np.int64).tolist())))
    return PriceTable(version, tuple(cpu_prices.tolist()), groups=_groups(mix), sorts=tuple(table))


def _merge_classes(classes: Sequence[ClassTotals]) -> list[ClassTotals]:
    """Classes that differ in less than a GiB as one."""
    merged: dict[tuple[object, ...], ClassTotals] = {}
    for each in classes:
        of = each.device_class
        key = of.vendor, of.model, of.mig_profile, of.compute_milli, round(of.leasable_bytes / GIB)
        first = merged.get(key, ClassTotals(of, 0, 0))
        merged[key] = ClassTotals(first.device_class, first.devices + each.devices, first.idle_milli + each.idle_milli)
    return [each for each in merged.values() if each.devices]


def _sorts(mix: Mapping[Demand, int], classes: Sequence[DeviceClass]) -> dict[Demand, Entries]:
    """Sorts that some class serves, at most `SORTS_MAX`."""
    found: dict[Demand, Entries] = {}
    for demand, count in mix.items():
        if not demand.count or count <= 0:
            continue
        share = demand.share_milli or (0 if demand.memory_bytes else WHOLE_SHARE_MILLI)
        sort = Demand(
            share_milli=share,
            memory_bytes=demand.memory_bytes,
            models=demand.models,
            vendor=demand.vendor,
            mig_profile=demand.mig_profile,
        )
        found.setdefault(sort, []).append((demand.cpu_milli // demand.count, count * demand.count * demand.gang_size))
    servable = {sort: slices for sort in found if any(slices := [slice_on(each, sort) for each in classes])}
    sizes = {sort: _size(slices, classes) for sort, slices in servable.items()}
    largest = sorted(servable, key=lambda sort: (-sizes[sort][0] * sum(n for _, n in found[sort]), repr(sort)))
    kept = {sort: found[sort] for sort in largest[:SORTS_MAX]}
    suits = {sort: tuple(each is not None for each in slices) for sort, slices in servable.items()}
    for sort in largest[SORTS_MAX:]:
        like = [other for other in largest[:SORTS_MAX] if suits[other] == suits[sort]]
        if like:
            nearest = min(
                like, key=lambda other: abs(sizes[other][0] - sizes[sort][0]) + abs(sizes[other][1] - sizes[sort][1])
            )
            kept[nearest] = kept[nearest] + found[sort]
    return kept


def _size(slices: Sequence[tuple[int, int] | None], classes: Sequence[DeviceClass]) -> tuple[float, float]:
    """(share, memory) of a slice, as parts of a device, in the class that it takes least of."""
    return min(
        (
            (found[0] / WHOLE_SHARE_MILLI, found[1] / each.leasable_bytes)
            for found, each in zip(slices, classes, strict=True)
            if found is not None
        ),
        key=sum,
    )


class _Programme:
    """min Σ cost · devices cut by each pattern + Σ UNSERVED · size · slices not served, so that all demand is served or
    not, and of no class more is cut than is idle.
    """

    def __init__(self, sorts: list[Demand], slices: Sequence[int], classes: Sequence[ClassTotals]) -> None:
        self._by_memory = any(sort.memory_bytes for sort in sorts)
        devices = sum(each.devices for each in classes)
        mean_bytes = sum(each.devices * each.device_class.leasable_bytes for each in classes) / devices
        self._idle = np.array(
            [
                each.idle_milli / each.device_class.compute_milli + each.devices * IDLE_MIN_PERMILLE / 1000
                for each in classes
            ]
        )
        self._cost = np.array(
            [
                self._value(each.device_class.compute_milli, each.device_class.leasable_bytes, mean_bytes)
                for each in classes
            ]
        )
        self._cuts = [cuts(each.device_class, sorts, by_memory=self._by_memory) for each in classes]
        self._parts = parts_of(by_memory=self._by_memory)
        sizes = np.full(len(sorts), np.inf)
        shares = np.full(len(sorts), np.inf)
        for each, (fitting, _, _) in zip(classes, self._cuts, strict=True):
            for number in fitting:
                found = slice_on(each.device_class, sorts[number])
                assert found is not None
                sizes[number] = min(sizes[number], self._value(*found, mean_bytes))
                shares[number] = min(shares[number], found[0] / each.device_class.compute_milli)
        self._unserved = UNSERVED * sizes
        demand = np.array(slices, np.float64)
        self._demand = demand * (self._idle.sum() / (demand @ shares))
        self._rents = np.zeros(len(classes))
        self._columns: list[Floats] = []
        self._class_of: list[int] = []

    def _value(self, share_milli: int, memory_bytes: int, mean_bytes: float) -> float:
        share = share_milli / WHOLE_SHARE_MILLI
        return (share + memory_bytes / mean_bytes) / 2 if self._by_memory else share

    def solve(self) -> Floats:
        """Price of each sort, in devices: such that what is idle is worth what it costs, however short it is."""
        prices = self._unserved
        for _ in range(ROUNDS_MAX):
            if not self._cut_at(prices):
                break
            prices = self._prices()
        idle = float(self._idle @ (self._cost + self._rents))
        return prices * (float(self._idle @ self._cost) / idle)

    def _cut_at(self, prices: Floats) -> bool:
        """Add the best pattern of each class that pays; False if none does."""
        found = False
        known: dict[tuple[bytes, ...], Floats] = {}
        for number, (fitting, shares, memories) in enumerate(self._cuts):
            if not fitting:
                continue
            mine = prices[fitting]
            # Classes that differ in nothing that is asked for are cut alike.
            key = np.array(fitting).tobytes(), shares.tobytes(), memories.tobytes()
            if key not in known:
                known[key] = most(shares, memories, mine[:, None], *self._parts)[:, :, 0]
            best = known[key]
            cost = self._cost[number] + self._rents[number]
            if best[-1, -1] <= cost * (1 + TOLERANCE):
                continue
            pattern = np.zeros(len(prices))
            pattern[fitting] = _pattern(best, shares, memories, mine)
            self._columns.append(pattern)
            self._class_of.append(number)
            found = True
        return found

    def _prices(self) -> Floats:
        """The dual, with the patterns that there are; notes what each class's shortage costs."""
        n, of = len(self._unserved), np.array(self._class_of)
        patterns = np.column_stack(self._columns)
        mine = (of[None, :] == np.arange(len(self._idle))[:, None]).astype(np.float64)
        solved = linprog(
            np.concatenate([self._cost[of], self._unserved]),
            A_ub=np.block([[-patterns, -np.eye(n)], [mine, np.zeros((len(self._idle), n))]]),
            b_ub=np.concatenate([-self._demand, self._idle]),
            method="highs",
        )
        if solved.status != 0:
            raise RuntimeError(f"the price programme was not solved: {solved.message}")
        duals = -np.asarray(solved.ineqlin.marginals)
        self._rents = np.maximum(duals[n:], 0.0)
        prices: Floats = np.maximum(duals[:n], 0.0)
        return prices


def _pattern(best: Floats, shares: Ints, memories: Ints, prices: Floats) -> Floats:
    """How a device is cut for the most that `best` says."""
    pattern = np.zeros(len(prices))
    left, memory = best.shape[0] - 1, best.shape[1] - 1
    while best[left, memory] > 0:
        if best[left - 1, memory] == best[left, memory]:
            left -= 1
        elif memory and best[left, memory - 1] == best[left, memory]:
            memory -= 1
        else:
            fits = np.flatnonzero((shares <= left) & (memories <= memory))
            values = best[left - shares[fits], memory - memories[fits]] + prices[fits]
            sort = fits[int(values.argmax())]
            pattern[sort] += 1
            left, memory = left - int(shares[sort]), memory - int(memories[sort])
    return pattern


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


def main() -> int:
    """`python -m` this module `VERSION`: MessagePack in and out; no output: nothing to learn."""
    os.nice(NICENESS)
    summary = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=MixSummary)
    table = learn_prices(dict(summary.types), int(sys.argv[1]), summary.classes)
    if table is not None:
        worths = tuple(
            (each.device_class, worth_on(table, each.device_class).astype(np.int32).tobytes())
            for each in _merge_classes(summary.classes)
        )
        sys.stdout.buffer.write(msgspec.msgpack.encode(Lesson(table, worths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
