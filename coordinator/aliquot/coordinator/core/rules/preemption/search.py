"""What room on one node costs: fewest leases, then least lost work.

One member of a demand needs `count` devices of one node. For each node the search finds, device by device, the fewest
leases whose end makes a slice fit, counting a lease that sits on several devices once; it also starts
from each lease that holds several. That is exact where no lease sits on two of the devices, and a heuristic otherwise.
Members of a gang are then put one after another where they cost least, given the victims so far; for few slices,
`exact` then looks for something better among the nodes that are cheapest.

The result for a node depends only on what is on it, so it is remembered with the node's version: lost work grows
linearly with time, and is compared as of now.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import combinations
from typing import NamedTuple

from aliquot.coordinator.core.inventory.records import DeviceRecord
from aliquot.coordinator.core.rules.preemption.nodeview import DeviceLoad, NodeView
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS, Eligibility
from aliquot.coordinator.core.values.types import UNKNOWN, Admits, Demand, Topology

EXACT_MAX = 10
"""So many leases on one device are tried in all combinations; of more, the largest are taken first."""
STARTS_MAX = 3


class NodeCost(NamedTuple):
    """What it costs to make room for one more member on a node."""

    victims: tuple[str, ...]
    slope: int
    offset: int
    """Lost work is slope * now - offset."""
    again_ms: int
    """When a lease that may not be ended yet becomes a candidate: the result may be better from then on."""
    devices: tuple[str, ...]
    """Where the member's slices would go."""

    def key(self, now_ms: int) -> tuple[int, int]:
        """What is compared: fewest leases, then least lost work."""
        return len(self.victims), self.slope * now_ms - self.offset


class _FullDevice(NamedTuple):
    """A device on which a slice does not fit now."""

    uuid: str
    share_milli: int
    memory_bytes: int
    """What is missing."""
    candidates: dict[str, tuple[int, int]]


_Found = tuple[tuple[int, int], dict[str, None], tuple[str, ...]]
"""(what is compared, who ends, which devices)."""


class Need(NamedTuple):
    """What one member asks of a node."""

    demand: Demand
    avoid: frozenset[str]
    owners: frozenset[str]
    """Holds of these may be used: of the lease itself, and of those that must give way to it."""

    admitted_on: Admits
    """The most restricted devices that may be used."""

    sizes: dict[tuple[int, int], tuple[int, int] | None]
    """What `on` found for devices of each class and tier without foreign memory: a cache."""

    def on(self, record: DeviceRecord) -> tuple[int, int] | None:
        """(share_milli, memory_bytes) of one slice on this device; None where it never fits."""
        if not record.works or record.admits > self.admitted_on or (self.avoid and record.spec.uuid in self.avoid):
            return None
        if record.withheld_for and record.withheld_for not in self.owners:
            return None
        if record.foreign_bytes:
            return record.slice_for(self.demand)
        key = record.class_id, record.tier
        if key not in self.sizes:
            self.sizes[key] = record.slice_for(self.demand)
        return self.sizes[key]


def group_of(record: DeviceRecord, demand: Demand) -> tuple[int, int] | None:
    """Devices with the same answer can serve one member together; None: this one serves none."""
    if demand.topology != Topology.REQUIRE_ISLAND:
        return record.class_id, UNKNOWN
    return None if record.spec.nvlink_island == UNKNOWN else (record.class_id, record.spec.nvlink_island)


def cost_of_node(
    view: NodeView,
    need: Need,
    eligible: Eligibility,
    taken: dict[str, list[int]],
    gone: Iterable[str],
    members: int = 0,
) -> NodeCost | None:
    """The cheapest way to make room for one more member there, or None.

    `taken` is what the `members` placed there before it hold of each device; `gone` are the victims chosen already.
    """
    groups: dict[tuple[int, int], tuple[list[str], list[_FullDevice]]] = {}
    again_ms = NEVER_MS
    gone = set(gone)
    for load in view.devices:
        group = group_of(load.record, need.demand)
        if group is None:
            continue
        device, next_ms = _look(load, need, eligible, taken, gone)
        again_ms = min(again_ms, next_ms)
        if device is None:
            continue
        free, full = groups.setdefault(group, ([], []))
        if not device.share_milli and not device.memory_bytes:
            free.append(device.uuid)
        else:
            full.append(device)
    best: _Found | None = None
    for free, full in groups.values():
        found = _in_group(free, full, need.demand.count, eligible)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    if best is None:
        return None
    victims = best[1]
    if need.demand.cpu_milli or need.demand.host_memory_bytes:
        more = _for_host(view, need.demand, members + 1, gone, victims, eligible)
        if more is None:
            return None
        victims |= more
    slope = offset = 0
    for lease_id in victims:
        work = eligible.work(lease_id)
        slope, offset = slope + work[0], offset + work[1]
    return NodeCost(tuple(victims), slope, offset, again_ms, best[2])


def _in_group(free: list[str], full: list[_FullDevice], count: int, eligible: Eligibility) -> _Found | None:
    """The cheapest way to `count` of these devices."""
    missing = count - len(free)
    if missing <= 0:
        return (0, 0), {}, tuple(free[:count])
    if len(full) < missing:
        return None
    best: _Found | None = None
    starts = _starts(full)
    for start in starts:
        found = _complete(full, missing, start, eligible) if len(starts) > 1 else _apart(full, missing, eligible)
        key = _key(found[0], eligible)
        if best is None or key < best[0]:
            best = key, found[0], (*free, *found[1])
    return best


def _for_host(
    view: NodeView, demand: Demand, members: int, gone: set[str], victims: dict[str, None], eligible: Eligibility
) -> dict[str, None] | None:
    """Who else must end so that the node has CPU and host memory for so many members; None: that can't be had.

    Those that free most of what is short go first: the fewest where one of the two is short, a heuristic for both.
    """
    if not view.devices:
        return {}
    node = eligible.known.inventory.node(view.devices[0].record.node_id)
    cpu = demand.cpu_milli * members - node.cpu_left_milli
    host = demand.host_memory_bytes * members - node.host_memory_left_bytes
    others: list[tuple[str, int, int]] = []
    for lease_id, (of_cpu, of_host) in view.hosted.items():
        if lease_id in gone or lease_id in victims or not lease_id:
            cpu, host = cpu - of_cpu, host - of_host
        elif eligible.endable_ms(lease_id) <= eligible.now_ms:
            others.append((lease_id, of_cpu, of_host))
    more: dict[str, None] = {}

    def worth(other: tuple[str, int, int]) -> tuple[int, int, str]:
        freed = min(other[1], max(cpu, 0)) * max(host, 1) + min(other[2], max(host, 0)) * max(cpu, 1)
        return freed, -eligible.lost_now(other[0]), other[0]

    while (cpu > 0 or host > 0) and others:
        best = max(others, key=worth)
        others.remove(best)
        more[best[0]] = None
        cpu, host = cpu - best[1], host - best[2]
    return None if cpu > 0 or host > 0 else more


def _look(
    load: DeviceLoad, need: Need, eligible: Eligibility, taken: dict[str, list[int]], gone: set[str]
) -> tuple[_FullDevice | None, int]:
    record = load.record
    size = need.on(record)
    if size is None:
        return None, NEVER_MS
    share, memory = load.left(eligible.soon_ms)
    used = taken.get(record.spec.uuid)
    if used is not None and need.demand.apart:
        return None, NEVER_MS
    if used is not None:
        share, memory = share - used[0], memory - used[1]
    candidates: dict[str, tuple[int, int]] = {}
    again_ms, sum_share, sum_memory = NEVER_MS, 0, 0
    if load.late:
        others = load.others(eligible.soon_ms)
        ends = [leaver.deadline_ms for leaver in load.late if leaver.deadline_ms > eligible.soon_ms]
        again_ms = min(ends) - eligible.soon_ms + eligible.now_ms if ends else NEVER_MS
    else:
        others = list(load.holdings)
    for lease_id, of_share, of_memory in others:
        if lease_id in gone:
            share, memory = share + of_share, memory + of_memory
            continue
        endable_ms = eligible.endable_ms(lease_id)
        if endable_ms <= eligible.now_ms:
            candidates[lease_id] = (of_share, of_memory)
            sum_share, sum_memory = sum_share + of_share, sum_memory + of_memory
        else:
            again_ms = min(again_ms, endable_ms)
    missing_share, missing_memory = max(0, size[0] - share), max(0, size[1] - memory)
    if missing_share > sum_share or missing_memory > sum_memory:
        return None, again_ms
    return _FullDevice(record.spec.uuid, missing_share, missing_memory, candidates), again_ms


def _starts(full: list[_FullDevice]) -> list[tuple[str, ...]]:
    """Nothing, and each lease that sits on several of the devices, largest first."""
    seen: dict[str, int] = {}
    for device in full:
        for lease_id in device.candidates:
            seen[lease_id] = seen.get(lease_id, 0) + 1
    several = sorted((lease_id for lease_id, devices in seen.items() if devices > 1), key=lambda i: (-seen[i], i))
    return [(), *((lease_id,) for lease_id in several[:STARTS_MAX])]


def _apart(full: list[_FullDevice], missing: int, eligible: Eligibility) -> tuple[dict[str, None], list[str]]:
    """The cheapest devices where no lease sits on two of them: each can be looked at by itself."""
    costs = []
    for position, device in enumerate(full):
        victims = _cheapest(device, {}, eligible)
        costs.append((_key(victims, eligible), position, victims))
    costs.sort()
    chosen = {lease_id: None for _, _, victims in costs[:missing] for lease_id in victims}
    return chosen, [full[position].uuid for _, position, _ in costs[:missing]]


def _complete(
    full: list[_FullDevice], missing: int, start: tuple[str, ...], eligible: Eligibility
) -> tuple[dict[str, None], list[str]]:
    """Add the cheapest device, given what was chosen, until enough fit; then drop leases that are not needed."""
    chosen = dict.fromkeys(start)
    left: list[tuple[tuple[int, int], int, tuple[str, ...]]] = []

    def look(position: int) -> None:
        extra = _cheapest(full[position], chosen, eligible)
        left.append((_key(extra, eligible), position, extra))

    for position in range(len(full)):
        look(position)
    done: list[_FullDevice] = []
    while len(done) < missing:
        best = min(left)
        left.remove(best)
        done.append(full[best[1]])
        fresh = [lease_id for lease_id in best[2] if lease_id not in chosen]
        chosen.update(dict.fromkeys(fresh))
        # Only devices that one of these sits on, too, have become cheaper.
        changed = [entry for entry in left if any(lease_id in full[entry[1]].candidates for lease_id in fresh)]
        for entry in changed:
            left.remove(entry)
            look(entry[1])
    for lease_id in sorted(chosen, key=lambda i: -eligible.lost_now(i)):
        rest = {other: None for other in chosen if other != lease_id}
        if all(_fits(device, rest) for device in done):
            chosen = rest
    return chosen, [device.uuid for device in done]


def _cheapest(device: _FullDevice, chosen: dict[str, None], eligible: Eligibility) -> tuple[str, ...]:
    """The fewest further leases, then the least lost work, that make the slice fit on the device."""
    share, memory = device.share_milli, device.memory_bytes
    others: list[tuple[str, int, int]] = []
    for lease_id, (of_share, of_memory) in device.candidates.items():
        if lease_id in chosen:
            share, memory = share - of_share, memory - of_memory
        else:
            others.append((lease_id, of_share, of_memory))
    if share <= 0 and memory <= 0:
        return ()
    if len(others) == 1:
        return (others[0][0],)
    spare_share = sum([o[1] for o in others]) - share
    spare_memory = sum([o[2] for o in others]) - memory
    if all(o[1] > spare_share or o[2] > spare_memory for o in others):
        return tuple(o[0] for o in others)  # nobody can be left out
    if len(others) <= EXACT_MAX:
        for size in range(1, len(others)):
            found: tuple[int, tuple[str, ...]] | None = None
            for some in combinations(others, size):
                if sum(o[1] for o in some) >= share and sum(o[2] for o in some) >= memory:
                    names = tuple(o[0] for o in some)
                    lost = sum(eligible.lost_now(name) for name in names)
                    if found is None or lost < found[0]:
                        found = (lost, names)
            if found is not None:
                return found[1]
        return tuple(o[0] for o in others)
    # What is not short is worth nothing.
    per_share, per_memory = max(memory, 1) * (share > 0), max(share, 1) * (memory > 0)
    others.sort(key=lambda o: (-max(o[1] * per_share, o[2] * per_memory), o[0]))
    picked: list[str] = []
    for lease_id, of_share, of_memory in others:
        if share <= 0 and memory <= 0:
            break
        picked.append(lease_id)
        share, memory = share - of_share, memory - of_memory
    return tuple(picked)


def _fits(device: _FullDevice, chosen: dict[str, None]) -> bool:
    share, memory = device.share_milli, device.memory_bytes
    for lease_id, (of_share, of_memory) in device.candidates.items():
        if lease_id in chosen:
            share, memory = share - of_share, memory - of_memory
    return share <= 0 and memory <= 0


def _key(victims: Collection[str], eligible: Eligibility) -> tuple[int, int]:
    return len(victims), sum([eligible.lost_now(name) for name in victims])
