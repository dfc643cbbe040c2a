"""What leases do with what they hold, as agents report it, brought to the core as spans, look after look.

A reading of a slice holds until its next one, as agents report what has changed. It holds only while its node is heard:
what an agent would have said while it was silent is not known. Nothing here is journalled; a coordinator that takes
over begins anew. Again and again all leases that run are looked at; a lender at its first activity.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.books.leases.records import Lease, Slice, SliceState
from aliquot.coordinator.core.commands import LookAtUse
from aliquot.coordinator.core.known.use_windows import QUIET_MILLI, Seen, Span
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.totals import Totals
from aliquot.v1 import agent_pb2

LEASES_AT_ONCE = 200
"""In one command: a millisecond or two of the writer's time."""
HEARD_MS = 15_000
"""A node that was not heard for so long is silent: agents beat every few seconds."""
_MEASURED = (SliceState.GRANTED, SliceState.ACTIVE, SliceState.PREEMPTING)
"""A granted one as well: its agent's confirmation may wait in the writer's queue while its first reading is here, and
of an idle slice there is no second one.
"""


class _Slice:
    """What was seen of one slice since the last look."""

    __slots__ = (
        "busy_milli_ms", "known_ms", "look_ms", "low_milli", "milli", "node_id", "peak_milli", "processes",
        "processes_max", "since_ms", "started",
    )  # fmt: skip

    def __init__(self, node_id: str, now_ms: int) -> None:
        self.node_id = node_id
        self.milli: int | None = None
        self.processes = 0
        self.since_ms = now_ms
        self._begin(now_ms)

    def _begin(self, now_ms: int) -> None:
        self.look_ms = now_ms
        self.known_ms = self.busy_milli_ms = 0
        self.peak_milli = self.milli or 0
        self.low_milli = 1000 if self.milli is None else self.milli
        self.processes_max = self.processes
        self.started = False

    def saw(self, milli: int | None, processes: int, now_ms: int, heard_ms: int) -> None:
        """A reading: it is about the time just before it as well."""
        self.close(now_ms, heard_ms)
        self.started = self.started or processes > self.processes_max
        self.milli, self.processes = milli, processes
        self.processes_max = max(self.processes_max, processes)
        if milli is not None:
            self.peak_milli, self.low_milli = max(self.peak_milli, milli), min(self.low_milli, milli)

    def close(self, now_ms: int, heard_ms: int) -> None:
        """Add what is known up to now, as far as its node was heard."""
        until_ms = now_ms if now_ms - heard_ms <= HEARD_MS else max(self.since_ms, heard_ms)
        if self.milli is not None and until_ms > self.since_ms:
            self.known_ms += until_ms - self.since_ms
            self.busy_milli_ms += self.milli * (until_ms - self.since_ms)
        self.since_ms = now_ms

    def take(self, slice_id: str, now_ms: int, device: tuple[int, int], *, alone: bool) -> Span:
        """What was seen since the last look, which ends now."""
        span = Span(
            slice_id, max(1, now_ms - self.look_ms), self.known_ms, self.peak_milli,
            self.low_milli if self.known_ms else 0, self.busy_milli_ms, self.processes_max, self.started,
            *device, alone,
        )  # fmt: skip
        self._begin(now_ms)
        return span


class Activity(Follower):
    """See the module's docstring."""

    def __init__(
        self,
        clock: Clock,
        lease_of: Callable[[str], Lease | None],
        telemetry: Telemetry,
        totals: Totals,
        heard_ms: Callable[[str], int],
    ) -> None:
        """`heard_ms` says when a node was last heard, by the coordinator's clock."""
        self._clock = clock
        self._lease_of = lease_of
        self._telemetry = telemetry
        self._totals = totals
        self._heard_ms = heard_ms
        self._slices: dict[str, _Slice] = {}
        self._leases: dict[str, None] = {}
        """Those that were measured. Also while their nodes are lost: that nothing is seen is told as well."""
        self._floors_mw: dict[str, int] = {}
        """The least power that a device of each model drew while it did nothing."""
        self._urgent: dict[str, None] = {}
        self._woken = asyncio.Event()
        self._answered: dict[str, int] = {}
        """Warnings that a keep-alive was answered with."""
        self._told: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._slices)

    def saw(self, node_id: str, use: agent_pb2.SliceUse) -> None:
        """An agent has measured a slice of its node."""
        lease = self._lease_of(use.slice_id.partition(".")[0])
        piece = lease.find(use.slice_id) if lease is not None else None
        if lease is None or piece is None or piece.plan.node_id != node_id or piece.state not in _MEASURED:
            return
        now_ms = self._clock.now_ms()
        record = self._slices.get(use.slice_id)
        if record is None:
            record = self._slices[use.slice_id] = _Slice(node_id, now_ms)
            self._leases[lease.lease_id] = None
        milli = min(use.activity_percent, 100) * 10 if use.HasField("activity_percent") else None
        record.saw(milli, use.processes, now_ms, self._heard_ms(node_id))
        if lease.use.lent and (record.started or (milli is not None and milli > QUIET_MILLI)):
            self._urgent[lease.lease_id] = None
            self._woken.set()

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Slices that have ended, or whose node is lost, are not measured any more."""
        if old is None or old.lease_id not in self._leases or (new is not None and old.slices is new.slices):
            return
        measured = {piece.slice_id for piece in new.slices if piece.state in _MEASURED} if new is not None else set()
        for piece in old.slices:
            if piece.slice_id not in measured:
                self._slices.pop(piece.slice_id, None)
        if new is None or new.ended or new.waiting:
            self._leases.pop(old.lease_id, None)
            self._told.pop(old.lease_id, None)
            self._answered.pop(old.lease_id, None)

    # -- warnings

    def answered(self, lease_id: str, number: int) -> None:
        """A keep-alive was answered with a warning."""
        self._answered[lease_id] = number

    def kept(self, lease_id: str) -> None:
        """A keep-alive has come: what the last one was answered with has arrived."""
        if self._answered:
            number = self._answered.pop(lease_id, 0)
            if number:
                self._told[lease_id] = number

    # -- looks

    async def run(self, submit: Callable[[LookAtUse], Awaitable[object]], every_ms: Callable[[], int]) -> None:
        """Look, again and again."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + every_ms() / 1000
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due_s):
                    await self._woken.wait()
            self._woken.clear()
            urgent, self._urgent = self._urgent, {}
            if loop.time() >= due_s:
                due_s = loop.time() + every_ms() / 1000
                urgent = dict(self._leases)
            for command in self.commands(list(urgent)):
                # A look that can't be carried out is lost: what it saw is not known then.
                with contextlib.suppress(AliquotError):
                    await submit(command)

    def commands(self, lease_ids: list[str]) -> Iterator[LookAtUse]:
        """What was seen of these leases, a bounded number a command."""
        for start in range(0, len(lease_ids), LEASES_AT_ONCE):
            yield LookAtUse(tuple(self._seen(lease_id) for lease_id in lease_ids[start : start + LEASES_AT_ONCE]))

    def _seen(self, lease_id: str) -> Seen:
        lease = self._lease_of(lease_id)
        if lease is None:
            self._leases.pop(lease_id, None)
            return Seen(lease_id, ())
        now_ms = self._clock.now_ms()
        spans = []
        for piece in lease.current:
            record = self._slices.get(piece.slice_id)
            if record is not None:
                record.close(now_ms, self._heard_ms(record.node_id))
                use = self._totals.devices.get(piece.plan.device_uuid)
                alone = use is not None and use.slices == 1
                spans.append(record.take(piece.slice_id, now_ms, self._device(piece), alone=alone))
        return Seen(lease_id, tuple(spans), self._told.get(lease_id, 0))

    def _device(self, piece: Slice) -> tuple[int, int]:
        """How busy its device says it is, and how much power it draws between doing nothing and its limit."""
        reading = self._telemetry.device_message(piece.plan.device_uuid)
        if reading is None:
            return -1, -1
        busy = reading.gpu_utilisation_percent * 10 if reading.HasField("gpu_utilisation_percent") else -1
        floor_mw = self._floors_mw.get(piece.model)
        if busy == 0 and reading.power_mw and (floor_mw is None or reading.power_mw < floor_mw):
            floor_mw = self._floors_mw[piece.model] = reading.power_mw
        if floor_mw is None or not (reading.HasField("power_mw") and reading.power_limit_mw > floor_mw):
            return busy, -1
        power = (reading.power_mw - floor_mw) * 1000 // (reading.power_limit_mw - floor_mw)
        return busy, min(1000, max(0, power))
