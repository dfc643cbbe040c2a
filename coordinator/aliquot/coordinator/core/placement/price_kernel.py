"""The price policy's scores in one pass, compiled by numba: the integers of `policies.price` and `candidates.gather`.

A decision in NumPy costs the overhead of some seventy calls on arrays of a few hundred numbers; here it costs the
numbers. All is a pure function of the arrays in a `Scene`; the only writes go to its `keys`, its `block_keys` and its
room to work in. A test holds the two implementations together on random pools. Imported only where it is compiled
(`compiling`).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from aliquot.coordinator.core.placement.accelerated import Scene
from aliquot.coordinator.core.placement.scoring import NEVER
from aliquot.coordinator.core.placement.shapes import Ints
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI

WHOLE = WHOLE_SHARE_MILLI
MIB = 1 << 20
COLUMN_BITS = 8
COLUMN_LAST = 255
TIER_SHIFT = 50
GRAIN = 4096
CORE = 1000
WORST = int(NEVER)


@njit(inline="always")
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


@njit()
def _members(s: Scene, group: Ints, row: int, wanted: int, class_id: int, slot: int) -> int:
    """How many fitting devices of the row are in this group."""
    members = 0
    for d in range(s.share_left.shape[1]):
        if group[row, d] == wanted and _fits(s, row, d, class_id, slot):
            members += 1
    return members


@njit()
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


@njit()
def _tier(s: Scene, row: int, class_id: int, slot: int) -> int:
    """How close together the slot's devices can be; -1 where that is not close enough."""
    tier = _closeness(s, row, class_id, slot) if s.islands[row] or s.numa_known[row] else 0
    return -1 if s.require_island[slot] and tier != 2 else tier


@njit()
def score(s: Scene, rows: Ints, first_slot: int, end_slot: int) -> None:  # noqa: C901, PLR0912, PLR0915 - see below
    """Score ascending `rows` for the slots, and bring the blocks that they lie in up to date.

    One long function on purpose: each call that takes the scene hands every array in it over, which cost more than the
    scores.
    """
    share_left, memory_left, usable, base = s.share_left, s.memory_left, s.usable, s.base
    share_of, memory_of, size_of, worth, prices, together = s.share, s.memory, s.size, s.worth, s.cpu_prices, s.together
    cpu_of, host_of, counts, proportional, linked = s.cpu, s.host, s.counts, s.proportional, s.linked
    keys, block_keys, eligible = s.keys, s.block_keys, s.eligible
    n_prices, columns, n_rows, several = len(prices), share_left.shape[1], len(rows), len(together) > 0
    before, without, breaking = s.before, s.without, s.breaking
    steps = together.shape[2] - 1
    states, weight = s.states, s.weight
    share_parts, memory_parts = s.share_parts, s.memory_parts
    for position in range(n_rows):
        row = rows[position]
        cpu_left, host_left, foreign = s.cpu_left[row], s.host_left[row], s.has_foreign[row] != 0
        class_id = s.class_id[row] if s.class_id[row] >= 0 else s.classes
        table, leasable = s.table_of[class_id], s.leasable[class_id]
        # The row's worth at each CPU price, and its distinct device states.
        idle = free = n_states = 0
        for p in range(n_prices):
            before[p] = prices[p] * cpu_left
        for d in range(columns):
            left, whole = share_left[row, d], usable[row, d]
            at, at_memory = whole, 0
            if memory_parts:
                at = (left * share_parts + WHOLE // 2) // WHOLE
                kept = min(max(memory_left[row, d], 0), leasable)
                at_memory = (kept * memory_parts + leasable // 2) // leasable
            for p in range(n_prices):
                before[p] += worth[table, at, at_memory, p]
            idle += left
            if whole == WHOLE:
                free += 1
            if left == 0 and d > 0:
                continue
            n = 0
            while n < n_states:
                e = states[n]
                same = share_left[row, e] == left and memory_left[row, e] == memory_left[row, d]
                if same and base[row, e] == base[row, d]:
                    break
                n += 1
            if n == n_states:
                states[n] = d
                weight[n] = 0
                n_states += 1
            weight[n] += 1
        step = min(max(cpu_left // s.cpu_step, 0), steps)
        value = np.int64(1) << 62
        joined = several and free > 1  # fewer are worth nothing together
        for p in range(n_prices):
            extra = together[table, free, step, p] if joined else 0
            value = min(value, before[p] + extra)
        idle = idle // max(s.width[row], 1) + min(max(cpu_left, 0) // CORE, s.cores_max)
        for slot in range(first_slot, end_slot):
            count, cpu = counts[slot], cpu_of[slot]
            if not eligible[row, slot] or cpu_left < cpu or host_left < host_of[slot]:
                keys[row, slot] = WORST
                continue
            share, memory, size = share_of[class_id, slot], memory_of[class_id, slot], size_of[class_id, slot]
            by_base = foreign and proportional[slot]
            for p in range(n_prices):
                without[p] = before[p] - prices[p] * cpu - value
                breaking[p] = without[p]
            if joined:
                # Free devices are worth something together: less so where this takes whole ones.
                step, rest = min(max((cpu_left - cpu) // s.cpu_step, 0), steps), max(free - count, 0)
                for p in range(n_prices):
                    without[p] += together[table, free, step, p]
                    breaking[p] += together[table, rest, step, p]
            best = WORST
            fitting = 0
            for n in range(n_states):
                d = states[n]
                fit = share_left[row, d] >= share
                wanted = memory
                if fit:
                    if by_base:
                        of_base = base[row, d]
                        fit = of_base >= 0
                        if share == WHOLE:
                            wanted = of_base
                        elif share < WHOLE:
                            wanted = of_base * share // WHOLE // MIB * MIB
                    fit = fit and memory_left[row, d] >= wanted
                if fit:
                    fitting += weight[n]
                elif count != 0 or n != 0:
                    continue
                whole = usable[row, d]
                rest = whole - size
                at, to, at_memory, to_memory = whole, max(rest, 0), 0, 0
                if memory_parts:
                    left, kept = share_left[row, d], min(max(memory_left[row, d], 0), leasable)
                    at = (left * share_parts + WHOLE // 2) // WHOLE
                    to = (max(left - share, 0) * share_parts + WHOLE // 2) // WHOLE
                    at_memory = (kept * memory_parts + leasable // 2) // leasable
                    kept = min(max(memory_left[row, d] - wanted, 0), leasable)
                    to_memory = (kept * memory_parts + leasable // 2) // leasable
                others = breaking if whole == WHOLE else without
                gain = others[0] + count * (worth[table, to, to_memory, 0] - worth[table, at, at_memory, 0])
                for p in range(1, n_prices):
                    fall = worth[table, to, to_memory, p] - worth[table, at, at_memory, p]
                    gain = min(gain, others[p] + count * fall)
                gain = (gain & -GRAIN) - (rest if count else 0) - idle
                best = max(best, gain * (1 << COLUMN_BITS) + COLUMN_LAST - d)
            if fitting < count:
                best = WORST
            elif linked[slot]:
                tier = _tier(s, row, class_id, slot)
                best = best + (tier << TIER_SHIFT) if tier >= 0 else WORST
            keys[row, slot] = best
        block = row // s.block
        if position + 1 == n_rows or rows[position + 1] // s.block != block:
            for slot in range(first_slot, end_slot):
                block_keys[block, slot] = WORST
            for other in range(block * s.block, (block + 1) * s.block):
                for slot in range(first_slot, end_slot):
                    block_keys[block, slot] = max(block_keys[block, slot], keys[other, slot])
