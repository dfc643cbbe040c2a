"""Devices kept for the head of a line: those that will be free for it soonest.

When a running lease will end is known from its time limit; without one it is guessed that it has as long to run as it
has run already. Only the expected start rests on that guess: nobody is ended for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.preemption.victims import NEVER_MS
from aliquot.coordinator.core.rules.trial import let_go
from aliquot.coordinator.core.values.types import Demand, Placement

# --------------------
# What if these leases were gone? Takes what they hold off the inventory, on trial.


def leaves(piece: Slice) -> bool:
    """Whether it is on its way out in any case."""
    return piece.ending and piece.state is not SliceState.UNREACHABLE


def held_on(known: Known, node_ids: Iterable[str]) -> Iterator[Slice]:
    """All that is held on these nodes."""
    for node_id in node_ids:
        for slice_id in known.slice_ids_by_node[node_id]:
            piece = known.leases[lease_id_of(slice_id)].find(slice_id)
            assert piece is not None
            yield piece


def gone_by(known: Known, node_ids: Iterable[str], victims: Collection[str], soon_ms: int) -> Iterator[Slice]:
    """What these leases hold on these nodes, and all that will have left them by then anyway."""
    for piece in held_on(known, node_ids):
        if lease_id_of(piece.slice_id) in victims or (leaves(piece) and piece.deadline_ms <= soon_ms):
            yield piece


def take_off(known: Known, inventory: Inventory, pieces: Iterable[Slice]) -> None:
    """Free what these slices hold, and the host's part of members of which nothing is left."""
    gone: dict[str, Counter[tuple[int, int, str]]] = {}
    for piece in pieces:
        inventory.release(piece.plan)
        gone.setdefault(lease_id_of(piece.slice_id), Counter())[_member(piece)] += 1
    for lease_id, members in gone.items():
        lease = known.leases[lease_id]
        held = Counter(_member(piece) for piece in lease.slices if piece.holds_capacity)
        for member, number in members.items():
            if held[member] == number:
                inventory.release_member(member[2], lease.request.demand)


def _member(piece: Slice) -> tuple[int, int, str]:
    return piece.lease_epoch, piece.member, piece.plan.node_id


NODES_MAX = 32
"""Nodes looked at, those with most room first; two more for each member."""
SOON_MS = 1_000
"""What has been told to leave is expected to be gone after so long."""


class Expected(NamedTuple):
    """When a demand could start if nobody else took anything, and where."""

    placement: Placement
    start_ms: int
    """NEVER_MS: only when leases have ended that no time limit ends."""
    endless: tuple[str, ...] = ()
    """These leases."""


class _Leaver(NamedTuple):
    """A member of a lease, and when it is expected to be gone."""

    ends_ms: int
    lease: Lease
    placement: Placement


def end_of(lease: Lease, now_ms: int) -> tuple[int, bool]:
    """(when a lease is expected to end, whether that is a guess)."""
    if lease.ending:
        return max((piece.deadline_ms for piece in lease.holding), default=now_ms), False
    if lease.request.time_limit_ms:
        return max(now_ms, lease.granted_ms + lease.request.time_limit_ms), False
    return now_ms + max(60_000, now_ms - lease.granted_ms), True


def expect(known: Known, lease: Lease, demand: Demand, now_ms: int, *, guessing: bool = True) -> Expected | None:
    """The earliest start on the nodes looked at, and where the engine would then place the demand; None where it fits
    none of them whoever leaves. `guessing`: what no time limit ends is taken to run as long again as it has.
    """
    node_ids = _nodes(known, demand)
    if not node_ids:
        return None
    here = msgspec.structs.replace(demand, node_ids=node_ids)
    leavers = _leavers(known, node_ids, now_ms, guessing=guessing)
    hold = known.holds.get(lease.lease_id)
    with known.inventory.trial() as inventory:
        inventory.open_devices(hold.device_uuids if hold is not None else ())
        marks = [inventory.mark]

        def fits_without(number: int) -> bool:
            """Whether it would fit without the first so many."""
            if number < len(marks):
                inventory.undo_to(marks[number])
                del marks[number + 1 :]
            for leaver in leavers[len(marks) - 1 : number]:
                let_go(inventory, leaver.lease.request.demand, leaver.placement)
                marks.append(inventory.mark)
            return known.engine.fits(here)

        low, high = -1, 0
        while not fits_without(high):
            if high == len(leavers):
                return None
            low, high = high, min(2 * high + 1, len(leavers))
        number = low + 1 + bisect_left(range(low + 1, high), True, key=fits_without)
        fits_without(number)
        placement = known.engine.place(here)
    if placement is None:
        return None
    start_ms = leavers[number - 1].ends_ms if number else now_ms
    if start_ms < NEVER_MS:
        return Expected(placement, start_ms)
    devices = _devices_of(placement)
    endless = [each for each in leavers[:number] if each.ends_ms == NEVER_MS and devices & _devices_of(each.placement)]
    return Expected(placement, start_ms, tuple(dict.fromkeys(each.lease.lease_id for each in endless)))


def _nodes(known: Known, demand: Demand) -> tuple[str, ...]:
    """Nodes that suit one of the demand's shapes, those with most room first."""
    engine, most = known.engine, NODES_MAX + 2 * demand.gang_size
    found = [islice(engine.roomiest(demand, (shape,)), most) for shape in engine.matcher.shapes(demand)]
    return tuple(dict.fromkeys(chain.from_iterable(found)))


def _leavers(known: Known, node_ids: Iterable[str], now_ms: int, *, guessing: bool) -> list[_Leaver]:
    """All members on these nodes, those expected to leave first at the front."""
    members: dict[tuple[str, int, int], list[Slice]] = {}
    for piece in held_on(known, node_ids):
        members.setdefault((lease_id_of(piece.slice_id), piece.lease_epoch, piece.member), []).append(piece)
    found: list[_Leaver] = []
    for (lease_id, _, _), pieces in members.items():
        lease = known.leases[lease_id]
        ends = [_end_of_slice(known, lease, piece, now_ms, guessing=guessing) for piece in pieces]
        placement = Placement((tuple(piece.plan for piece in pieces),), (pieces[0].plan.node_id,))
        found.append(_Leaver(max(ends), lease, placement))
    found.sort(key=lambda leaver: leaver.ends_ms)
    return found


def _end_of_slice(known: Known, lease: Lease, piece: Slice, now_ms: int, *, guessing: bool) -> int:
    if not leaves(piece):
        end_ms, is_guess = end_of(lease, now_ms)
        return NEVER_MS if is_guess and not guessing else end_ms
    soon = piece.deadline_ms <= now_ms + known.config.reclaim_grace_ms
    return now_ms + SOON_MS if soon else piece.deadline_ms


def _devices_of(placement: Placement) -> set[str]:
    return {plan.device_uuid for member in placement.members for plan in member}
