"""The linear programme behind the prices; see `price_programme` for what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linprog

from aliquot.coordinator.core.placement.mix import ClassTotals
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.placement.worth import cpu_steps, cuts, most, parts_of, places, slice_on
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand

Floats = npt.NDArray[np.float64]

ROUNDS_MAX = 200
"""Column generation for so few sorts ends long before; a bound all the same."""

TOLERANCE = 1e-6

UNSERVED = 1.5
"""What a slice that can't be served costs, in devices of its size. Of 1, 1.2, 1.5, 2 and 4 the best on mixed pools."""

FEWER = 0.25
"""A place for several that only few nodes have costs up to so much more when it can't be served: where all such places
run short, those that fit nowhere else still come first. Of 0, 0.1, 0.25 and 0.5 the best where many ask for nearly all
CPU of the largest nodes (`several50`, one seed: +0.4 points). For single devices it cost 0.3 points on mixed pools."""

MORE = 0.1
"""Places as wide as the widest nodes are priced for so much more of the demand as well, narrower ones for less in
proportion, at half the weight: where idle nodes just suffice for what is expected, breaking one up is not free. A wide
node does not come back soon; with as much more of each width, single devices were taken of wide nodes to spare narrow
ones (`several30`, one seed: 0.4 points less). MIG profiles that are asked for by name count as the widest places do
where others may take such instances as well: as long as all suffices, nothing else keeps any for those who can have
nothing else."""

DOUBT = 2.0
"""Of a sort for several that came n times, so many times √n more may come: what was seen seldom is not yet known."""

DOUBT_WEIGHT = 0.25
"""How much of what its price would be then counts for the widest places, for narrower ones less in proportion (of the
same for all of them: 0.02 points less on the openb list)."""

IDLE_MIN_PERMILLE = 10
"""Of a class, counted as idle besides what is: prices stay finite when it is full, and some will be free again."""


class Programme:
    """min Σ cost · devices cut by each pattern, or taken by each division of a node, + Σ UNSERVED · size · what is not
    served, so that all demand is served or not, of no class more is taken than is idle, and no more nodes are divided
    than have so many devices free.
    """

    def __init__(self, sorts: Sequence[Demand], asked: Sequence[int], classes: Sequence[ClassTotals]) -> None:
        """`asked`: how many slices, or places for several, of each sort the mix has."""
        self._by_memory = any(sort.memory_bytes for sort in sorts)
        self._parts = parts_of(by_memory=self._by_memory)
        devices = sum(each.devices for each in classes)
        mean_bytes = sum(each.devices * each.device_class.leasable_bytes for each in classes) / devices
        own = [each.device_class for each in classes]
        self._idle = np.array(
            [
                each.idle_milli / each.device_class.compute_milli + each.devices * IDLE_MIN_PERMILLE / 1000
                for each in classes
            ]
        )
        self._cost = np.array([self._value(each.compute_milli, each.leasable_bytes, mean_bytes) for each in own])
        single = [number for number, sort in enumerate(sorts) if sort.count == 1]
        self._cuts = []
        whole = self._parts[0]
        self._tops = [(each.compute_milli * whole + WHOLE_SHARE_MILLI // 2) // WHOLE_SHARE_MILLI for each in own]
        """[class] parts of the share that a device has: of a MIG instance, its part of the card."""
        for each in own:
            fitting, shares, memories = cuts(each, [sorts[number] for number in single], by_memory=self._by_memory)
            self._cuts.append(([single[number] for number in fitting], shares, memories))
        several = [number for number, sort in enumerate(sorts) if sort.count > 1]
        together = [sorts[number] for number in several]
        competed = any(sort.instances for sort in sorts)
        widest = max((node[0] for each in classes for node in each.empty_nodes), default=0)
        self._rigid = np.array([_rigid(sort, widest, competed=competed) for sort in sorts])
        step, self._steps = cpu_steps(together, widest)
        self._widest = widest
        self._places = []
        self._nodes: list[_Nodes] = []
        for number, totals in enumerate(classes):
            fitting, counts, cpu = places(totals.device_class, together, step, widest)
            self._places.append(([several[number] for number in fitting], counts, cpu))
            if fitting:
                self._nodes += _nodes_of(totals, number, counts, cpu, step, self._steps)
        sizes = np.full(len(sorts), np.inf)
        shares = np.full(len(sorts), np.inf)
        for number, sort in enumerate(sorts):
            for each in own:
                found = slice_on(each, sort)
                if found is not None:
                    size = self._value(*found, mean_bytes) * sort.count
                    sizes[number] = min(sizes[number], size)
                    shares[number] = min(shares[number], found[0] / each.compute_milli * sort.count)
        able = [min(sum(_able(each, sorts[number]) for each in classes) / devices, 1.0) for number in several]
        self._unserved = UNSERVED * sizes
        self._unserved[several] *= 1 + FEWER * (1 - np.array(able))
        self._asked = np.array(asked, np.float64)
        self._demand = self._asked * (self._idle.sum() / (self._asked @ shares))
        self._rents = np.zeros(len(classes))
        self._node_rents = np.zeros(len(self._nodes))
        self._columns: list[Floats] = []
        """[sort] what each serves, [class] devices that it takes, [node] which it divides."""
        self._costs: list[float] = []

    def _value(self, share_milli: int, memory_bytes: int, mean_bytes: float) -> float:
        share = share_milli / WHOLE_SHARE_MILLI
        return (share + memory_bytes / mean_bytes) / 2 if self._by_memory else share

    def solve(self) -> Floats:
        """Price of each sort, in devices: such that what is idle is worth what it costs, however short it is."""
        as_expected = self._solve(self._demand)
        if not self._rigid.any():
            return as_expected
        prices = (as_expected + self._solve(self._demand * (1 + MORE * self._rigid))) / 2
        for number in np.flatnonzero(self._rigid).tolist():
            demand = self._demand.copy()
            demand[number] *= 1 + DOUBT / np.sqrt(self._asked[number])
            rise = max(self._solve(demand)[number] - as_expected[number], 0.0)
            prices[number] += DOUBT_WEIGHT * self._rigid[number] * rise
        return prices

    def _solve(self, demand: Floats) -> Floats:
        """For this demand, with the columns that earlier demands brought and new ones."""
        prices = self._prices(demand) if self._columns else self._unserved
        for _ in range(ROUNDS_MAX):
            known = len(self._columns)
            self._cut_at(prices)
            self._divide_at(prices)
            if len(self._columns) == known:
                break
            prices = self._prices(demand)
        idle = float(self._idle @ (self._cost + self._rents))
        idle += sum(rent * node.number for rent, node in zip(self._node_rents.tolist(), self._nodes, strict=True))
        return prices * (float(self._idle @ self._cost) / idle)

    def _cut_at(self, prices: Floats) -> None:
        """Add the best pattern of each class that pays."""
        known: dict[tuple[bytes, ...], Floats] = {}
        for number, (fitting, shares, memories) in enumerate(self._cuts):
            if not fitting:
                continue
            mine = prices[fitting]
            # Classes that differ in nothing that is asked for are cut alike.
            key = np.array(fitting).tobytes(), shares.tobytes(), memories.tobytes()
            if key not in known:
                known[key] = most(shares, memories, mine[:, None], *self._parts)[:, :, 0]
            best = known[key][: self._tops[number] + 1]
            cost = self._cost[number] + self._rents[number]
            if best[-1, -1] <= cost * (1 + TOLERANCE):
                continue
            column = self._new_column(number, 1)
            column[fitting] = _pattern(best, shares, memories, mine)

    def _divide_at(self, prices: Floats) -> None:
        """Add, for each kind of nodes, the best division into places that pays."""
        best: Floats = np.zeros((0, 0))
        gains: Floats = np.zeros(0)
        last = -1
        for number, node in enumerate(self._nodes):
            sorts, counts, cpu = self._places[node.of]
            cost = self._cost[node.of] + self._rents[node.of]
            if node.of != last:
                last = node.of
                gains = np.maximum(prices[sorts] - counts * cost, 0.0)
                best = most(counts, cpu, gains[:, None], self._widest, self._steps)[:, :, 0]
            if best[node.free, node.steps] <= self._node_rents[number] + cost * node.free * TOLERANCE:
                continue
            division = _pattern(best[: node.free + 1, : node.steps + 1], counts, cpu, gains)
            column = self._new_column(node.of, int(division @ counts))
            column[sorts] = division
            column[len(prices) + len(self._idle) + number] = 1

    def _new_column(self, number: int, devices: int) -> Floats:
        n = len(self._unserved)
        column: Floats = np.zeros(n + len(self._idle) + len(self._nodes))
        column[n + number] = devices
        self._columns.append(column)
        self._costs.append(float(self._cost[number]) * devices)
        return column

    def _prices(self, demand: Floats) -> Floats:
        """The dual, with the columns that there are; notes what each class's shortage, and that of nodes, costs."""
        n, classes = len(self._unserved), len(self._idle)
        columns = np.column_stack(self._columns)
        columns[:n] *= -1
        unserved = np.concatenate([-np.eye(n), np.zeros((len(columns) - n, n))])
        nodes = np.array([each.number for each in self._nodes], np.float64)
        solved = linprog(
            np.concatenate([self._costs, self._unserved]),
            A_ub=np.hstack([columns, unserved]),
            b_ub=np.concatenate([-demand, self._idle, nodes]),
            method="highs",
        )
        if solved.status != 0:
            raise RuntimeError(f"the price programme was not solved: {solved.message}")
        duals = np.maximum(-np.asarray(solved.ineqlin.marginals), 0.0)
        prices: Floats = duals[:n]
        self._rents, self._node_rents = duals[n : n + classes], duals[n + classes :]
        return prices


class _Nodes(NamedTuple):
    """Nodes of which the same can be made."""

    of: int
    """Their class, by its number."""
    free: int
    """Devices that are free as a whole."""
    steps: int
    """Of CPU."""
    number: float
    """How many there are, with a few that may become like that again."""


def _rigid(sort: Demand, widest: int, *, competed: bool) -> float:
    """How much more of it is allowed for, as a part of what is of the widest places."""
    if sort.count > 1:
        return sort.count / widest if sort.count <= widest else 0.0
    return float(competed and bool(sort.mig_profile))


def _able(totals: ClassTotals, sort: Demand) -> int:
    """Devices of a class that could serve a sort for several at once, were all idle."""
    if slice_on(totals.device_class, sort) is None:
        return 0
    rooms = (
        (min(free // sort.count, cpu // sort.cpu_milli if sort.cpu_milli else free), number)
        for free, cpu, number in totals.empty_nodes
    )
    return sum(room * sort.count * number for room, number in rooms)


def _nodes_of(totals: ClassTotals, of: int, counts: Ints, cpu: Ints, step: int, steps: int) -> list[_Nodes]:
    """A class's nodes: those as one that have room for as many places of each sort."""
    found: dict[tuple[int, ...], _Nodes] = {}
    for weight, nodes in ((1.0, totals.nodes), (IDLE_MIN_PERMILLE / 1000, totals.empty_nodes)):
        for free, cpu_milli, number in nodes:
            left = min(cpu_milli // step, steps)
            room = np.minimum(free // counts, np.where(cpu > 0, left // np.maximum(cpu, 1), free))
            if room.any():
                key = free, *room.tolist()
                first = found.get(key, _Nodes(of, free, left, 0.0))
                found[key] = _Nodes(of, free, min(first.steps, left), first.number + number * weight)
    return [found[key] for key in sorted(found)]


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
