"""The price policy's scores in one pass, compiled by numba: the integers of `policies.price` and `candidates.gather`.

A decision in NumPy costs the overhead of some seventy calls on arrays of a few hundred numbers; here it costs the
numbers. All is a pure function of the arrays in a `Scene`; the only writes go to its `keys` and `block_keys`. A
test holds the two implementations together on random pools. Imported only where numba is (`accelerated` does).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from aliquot.coordinator.core.placement.scoring import NEVER
from aliquot.coordinator.core.placement.shapes import Bools, Ints
from aliquot.coordinator.core.types import WHOLE_SHARE_MILLI

WHOLE = WHOLE_SHARE_MILLI
MIB = 1 << 20
COLUMN_BITS = 8
COLUMN_LAST = 255
TIER_SHIFT = 50
GRAIN = 4096
WORST = int(NEVER)
_LARGEST = np.iinfo(np.int64).max


class Scene(NamedTuple):
    """What a pass reads and writes; `accelerated.Accelerator` fills it from the arrays' owners."""

    # The inventory's table: [row][column], then [row].
    share_left: Ints
    memory_left: Ints
    usable: Ints
    base: Ints
    island: Ints
    numa: Ints
    cpu_left: Ints
    host_left: Ints
    class_id: Ints
    width: Ints
    islands: Ints
    has_foreign: Ints
    numa_known: Bools
    # The shapes: [class][slot], then [slot]. Rows without devices use the class after the last.
    share: Ints
    memory: Ints
    size: Ints
    cpu: Ints
    host: Ints
    counts: Ints
    linked: Bools
    require_island: Bools
    proportional: Bools
    classes: int
    # The prices: [left 0..1000][cpu price], [cpu price].
    worth: Ints
    cpu_prices: Ints
    # Places for several devices: [group][devices, CPU, worth of a device].
    groups: Ints
    # The index: [row][slot], [block][slot].
    eligible: Bools
    keys: Ints
    block_keys: Ints
    block: int


@njit(cache=True, inline="always")
def _worth_of_groups(s: Scene, free: int, cpu_left: int) -> int:
    worth = 0
    for g in range(len(s.groups)):
        worth += min(free // s.groups[g, 0], cpu_left // s.groups[g, 1]) * s.groups[g, 0] * s.groups[g, 2]
    return worth


@njit(cache=True, inline="always")
def _look_at_row(s: Scene, row: int, before: Ints, states: Ints, weight: Ints) -> tuple[int, int, int, int]:
    """Fill the row's worth at each CPU price and its distinct device states.

    Returns (least worth, idle part, free devices, states).
    """
    columns = s.share_left.shape[1]
    idle = 0
    free = 0
    n_states = 0
    for p in range(len(s.cpu_prices)):
        before[p] = s.cpu_prices[p] * s.cpu_left[row]
    for d in range(columns):
        left = s.share_left[row, d]
        for p in range(len(s.cpu_prices)):
            before[p] += s.worth[s.usable[row, d], p]
        idle += left
        if s.usable[row, d] == WHOLE:
            free += 1
        if left == 0 and d > 0:
            continue
        n = 0
        while n < n_states:
            e = states[n]
            same = s.share_left[row, e] == left and s.memory_left[row, e] == s.memory_left[row, d]
            if same and s.base[row, e] == s.base[row, d]:
                break
            n += 1
        if n == n_states:
            states[n] = d
            weight[n] = 0
            n_states += 1
        weight[n] += 1
    value = _LARGEST
    for p in range(len(s.cpu_prices)):
        value = min(value, before[p])
    return value + _worth_of_groups(s, free, s.cpu_left[row]), idle // max(s.width[row], 1), free, n_states


@njit(cache=True, inline="always")
def _fits(s: Scene, row: int, d: int, class_id: int, slot: int) -> bool:
    share = s.share[class_id, slot]
    memory = s.memory[class_id, slot]
    if s.share_left[row, d] < share:
        return False
    if s.proportional[slot] and s.has_foreign[row]:
        base = s.base[row, d]
        if base < 0:
            return False
        if share == WHOLE:
            memory = base
        elif share < WHOLE:
            memory = base * share // WHOLE // MIB * MIB
    return bool(s.memory_left[row, d] >= memory)


@njit(cache=True)
def _members(s: Scene, group: Ints, row: int, wanted: int, class_id: int, slot: int) -> int:
    """How many fitting devices of the row are in this group."""
    members = 0
    for d in range(s.share_left.shape[1]):
        if group[row, d] == wanted and _fits(s, row, d, class_id, slot):
            members += 1
    return members


@njit(cache=True)
def _closeness(s: Scene, row: int, class_id: int, slot: int) -> int:
    """2 if enough fitting devices share an NVLink island, 1 if a NUMA node, else 0."""
    if not s.islands[row] and not s.numa_known[row]:
        return 0
    found = 0
    for d in range(s.share_left.shape[1]):
        if s.island[row, d] >= 0 and _members(s, s.island, row, s.island[row, d], class_id, slot) >= s.counts[slot]:
            return 2
        if s.numa[row, d] >= 0 and _members(s, s.numa, row, s.numa[row, d], class_id, slot) >= s.counts[slot]:
            found = 1
    return found


@njit(cache=True, inline="always")
def _key_of(  # noqa: PLR0917 - numba has no keyword-only arguments
    s: Scene,
    row: int,
    slot: int,
    before: Ints,
    states: Ints,
    weight: Ints,
    value: int,
    idle: int,
    free: int,
    n_states: int,
) -> int:
    class_id = s.class_id[row] if s.class_id[row] >= 0 else s.classes
    count = s.counts[slot]
    cpu = s.cpu[slot]
    size = s.size[class_id, slot]
    if not s.eligible[row, slot] or s.cpu_left[row] < cpu or s.host_left[row] < s.host[slot]:
        return WORST
    best = WORST
    fitting = 0
    for n in range(n_states):
        d = states[n]
        fit = _fits(s, row, d, class_id, slot)
        if fit:
            fitting += weight[n]
        elif count != 0 or n != 0:
            continue
        usable = s.usable[row, d]
        rest = usable - size
        kept = max(rest, 0)
        gain = _LARGEST
        has, had, prices = s.worth[kept], s.worth[usable], s.cpu_prices
        for p in range(len(prices)):
            gain = min(gain, before[p] - prices[p] * cpu + count * (has[p] - had[p]))
        free_after = max(free - count, 0) if usable == WHOLE else free
        gain += _worth_of_groups(s, free_after, s.cpu_left[row] - cpu) - value
        gain = (gain & -GRAIN) - (rest if count else 0) - idle
        best = max(best, gain * (1 << COLUMN_BITS) + COLUMN_LAST - d)
    if fitting < count:
        return WORST
    if s.linked[slot]:
        tier = _closeness(s, row, class_id, slot)
        if s.require_island[slot] and tier != 2:
            return WORST
        best += tier << TIER_SHIFT
    return best


@njit(cache=True, inline="always")
def _best_of_block(s: Scene, block: int, first_slot: int, end_slot: int) -> None:
    best = s.block_keys[block, first_slot:end_slot]
    best[:] = WORST
    for row in range(block * s.block, (block + 1) * s.block):
        keys = s.keys[row, first_slot:end_slot]
        for number in range(len(best)):
            best[number] = max(best[number], keys[number])


@njit(cache=True)
def score(s: Scene, rows: Ints, first_slot: int, end_slot: int) -> None:
    """Score ascending `rows` for the slots, and bring the blocks that they lie in up to date."""
    before = np.empty(len(s.cpu_prices), np.int64)
    states = np.empty(s.share_left.shape[1], np.int64)
    weight = np.empty(s.share_left.shape[1], np.int64)
    last = -1
    for row in rows:
        value, idle, free, n_states = _look_at_row(s, row, before, states, weight)
        for slot in range(first_slot, end_slot):
            s.keys[row, slot] = _key_of(s, row, slot, before, states, weight, value, idle, free, n_states)
        block = row // s.block
        if last >= 0 and block != last:
            _best_of_block(s, last, first_slot, end_slot)
        last = block
    if last >= 0:
        _best_of_block(s, last, first_slot, end_slot)
