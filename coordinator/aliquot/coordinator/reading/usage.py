"""What leases really use, as their agents measure it: added up here, and told to the ledger every few minutes.

Agents report what has changed, so a reading holds until the next one, or until its slice ends or its node is lost.
Nothing of this is journalled but the sums, one a tenant and interval; what was not told yet is lost with the process,
because nobody is charged by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.common.names import plain_text
from aliquot.common.utilisation import percent, score
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.commands import ObserveUse
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI
from aliquot.coordinator.reading.outbox import Follower
from aliquot.v1 import agent_pb2, types_pb2

NOTES_MAX = 8
"""Of one slice: there are no more tiers than that."""
NOTE_CHARS_MAX = 256
SENTENCES_MAX = 4096
"""Different sets of sentences; beyond that they are kept with each slice."""

Notes = tuple[str, ...]


class TierNotes:
    """Why no stronger tier enforces a slice, as its agent reports with each confirmation. For people only: not
    journalled. It comes back with the agents' next snapshots. The same few sentences hold for thousands of slices: each
    is kept once, and no more than the slices there are.
    """

    def __init__(self, lease_of: Callable[[str], Lease | None]) -> None:
        """`lease_of` gives the durable lease of an id."""
        self._lease_of = lease_of
        self._of_slice: dict[str, Notes] = {}
        self._once: dict[Notes, Notes] = {}

    def __len__(self) -> int:
        return len(self._of_slice)

    def of(self, slice_id: str) -> Notes:
        """A line for each stronger tier, strongest first; empty: none, or its agent has not said."""
        return self._of_slice.get(slice_id, ())

    def note(self, node_id: str, reports: Iterable[agent_pb2.SliceReport]) -> None:
        """Keep what a node's agent says of its slices."""
        for report in reports:
            if report.tier_notes or report.slice_id in self._of_slice:
                self._note(node_id, report)

    def _note(self, node_id: str, report: agent_pb2.SliceReport) -> None:
        lease = self._lease_of(lease_id_of(report.slice_id))
        piece = lease.find(report.slice_id) if lease is not None else None
        if piece is None or piece.plan.node_id != node_id or not piece.holds_capacity:
            return
        notes = tuple(plain_text(note, NOTE_CHARS_MAX) for note in report.tier_notes[:NOTES_MAX])
        if not notes:
            self._of_slice.pop(report.slice_id, None)
            return
        if len(self._once) >= SENTENCES_MAX:
            self._once.clear()
        self._of_slice[report.slice_id] = self._once.setdefault(notes, notes)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Slices that have ended are forgotten."""
        if not self._of_slice or old is None or (new is not None and old.slices is new.slices):
            return
        held = {piece.slice_id for piece in new.slices if piece.holds_capacity} if new is not None else set()
        for piece in old.slices:
            if piece.slice_id not in held:
                self._of_slice.pop(piece.slice_id, None)


class ServedUses:
    """What processes that serve leases count, as their agents last said; and bytes moved, for the books.

    Agents tell sums that rise as long as a process lives. What it had moved before this coordinator began (`began_ms`)
    is in the books already, or lost with the coordinator before: nobody is charged by it.
    """

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._latest: dict[str, types_pb2.ServedUse] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def latest(self, slice_id: str) -> types_pb2.ServedUse | None:
        """What was last said of the member whose first slice this is; None: nothing."""
        return self._latest.get(slice_id)

    def saw(self, piece: Slice, use: types_pb2.ServedUse, now_ms: int) -> tuple[int, int]:
        """An agent has said it. Returns the bytes that moved since it said so before, up and down."""
        before = self._latest.get(piece.slice_id)
        kept = types_pb2.ServedUse()
        kept.CopyFrom(use)
        kept.observed_ms = now_ms
        self._latest[piece.slice_id] = kept
        if before is None:
            return (use.up_bytes, use.down_bytes) if piece.since_ms >= self._began_ms else (0, 0)
        return _risen(before.up_bytes, use.up_bytes), _risen(before.down_bytes, use.down_bytes)

    def lease_changed(self, old: Lease, running: set[str]) -> None:
        """Of the lease's slices only these run."""
        for piece in old.slices:
            if piece.slice_id not in running:
                self._latest.pop(piece.slice_id, None)


def _risen(before: int, now: int) -> int:
    """What a sum has risen by; one that has fallen is another process's."""
    return now - before if now >= before else now


_RUNNING = (SliceState.GRANTED, SliceState.ACTIVE, SliceState.PREEMPTING, SliceState.RELEASING)
"""A granted one as well: its agent's confirmation may wait in the writer's queue while its first reading is here, and
of an idle slice there is no second one.
"""


class Measured(NamedTuple):
    """What an agent said of a slice; `None` is what it could not measure."""

    at_ms: int
    memory_bytes: int | None
    utilisation_percent: int | None


class _Reading:
    """The last reading of one slice, and from when on it has not been added up."""

    __slots__ = ("busy_milli", "measured", "memory_bytes", "since_ms", "tenant")

    def __init__(self, lease: Lease, use: agent_pb2.SliceUse, since_ms: int, memory_total_bytes: int) -> None:
        # A process's part of the device's time; never more than all of it, whatever a driver says.
        self.busy_milli = min(use.gpu_utilisation_percent, 100) * 10
        self.memory_bytes = min(use.observed_bytes, memory_total_bytes)
        self.since_ms = since_ms
        self.measured = Measured(
            since_ms,
            self.memory_bytes if use.HasField("observed_bytes") else None,
            min(use.gpu_utilisation_percent, 100) if use.HasField("gpu_utilisation_percent") else None,
        )
        self.tenant = lease.request.tenant


_LOOK_MS = 1_000
"""How soon another interval holds."""


class ObservedUse(Follower):
    """See the module's docstring."""

    def __init__(
        self,
        clock: Clock,
        lease_of: Callable[[str], Lease | None],
        memory_bytes_of: Callable[[str], int],
        telemetry_of: Callable[[str], types_pb2.DeviceTelemetry | None],
    ) -> None:
        """`lease_of` gives the durable lease of an id, `memory_bytes_of` the memory of a device: nobody uses more."""
        self._memory_bytes_of = memory_bytes_of
        self._telemetry_of = telemetry_of
        self._clock = clock
        self._lease_of = lease_of
        self.tier_notes = TierNotes(lease_of)
        """Why no stronger tier holds them, beside what they use."""
        self.served = ServedUses(clock.now_ms())
        """What is done for programs that use leases from elsewhere."""
        self._readings: dict[str, _Reading] = {}
        self._sums: dict[str, list[int]] = {}
        """Tenant -> [busy_milli_ms, memory_byte_ms, interval_ms, up_bytes, down_bytes]."""

    def __len__(self) -> int:
        return len(self._readings)

    def latest(self, slice_id: str) -> Measured | None:
        """What was last said of a slice that runs; None: nothing yet."""
        reading = self._readings.get(slice_id)
        return reading.measured if reading is not None else None

    def score(self, lease: Lease) -> float | None:
        """How much of what it holds a lease uses, 0 to 100, as dashboards reckon (`common.utilisation`): the mean over
        its slices. None where that of one is not known, which may be the busy one.
        """
        scores = [self._score(piece) for piece in lease.current]
        known = [each for each in scores if each is not None]
        return round(sum(known) / len(known), 1) if known and len(known) == len(scores) else None

    def _score(self, piece: Slice) -> float | None:
        measured, plan = self.latest(piece.slice_id), piece.plan
        if measured is None or measured.utilisation_percent is None:
            return None
        # Copies and power are the card's: they say nothing of one of several that share it.
        whole = plan.share_milli == WHOLE_SHARE_MILLI
        card = (self._telemetry_of(plan.device_uuid) if whole else None) or types_pb2.DeviceTelemetry()
        return score(
            percent(measured.utilisation_percent * 10, plan.share_milli),
            card.memory_utilisation_percent if card.HasField("memory_utilisation_percent") else None,
            percent(measured.memory_bytes, plan.memory_bytes),
            percent(card.power_mw if card.HasField("power_mw") else None, card.power_limit_mw),
        )

    def saw(self, node_id: str, use: agent_pb2.SliceUse) -> None:
        """An agent has measured a slice of its node. What it can't measure counts as not used."""
        found = self._running(node_id, use.slice_id)
        if found is None:
            return
        lease, piece = found
        now_ms = self._clock.now_ms()
        self._close(use.slice_id, now_ms)
        self._readings[use.slice_id] = _Reading(lease, use, now_ms, self._memory_bytes_of(piece.plan.device_uuid))

    def saw_served(self, node_id: str, use: types_pb2.ServedUse) -> None:
        """An agent has asked the process that serves a member on its node."""
        found = self._running(node_id, use.slice_id)
        if found is None:
            return
        lease, piece = found
        moved = self.served.saw(piece, use, self._clock.now_ms())
        if any(moved):
            self._count(lease.request.tenant, 0, 0, 0, *moved)

    def _running(self, node_id: str, slice_id: str) -> tuple[Lease, Slice] | None:
        """A slice that runs on a node, and its lease; None: what an agent says of it does not count."""
        lease = self._lease_of(slice_id.partition(".")[0])
        piece = lease.find(slice_id) if lease is not None else None
        if lease is None or piece is None or piece.plan.node_id != node_id or piece.state not in _RUNNING:
            return None
        return lease, piece

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Slices that have ended, or whose node is lost, are not measured any more."""
        self.tier_notes.lease_changed(old, new)
        if not (self._readings or len(self.served)) or old is None or (new is not None and old.slices is new.slices):
            return
        running = {piece.slice_id for piece in new.slices if piece.state in _RUNNING} if new is not None else set()
        self.served.lease_changed(old, running)
        for piece in old.slices:
            if piece.slice_id not in running and piece.slice_id in self._readings:
                self._close(piece.slice_id, self._clock.now_ms())

    def take(self) -> list[ObserveUse]:
        """What came together since this was last called, a command a tenant."""
        now_ms = self._clock.now_ms()
        for reading in self._readings.values():
            self._add(reading, now_ms)
        taken, self._sums = self._sums, {}
        return [
            ObserveUse("", busy_milli_ms, memory_byte_ms, interval_ms, tenant, up_bytes, down_bytes)
            for tenant, (busy_milli_ms, memory_byte_ms, interval_ms, up_bytes, down_bytes) in taken.items()
        ]

    async def run(self, submit: Callable[[ObserveUse], Awaitable[object]], every_ms: Callable[[], int]) -> None:
        """Tell the ledger, again and again. What can't be told now is told with the next."""
        while True:
            waited_ms = 0
            while (left_ms := every_ms() - waited_ms) > 0:
                await asyncio.sleep(min(left_ms, _LOOK_MS) / 1000)
                waited_ms += min(left_ms, _LOOK_MS)
            for command in self.take():
                told = False
                with contextlib.suppress(AliquotError):
                    await submit(command)
                    told = True
                if not told:
                    self._count(
                        command.tenant,
                        command.busy_milli_ms,
                        command.memory_byte_ms,
                        command.interval_ms,
                        command.up_bytes,
                        command.down_bytes,
                    )

    def _close(self, slice_id: str, now_ms: int) -> None:
        reading = self._readings.pop(slice_id, None)
        if reading is not None:
            self._add(reading, now_ms)

    def _add(self, reading: _Reading, now_ms: int) -> None:
        elapsed_ms = now_ms - reading.since_ms
        reading.since_ms = now_ms
        if elapsed_ms <= 0:
            return
        self._count(reading.tenant, reading.busy_milli * elapsed_ms, reading.memory_bytes * elapsed_ms, elapsed_ms)

    def _count(self, tenant: str, *more: int) -> None:
        """Add to a tenant's sums, in their order; those not given stay."""
        sums = self._sums.setdefault(tenant, [0, 0, 0, 0, 0])
        for index, each in enumerate(more):
            sums[index] += each
