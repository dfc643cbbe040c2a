"""Devices kept for the head of a line: those that will be free for it soonest.

When a running lease will end is known from its time limit; without one it is guessed that it has as long to run as it
has run already. The reservation stands on that guess only in when it is expected to start: nobody is ended for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from aliquot.coordinator.core.leases import Lease, Slice, lease_id_of
from aliquot.coordinator.core.placement.capacity import listed_rows
from aliquot.coordinator.core.preemption.leaving import held_on, leaves, take_off
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.types import Demand, Placement

NODES_MAX = 64
"""So many nodes are looked at (and twice as many as there are members), those with most room first."""
SOON_MS = 1_000
"""What has been told to leave is expected to be gone after so long."""


class Expected(NamedTuple):
    """When a demand could start if nobody else took anything, and where."""

    placement: Placement
    start_ms: int
    uncertainty_ms: int
    """How much of the wait rests on guesses, because leases without a time limit must end first."""


def end_of(lease: Lease, now_ms: int) -> tuple[int, bool]:
    """(when a lease is expected to end, whether that is a guess)."""
    if lease.ending:
        return max((piece.deadline_ms for piece in lease.holding), default=now_ms), False
    if lease.request.time_limit_ms:
        return max(now_ms, lease.granted_ms + lease.request.time_limit_ms), False
    return now_ms + max(60_000, now_ms - lease.granted_ms), True


def expect(state: State, lease: Lease, demand: Demand, now_ms: int) -> Expected | None:
    """The earliest start on the nodes looked at, where the engine would place the demand once those have left who are
    expected to; None where it fits none of these nodes whoever leaves.
    """
    node_ids = _nodes(state, demand)
    if not node_ids:
        return None
    here = msgspec.structs.replace(demand, node_ids=node_ids)
    leaving = _leaving(state, node_ids, now_ms)
    times = sorted({now_ms, *(at_ms for at_ms, _, _ in leaving)})
    hold = state.holds.get(lease.lease_id)
    with state.inventory.trial() as inventory:
        inventory.open_devices(hold.device_uuids if hold is not None else ())

        def fits_by(at_ms: int) -> bool:
            with inventory.trial():
                take_off(state, inventory, (piece for ends_ms, _, piece in leaving if ends_ms <= at_ms))
                return state.engine.fits(here)

        number = bisect_left(times, True, key=fits_by)
        if number == len(times):
            return None
        start_ms = times[number]
        gone = [(ends_ms, guess, piece) for ends_ms, guess, piece in leaving if ends_ms <= start_ms]
        take_off(state, inventory, (piece for _, _, piece in gone))
        placement = state.engine.place(here, arrival=lease.arrival)
    if placement is None:
        return None
    devices = {plan.device_uuid for member in placement.members for plan in member}
    guessed = [ends_ms - now_ms for ends_ms, guess, piece in gone if guess and piece.plan.device_uuid in devices]
    return Expected(placement, start_ms, max(guessed, default=0))


def _nodes(state: State, demand: Demand) -> tuple[str, ...]:
    """Nodes that suit one of the demand's shapes, those with most room first."""
    inventory, engine = state.inventory, state.engine
    table = inventory.table
    listed = listed_rows(inventory, demand) & table.grantable[: table.rows]
    found: dict[str, None] = {}
    for shape in engine.matcher.shapes(demand):
        eligible = engine.shapes.eligible_rows(engine.index.slot(shape)) & listed
        free = table.share_left[: table.rows].sum(axis=1)
        order = np.flatnonzero(eligible)
        for row in order[np.argsort(-free[order], kind="stable")][: NODES_MAX + 2 * demand.gang_size].tolist():
            node = table.node_of_row[row]
            if node is not None:
                found[node.spec.node_id] = None
    return tuple(found)


def _leaving(state: State, node_ids: Iterable[str], now_ms: int) -> list[tuple[int, bool, Slice]]:
    """(when it is expected to leave, whether that is a guess, what) of all that these nodes hold."""
    ends: dict[str, tuple[int, bool]] = {}
    found: list[tuple[int, bool, Slice]] = []
    for piece in held_on(state, node_ids):
        lease_id = lease_id_of(piece.slice_id)
        if lease_id not in ends:
            ends[lease_id] = end_of(state.leases[lease_id], now_ms)
        if leaves(piece):
            soon = piece.deadline_ms <= now_ms + state.config.reclaim_grace_ms
            found.append((now_ms + SOON_MS if soon else piece.deadline_ms, False, piece))
        else:
            found.append((*ends[lease_id], piece))
    return found
