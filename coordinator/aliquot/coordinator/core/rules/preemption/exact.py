"""The best victims on a few nodes, by branch and bound.

Exact: among the nodes given, the result has the fewest victims, and of those the least lost work, as long as
`FRONTS_MAX` suffices (it does for pools of a few nodes and, in large ones, for most questions) and no device carries
more than `SINGLES_MAX` candidates of its own. Beyond that it is the best of what was looked at, and never worse than
the bound that came in.

Why this is tractable: leases that sit on one device only concern that device. What is the cheapest way to so many
slots can be found for each device by itself, and be put together by dynamic programming over the devices of a node and
over the nodes. Only the *shared* leases, which sit on several devices, tie devices to one another, so the search
branches over these alone: for each set of them that ends, the rest is a table. Where CPU or host memory is short, a
node's leases that hold some of it count as shared, because they sit on the host as well as on a device. A branch is cut
where even the end of all shared leases that are still to be decided on, at no cost, would not make it better than the
best so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from typing import NamedTuple

from aliquot.coordinator.core.rules.preemption.nodeview import DeviceLoad, NodeView
from aliquot.coordinator.core.rules.preemption.search import Need, group_of
from aliquot.coordinator.core.rules.preemption.victims import Eligibility

NODES_MAX = 8
"""Nodes given at most: those that are cheapest for one member."""
SLICES_MAX = 8
"""Larger gangs are left to the greedy choice: in them one lease more or less weighs little."""
FRONTS_MAX = 160
"""Tables of nodes that one question computes at most: the bound on its time."""
VALUES_MAX = 1_500
SINGLES_MAX = 8
VICTIM = 1 << 90
"""A cost is so many victims plus the work they lose: one integer, in which no work outweighs a victim."""
UNBOUNDED = 1 << 120
"""More than all leases of a pool together cost."""

_Cost = tuple[int, tuple[str, ...]]
"""(cost, who ends)."""
_Front = list[_Cost | None]
"""By number of slots or members: the cheapest way to at least so many; None: there is none."""


class ExactChoice(NamedTuple):
    """Who ends, and where the members go."""

    victims: tuple[str, ...]
    node_ids: tuple[str, ...]


class _Device(NamedTuple):
    share_milli: int
    memory_bytes: int
    size: tuple[int, int]
    singles: tuple[tuple[int, int, int, str], ...]
    """(share, memory, cost, lease) of candidates that sit here only."""
    shared: tuple[tuple[int, int, int], ...]
    """(bit, share, memory) of those that sit elsewhere too."""
    mask: int


class _Host(NamedTuple):
    """CPU and host memory of a node, where they may be short."""

    cpu_milli: int
    memory_bytes: int
    held: tuple[tuple[int, int, int], ...]
    """(bit, CPU, memory) that leases would give back."""


class _Node(NamedTuple):
    node_id: str
    groups: tuple[tuple[_Device, ...], ...]
    """A member's slices sit within one of them."""
    mask: int
    members_max: int
    host: _Host | None


class _TooMuch(Exception):
    """Ends a search that has used up what it may."""


def cost_of(victims: Sequence[str], eligible: Eligibility) -> int:
    """What ending these costs, in the unit of `VICTIM`."""
    return len(victims) * VICTIM + sum([eligible.lost_now(lease_id) for lease_id in victims])


def improve(
    views: Sequence[tuple[str, NodeView, int]], need: Need, eligible: Eligibility, gang_size: int, bound: int
) -> ExactChoice | None:
    """A choice that costs less than `bound`, or None. Of each node: its id, its view, and the members it may take."""
    return _Search(views, need, eligible, gang_size, bound).run()


class _Search:
    def __init__(
        self,
        views: Sequence[tuple[str, NodeView, int]],
        need: Need,
        eligible: Eligibility,
        gang_size: int,
        bound: int,
    ) -> None:
        self._gang_size = gang_size
        self._demand = need.demand
        self._known = eligible.known
        self._best = bound
        self._found: tuple[int, tuple[str, ...]] | None = None
        self._fronts: dict[tuple[int, int], _Front] = {}
        self._values: dict[int, int | None] = {}
        self._read(views, need, eligible)

    def _read(self, views: Sequence[tuple[str, NodeView, int]], need: Need, eligible: Eligibility) -> None:
        seats: dict[str, int] = {}
        usable: dict[str, list[tuple[tuple[int, int], DeviceLoad, tuple[int, int]]]] = {}
        hosts: dict[str, tuple[int, int]] = {}

        def seat(lease_id: str) -> None:
            if lease_id and eligible.endable_ms(lease_id) <= eligible.now_ms:
                seats[lease_id] = seats.get(lease_id, 0) + 1

        for node_id, view, members_max in views:
            of_node = usable[node_id] = []
            for load in view.devices:
                size, group = need.on(load.record), group_of(load.record, need.demand)
                if size is not None and group is not None:
                    of_node.append((group, load, size))
                    for lease_id, _, _ in load.others(eligible.soon_ms):
                        seat(lease_id)
            left = self._host_left(node_id, view)
            if self._by_host(left) < min(members_max, self._gang_size):
                hosts[node_id] = left
                for lease_id in view.hosted:
                    seat(lease_id)
                    seat(lease_id)  # also where it sits on no useful device: it holds CPU or host memory
        shared = [lease_id for lease_id, number in seats.items() if number > 1]
        shared.sort(key=lambda i: (-seats[i], eligible.lost_now(i), i))
        self._shared = shared
        self._costs = [VICTIM + eligible.lost_now(lease_id) for lease_id in shared]
        bits = {lease_id: 1 << number for number, lease_id in enumerate(shared)}
        self._nodes: list[_Node] = []
        for node_id, view, members_max in views:
            groups: dict[tuple[int, int], list[_Device]] = {}
            for group, load, size in usable[node_id]:
                groups.setdefault(group, []).append(_device(load, size, seats, bits, eligible))
            host = None
            if node_id in hosts:
                held = tuple((bits[i], *freed) for i, freed in view.hosted.items() if i in bits)
                host = _Host(*hosts[node_id], held)
            mask = 0
            for device in (device for devices in groups.values() for device in devices):
                mask |= device.mask
            for bit, _, _ in host.held if host is not None else ():
                mask |= bit
            devices_by_group = tuple(tuple(devices) for devices in groups.values())
            self._nodes.append(_Node(node_id, devices_by_group, mask, min(members_max, self._gang_size), host))

    def _host_left(self, node_id: str, view: NodeView) -> tuple[int, int]:
        """CPU and host memory of a node, with what is leaving anyway."""
        node, leaving = self._known.inventory.node(node_id), view.hosted.get("", (0, 0))
        return node.cpu_left_milli + leaving[0], node.host_memory_left_bytes + leaving[1]

    def _by_host(self, left: tuple[int, int]) -> int:
        """How many members so much CPU and host memory is enough for."""
        members = self._gang_size
        for wanted, have in ((self._demand.cpu_milli, left[0]), (self._demand.host_memory_bytes, left[1])):
            if wanted:
                members = min(members, max(have, 0) // wanted)
        return members

    def run(self) -> ExactChoice | None:
        with suppress(_TooMuch):  # what was found until then is no worse than the bound
            self._branch(0, 0, 0)
        if self._found is None:
            return None
        ended, names = self._found
        victims = [lease_id for number, lease_id in enumerate(self._shared) if ended >> number & 1]
        node_ids = tuple(self._used(ended))
        return ExactChoice((*victims, *names), node_ids)

    def _branch(self, ended: int, cost: int, first: int) -> None:
        """Look at every set that consists of `ended` and any of the shared leases from `first` on."""
        value = self._value(ended)
        if value is not None and cost + value < self._best:
            self._best = cost + value
            whole = self._whole(ended)[self._gang_size]
            assert whole is not None
            self._found = (ended, whole[1])
        everybody = (1 << len(self._shared)) - 1
        for number in range(first, len(self._shared)):
            undecided = everybody >> number << number
            at_best = self._value(ended | undecided)
            if at_best is None or cost + VICTIM + at_best >= self._best:
                return
            more = cost + self._costs[number]
            if more < self._best:
                self._branch(ended | 1 << number, more, number + 1)

    def _value(self, ended: int) -> int | None:
        """What the other victims cost, once these shared leases have ended; None: it can't be done."""
        if ended not in self._values:
            if len(self._values) >= VALUES_MAX:
                raise _TooMuch
            whole = self._whole(ended)[self._gang_size]
            self._values[ended] = whole[0] if whole is not None else None
        return self._values[ended]

    def _whole(self, ended: int) -> _Front:
        front: _Front = [(0, ()), *[None] * self._gang_size]
        for node in self._nodes:
            front = _joined(front, self._front(node, ended), self._gang_size)
        return front

    def _used(self, ended: int) -> list[str]:
        """The nodes that get members, found backwards through the tables."""
        fronts: list[_Front] = [[(0, ()), *[None] * self._gang_size]]
        for node in self._nodes:
            fronts.append(_joined(fronts[-1], self._front(node, ended), self._gang_size))
        left, used = self._gang_size, []
        for position in range(len(self._nodes) - 1, -1, -1):
            wanted, here = fronts[position + 1][left], self._front(self._nodes[position], ended)
            assert wanted is not None
            for members in range(min(left, len(here) - 1) + 1):
                before, extra = fronts[position][left - members], here[members]
                if before is not None and extra is not None and before[0] + extra[0] == wanted[0]:
                    if members:
                        used.append(self._nodes[position].node_id)
                    left -= members
                    break
        return used[::-1]

    def _front(self, node: _Node, ended: int) -> _Front:
        """By members: the cheapest way to make room for so many there."""
        key = (id(node), ended & node.mask)
        known = self._fronts.get(key)
        if known is None:
            if len(self._fronts) >= FRONTS_MAX:
                raise _TooMuch
            known = self._fronts[key] = self._front_afresh(node, ended)
        return known

    def _front_afresh(self, node: _Node, ended: int) -> _Front:
        most = node.members_max
        if node.host is not None:
            freed = [held for held in node.host.held if held[0] & ended]
            cpu = node.host.cpu_milli + sum(held[1] for held in freed)
            memory = node.host.memory_bytes + sum(held[2] for held in freed)
            most = min(most, self._by_host((cpu, memory)))
        front: _Front = [(0, ()), *[None] * most]
        for devices in node.groups:
            slots = [_slots(device, ended, 1 if self._demand.apart else most) for device in devices]
            front = _joined(front, _members(slots, self._demand.count, most), most)
        return front


def _device(
    load: DeviceLoad, size: tuple[int, int], seats: dict[str, int], bits: dict[str, int], eligible: Eligibility
) -> _Device:
    singles, shared, mask = [], [], 0
    for lease_id, share, memory in load.others(eligible.soon_ms):
        if lease_id not in seats or eligible.endable_ms(lease_id) > eligible.now_ms:
            continue
        if lease_id in bits:
            shared.append((bits[lease_id], share, memory))
            mask |= bits[lease_id]
        else:
            singles.append((share, memory, VICTIM + eligible.lost_now(lease_id), lease_id))
    return _Device(*load.left(eligible.soon_ms), size, tuple(singles), tuple(shared), mask)


def _slots(device: _Device, ended: int, most: int) -> _Front:
    """By slots: the cheapest of the device's own leases that make room for so many."""
    share, memory = device.share_milli, device.memory_bytes
    for bit, of_share, of_memory in device.shared:
        if ended & bit:
            share, memory = share + of_share, memory + of_memory

    def fits(share: int, memory: int) -> int:
        wanted_share, wanted_memory = device.size
        if share < 0 or memory < 0:
            return 0
        slots = share // wanted_share if wanted_share else most
        return min(slots, memory // wanted_memory if wanted_memory else most, most)

    best: dict[int, _Cost] = {fits(share, memory): (0, ())}
    if most not in best:
        for some in _subsets(device.singles):
            slots = fits(share + sum([s[0] for s in some]), memory + sum([s[1] for s in some]))
            cost = sum([s[2] for s in some])
            if slots not in best or cost < best[slots][0]:
                best[slots] = (cost, tuple([s[3] for s in some]))
    front: _Front = [None] * (most + 1)
    cheapest: _Cost | None = None
    for slots in range(most, -1, -1):
        if slots in best and (cheapest is None or best[slots][0] < cheapest[0]):
            cheapest = best[slots]
        front[slots] = cheapest
    return front


def _subsets(
    singles: tuple[tuple[int, int, int, str], ...],
) -> list[tuple[tuple[int, int, int, str], ...]]:
    """All subsets but the empty one; of many leases, only the largest so many."""
    if len(singles) <= SINGLES_MAX:
        return [some for size in range(1, len(singles) + 1) for some in combinations(singles, size)]
    ordered = sorted(singles, key=lambda s: (-s[0], -s[1], s[2]))
    return [tuple(ordered[:size]) for size in range(1, len(ordered) + 1)]


def _members(slots: list[_Front], count: int, most: int) -> _Front:
    """By members of `count` slices on distinct devices: m of them fit if the sum of min(slots, m) reaches m * count."""
    if not count:
        return [(0, ())] * (most + 1)
    front: _Front = [(0, ()), *[None] * most]
    for members in range(1, most + 1):
        reached: _Front = [(0, ()), *[None] * (members * count)]
        for of_device in slots:
            reached = _joined(reached, of_device[: members + 1], members * count)
        front[members] = reached[members * count]
    return front


def _joined(one: _Front, other: _Front, most: int) -> _Front:
    """Two fronts put together."""
    found: _Front = [None] * (most + 1)
    for number, extra in enumerate(other):
        if extra is None:
            continue
        for before in range(min(len(one), most + 1 - number)):
            base = one[before]
            if base is None:
                continue
            known = found[before + number]
            cost = base[0] + extra[0]
            if known is None or cost < known[0]:
                found[before + number] = (cost, base[1] + extra[1])
    return found
