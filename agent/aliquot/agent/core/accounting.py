"""Splits a device's memory: per slice, foreign, and what no listed process accounts for.

The driver may answer "not available" for a process's memory. That is unknown, not zero. For a slice with such a process
there is only a lower bound. What such foreign processes hold is estimated, rather too high than too low, from the
memory in use that no process accounts for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from aliquot.agent.core.model import Holder, ProcessKey, Reservation
from aliquot.agent.core.samples import MemorySample
from aliquot.common.limits import WHOLE_SHARE_MILLI


class ProcessUse(msgspec.Struct, frozen=True):
    """One process that the driver lists on a device."""

    pid: int
    process: ProcessKey | None
    """None: /proc does not show it, so it can be counted but never identified, and so never signalled."""
    memory_bytes: int | None
    holders: tuple[Holder, ...] = ()
    """Whom it may count against; empty: foreign."""


class SliceUsage(msgspec.Struct, frozen=True):
    """What a slice's processes hold on its device."""

    reservation: Reservation
    uses: tuple[ProcessUse, ...] = ()
    complete: bool = True
    """False where the driver did not list all processes: there may be others."""

    @property
    def known_bytes(self) -> int:
        """Memory of the processes whose memory is known: a lower bound."""
        return sum(use.memory_bytes for use in self.uses if use.memory_bytes is not None)

    @property
    def observed_bytes(self) -> int | None:
        """Memory of all its processes; None where any of them, or of its memory, is unknown."""
        if not self.complete or any(use.memory_bytes is None for use in self.uses):
            return None
        return self.known_bytes


class DeviceUsage(msgspec.Struct, frozen=True):
    """A device's memory, by who holds it."""

    device_uuid: str
    slices: tuple[SliceUsage, ...]
    strays: tuple[ProcessUse, ...]
    """Processes of leases that have no slice on this device."""
    foreign: tuple[ProcessUse, ...]
    foreign_bytes: int
    unattributed_bytes: int | None
    """Used, but by no process that is listed with its memory."""
    used_bytes: int | None = None
    """By whomever; None: not known."""


def account(
    device_uuid: str,
    memory: MemorySample | None,
    processes: Sequence[ProcessUse],
    reservations: Sequence[Reservation],
    *,
    complete: bool = True,
    compute_milli: int = WHOLE_SHARE_MILLI,
) -> DeviceUsage:
    """Sort a device's processes by holder. `reservations`: those on this device that hold a part of it.
    `compute_milli`: the share of the whole device.

    Foreign is all that nothing is reserved for: also what processes of a lease hold without a slice here (strays), and
    what a slice's processes hold beyond its limit.
    """
    by_slice: dict[str, list[ProcessUse]] = {record.slice_id: [] for record in reservations}
    slice_of = _slices_by_holder(reservations)
    strays: list[ProcessUse] = []
    foreign: list[ProcessUse] = []
    for use in processes:
        slice_id = next((found for holder in use.holders if (found := _find(slice_of, holder)) is not None), None)
        if slice_id is not None:
            by_slice[slice_id].append(use)
        elif use.holders:
            strays.append(use)
        else:
            foreign.append(use)
    slices = tuple(SliceUsage(record, tuple(by_slice[record.slice_id]), complete) for record in reservations)
    listed = sum(use.memory_bytes for use in processes if use.memory_bytes is not None)
    unattributed = None if memory is None or memory.used_bytes is None else max(0, memory.used_bytes - listed)
    return DeviceUsage(
        device_uuid=device_uuid,
        slices=slices,
        strays=tuple(strays),
        foreign=tuple(foreign),
        foreign_bytes=_foreign_bytes((*strays, *foreign), slices, unattributed, complete=complete)
        + _beyond_limits(slices, compute_milli),
        unattributed_bytes=unattributed,
        used_bytes=None if memory is None else memory.used_bytes,
    )


def _slices_by_holder(reservations: Sequence[Reservation]) -> Mapping[tuple[str, int], dict[int, str]]:
    """(lease, member) -> epoch -> slice."""
    result: dict[tuple[str, int], dict[int, str]] = {}
    for record in reservations:
        result.setdefault((record.spec.lease_id, record.spec.member), {})[record.spec.lease_epoch] = record.slice_id
    return result


def _find(slice_of: Mapping[tuple[str, int], dict[int, str]], holder: Holder) -> str | None:
    """The slice of the process's own grant; else of the next later one, else of the latest before it: a lease
    that grew while the process ran may have got its slice here after it attached.
    """
    epochs = slice_of.get((holder.lease_id, holder.member))
    if not epochs:
        return None
    nearest = min(epochs, key=lambda epoch: (epoch < holder.lease_epoch, abs(epoch - holder.lease_epoch)))
    return epochs[nearest]


def _beyond_limits(slices: Sequence[SliceUsage], compute_milli: int) -> int:
    """Whoever has a whole device may use all of it."""
    shared = [piece for piece in slices if piece.reservation.spec.share_milli < compute_milli]
    return sum(max(0, piece.known_bytes - piece.reservation.spec.memory_bytes) for piece in shared)


def _foreign_bytes(
    foreign: Sequence[ProcessUse], slices: Sequence[SliceUsage], unattributed: int | None, *, complete: bool
) -> int:
    known = sum(use.memory_bytes for use in foreign if use.memory_bytes is not None)
    if unattributed is None or (complete and all(use.memory_bytes is not None for use in foreign)):
        return known
    # Some foreign process's memory is unknown: it is within what nobody accounts for, less what unknown
    # processes of leases may hold of that within their own reservations.
    room = sum(
        max(0, usage.reservation.spec.memory_bytes - usage.known_bytes)
        for usage in slices
        if usage.observed_bytes is None
    )
    return known + max(0, unattributed - room)
