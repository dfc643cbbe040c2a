"""What leases really use, as their agents measure it: added up here, and told to the ledger every few minutes.

Agents report what has changed, so a reading holds until the next one, or until its slice ends or its node is lost.
Nothing of this is journalled but the sums, one a tenant and interval; what was not told yet is lost with the process,
because nobody is charged by it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import NamedTuple

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.common.gauges import Metric, counters_by
from aliquot.common.latest import Latest
from aliquot.common.names import plain_text
from aliquot.common.utilisation import percent, score
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState, lease_id_of
from aliquot.coordinator.core.books.ledger.entries import QUANTITIES
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

    def forget(self, slice_id: str) -> None:
        """It is over."""
        self._of_slice.pop(slice_id, None)


class Risen:
    """By how much sums have risen that agents tell of slices: they rise as long as who counts them lives. What had come
    together before this coordinator began (`began_ms`) is in the books already, or lost with the coordinator before:
    nobody is charged by it.
    """

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._last: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def by(self, lease: Lease, slice_id: str, *sums: int) -> tuple[int, ...]:
        """Since they were told before; one that has fallen is counted by somebody new."""
        before, self._last[slice_id] = self._last.get(slice_id), sums
        if before is None:
            return sums if lease.granted_ms >= self._began_ms else (0,) * len(sums)
        return tuple(now - was if now >= was else now for was, now in zip(before, sums, strict=True))

    def forget(self, slice_id: str) -> None:
        """It is over."""
        self._last.pop(slice_id, None)


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

    __slots__ = ("energy", "measured", "since_ms", "tenant")

    def __init__(self, lease: Lease, use: agent_pb2.SliceUse, since_ms: int, memory_total_bytes: int) -> None:
        # A process's part of the device's time; never more than all of it, whatever a driver says.
        self.measured = Measured(
            since_ms,
            min(use.observed_bytes, memory_total_bytes) if use.HasField("observed_bytes") else None,
            min(use.gpu_utilisation_percent, 100) if use.HasField("gpu_utilisation_percent") else None,
        )
        self.energy = use.HasField("energy_mj")
        self.since_ms = since_ms
        self.tenant = lease.request.tenant


TENANTS_MAX = 4096
"""Whose energy is counted for scrapers, those that drew last: anybody may have many tenants where none is declared."""
MOST_MW = 10_000_000
"""No device draws more, whatever an agent says."""
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
        self._served: dict[str, types_pb2.ServedUse] = {}
        """What processes that serve members count, by the member's first slice."""
        self._moved, self._risen = Risen(clock.now_ms()), Risen(clock.now_ms())
        self._drawn: dict[str, int] = {}
        """Millijoules, by slice."""
        self._said: dict[str, tuple[int, int]] = {}
        """By slice: the session in which its agent last said how many it had counted, and how many."""
        self._drawn_for: Latest[str, int] = Latest(TENANTS_MAX)
        """By tenant, since this coordinator began; of one that was forgotten it begins anew."""
        self._readings: dict[str, _Reading] = {}
        self._sums: dict[str, Counter[str]] = {}
        """By tenant, of QUANTITIES."""

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

    def saw(self, node_id: str, session_epoch: int, use: agent_pb2.SliceUse) -> None:
        """An agent has measured a slice of its node. What it can't measure counts as not used."""
        found = self._running(node_id, use.slice_id)
        if found is None:
            return
        lease, piece = found
        now_ms = self._clock.now_ms()
        self._close(use.slice_id, now_ms)
        self._readings[use.slice_id] = _Reading(lease, use, now_ms, self._memory_bytes_of(piece.plan.device_uuid))
        if use.HasField("energy_mj"):
            self._drew(lease, use.slice_id, use.energy_mj, session_epoch)

    def drawn_mj(self, slice_id: str) -> int | None:
        """What a slice's card has drawn for it so far; None: not measured."""
        return self._drawn.get(slice_id)

    def reported(self, node_id: str, session_epoch: int, report: agent_pb2.SliceReport) -> int | None:
        """An agent has confirmed how a slice is now, which may be the last that it says of it. Returns `drawn_mj`."""
        if report.HasField("energy_mj") and (found := self._running(node_id, report.slice_id)) is not None:
            self._drew(found[0], report.slice_id, report.energy_mj, session_epoch)
        return self.drawn_mj(report.slice_id)

    def _drew(self, lease: Lease, slice_id: str, energy_mj: int, session_epoch: int) -> None:
        """An agent that was restarted counts from nothing, so its sums are added up here. Who says less in one session
        has not been restarted: a confirmation that had to wait, or was sent again, says what was true before.
        """
        if self._said.get(slice_id, (0, 0)) > (session_epoch, energy_mj):
            return
        self._said[slice_id] = session_epoch, energy_mj
        known = self._drawn.get(slice_id)
        (risen_mj,) = self._risen.by(lease, slice_id, energy_mj)
        most_mj = MOST_MW * max(0, self._clock.now_ms() - lease.granted_ms) // 1000
        sum_mj = self._drawn[slice_id] = min(energy_mj if known is None else known + risen_mj, most_mj)
        more_mj = min(risen_mj, sum_mj - (known or 0))
        self._drawn_for[lease.request.tenant] = self._drawn_for.get(lease.request.tenant, 0) + more_mj
        self._count(lease.request.tenant, energy_mj=more_mj)

    def collect(self) -> Iterator[Metric]:
        """For a scrape, on its thread."""
        yield counters_by(
            ["tenant"],
            "aliquot_tenant_energy_joules",
            "What cards drew for a tenant's leases, where they count it",
            [([tenant], mj / 1000) for tenant, mj in Counter(dict(self._drawn_for)).most_common()],
        )

    def saw_served(self, node_id: str, use: types_pb2.ServedUse) -> None:
        """An agent has asked the process that serves a member on its node."""
        found = self._running(node_id, use.slice_id)
        if found is None:
            return
        lease, piece = found
        kept = self._served[piece.slice_id] = types_pb2.ServedUse()
        kept.CopyFrom(use)
        kept.observed_ms = self._clock.now_ms()
        up_bytes, down_bytes = self._moved.by(lease, piece.slice_id, use.up_bytes, use.down_bytes)
        self._count(lease.request.tenant, up_bytes=up_bytes, down_bytes=down_bytes)

    def served(self, slice_id: str) -> types_pb2.ServedUse | None:
        """What is done for programs that use a member from elsewhere, whose first slice this is; None: nothing yet."""
        return self._served.get(slice_id)

    def _running(self, node_id: str, slice_id: str) -> tuple[Lease, Slice] | None:
        """A slice that runs on a node, and its lease; None: what an agent says of it does not count."""
        lease = self._lease_of(slice_id.partition(".")[0])
        piece = lease.find(slice_id) if lease is not None else None
        if lease is None or piece is None or piece.plan.node_id != node_id or piece.state not in _RUNNING:
            return None
        return lease, piece

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Slices that have ended, or whose node is lost, are not measured any more."""
        known = self._readings or self._drawn or self._served or len(self._moved) or len(self.tier_notes)
        if not known or old is None or (new is not None and old.slices is new.slices):
            return
        running = {piece.slice_id for piece in new.slices if piece.state in _RUNNING} if new is not None else set()
        held = {piece.slice_id for piece in new.slices if piece.holds_capacity} if new is not None else set()
        for piece in old.slices:
            if piece.slice_id not in running:
                self._close(piece.slice_id, self._clock.now_ms())
                self._served.pop(piece.slice_id, None)
            if piece.slice_id not in held:  # one whose node is lost may come back, and go on counting
                self._drawn.pop(piece.slice_id, None)
                self._said.pop(piece.slice_id, None)
                for each in (self._risen, self._moved, self.tier_notes):
                    each.forget(piece.slice_id)

    def take(self) -> list[ObserveUse]:
        """What came together since this was last called, a command a tenant."""
        now_ms = self._clock.now_ms()
        for reading in self._readings.values():
            self._add(reading, now_ms)
        taken, self._sums = self._sums, {}
        return [ObserveUse(lease_id="", tenant=tenant, **sums) for tenant, sums in taken.items()]

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
                    self._count(command.tenant, **{name: getattr(command, name) for name in QUANTITIES})

    def _close(self, slice_id: str, now_ms: int) -> None:
        reading = self._readings.pop(slice_id, None)
        if reading is not None:
            self._add(reading, now_ms)

    def _add(self, reading: _Reading, now_ms: int) -> None:
        elapsed_ms = now_ms - reading.since_ms
        reading.since_ms = now_ms
        if elapsed_ms <= 0:
            return
        self._count(
            reading.tenant,
            busy_milli_ms=(reading.measured.utilisation_percent or 0) * 10 * elapsed_ms,
            memory_byte_ms=(reading.measured.memory_bytes or 0) * elapsed_ms,
            interval_ms=elapsed_ms,
            energy_interval_ms=elapsed_ms if reading.energy else 0,
        )

    def _count(self, tenant: str, **more: int) -> None:
        """Add to a tenant's sums."""
        if any(more.values()):
            self._sums.setdefault(tenant, Counter()).update(more)
