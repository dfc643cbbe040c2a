"""What is reported to the coordinator, and when: a snapshot, then what has changed enough, at a bounded rate.

Deadbands suppress noise. A value is compared with the one last *sent*, so that slow drift is reported too. A difference
within its deadband is sent after `SETTLE_MS`, so that readers have the exact value in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from aliquot.agent.core.samples import ActivitySource
from aliquot.agent.core.signals import Signal

MIB = 1 << 20
SETTLE_MS = 60_000
ENERGY_MS = 300_000
"""What slices draw rises all the time: it is told with what else is told, and by itself no more often than this."""


class SliceUseReport(msgspec.Struct, frozen=True):
    """What a slice really uses."""

    slice_id: str
    observed_bytes: int | None
    processes: int
    gpu_percent: int | None = None
    activity_percent: int | None = None
    activity_source: ActivitySource = ActivitySource.UNKNOWN
    energy_mj: int | None = None


class DeviceReport(msgspec.Struct, frozen=True):
    """What is reported of one device. `None` is unknown."""

    uuid: str
    healthy: bool
    health_reason: str
    foreign_bytes: int | None
    memory_used_bytes: int | None = None
    unattributed_bytes: int | None = None
    gpu_percent: int | None = None
    memory_percent: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    sampled_ms: int | None = None
    """Wall clock; no change by itself."""
    slices: tuple[SliceUseReport, ...] = ()
    activity_percent: int | None = None
    activity_source: ActivitySource = ActivitySource.UNKNOWN
    power_limit_mw: int | None = None
    signal: Signal | None = None
    """Why it is not well, where the table says."""


class Deadbands(msgspec.Struct, frozen=True):
    """How much a value must differ from the last one sent to be worth a message."""

    memory_bytes: int = 64 * MIB
    foreign_bytes: int = 16 * MIB
    percent: int = 5
    temperature_c: int = 3
    power_mw: int = 15_000


EXACT = Deadbands(1, 1, 1, 1, 1)


def differs(sent: DeviceReport, now: DeviceReport, bands: Deadbands) -> bool:
    """Whether `now` must be sent, given that `sent` was the last."""
    if (sent.healthy, sent.health_reason, sent.signal) != (now.healthy, now.health_reason, now.signal):
        return True
    pairs = (
        (sent.foreign_bytes, now.foreign_bytes, bands.foreign_bytes),
        (sent.memory_used_bytes, now.memory_used_bytes, bands.memory_bytes),
        (sent.unattributed_bytes, now.unattributed_bytes, bands.memory_bytes),
        (sent.gpu_percent, now.gpu_percent, bands.percent),
        (sent.memory_percent, now.memory_percent, bands.percent),
        (sent.temperature_c, now.temperature_c, bands.temperature_c),
        (sent.power_mw, now.power_mw, bands.power_mw),
        (sent.activity_percent, now.activity_percent, bands.percent),
        (sent.power_limit_mw, now.power_limit_mw, bands.power_mw),
    )
    return any(_apart(old, new, band) for old, new, band in pairs) or _slices_differ(sent, now, bands)


def _apart(old: int | None, new: int | None, band: int) -> bool:
    if old is None or new is None:
        return (old is None) != (new is None)
    # A change from or to zero is always reported.
    return abs(new - old) >= band or (old != new and (old == 0 or new == 0))


def _slices_differ(sent: DeviceReport, now: DeviceReport, bands: Deadbands) -> bool:
    before = {use.slice_id: use for use in sent.slices}
    if before.keys() != {use.slice_id for use in now.slices}:
        return True
    return any(
        use.processes != before[use.slice_id].processes
        or _apart(before[use.slice_id].observed_bytes, use.observed_bytes, bands.memory_bytes)
        or _apart(before[use.slice_id].gpu_percent, use.gpu_percent, bands.percent)
        or _apart(before[use.slice_id].activity_percent, use.activity_percent, bands.percent)
        for use in now.slices
    )


class DeltaTracker(msgspec.Struct):
    """Remembers what was sent on this connection. Start one with each snapshot."""

    min_interval_ms: int
    bands: Deadbands = msgspec.field(default_factory=Deadbands)
    seq: int = 0
    _sent: dict[str, DeviceReport] = {}
    _sent_at_ms: dict[str, int] = {}
    _last_ms: int | None = None

    def reset(self, reports: Iterable[DeviceReport], now_ms: int) -> int:
        """A snapshot with these reports is about to be sent. Returns its sequence number, 1."""
        self._sent = {report.uuid: report for report in reports}
        self._sent_at_ms = dict.fromkeys(self._sent, now_ms)
        self._last_ms = now_ms
        self.seq = 1
        return self.seq

    def wait_ms(self, now_ms: int) -> int:
        """How long until something may be sent again; 0: now."""
        return 0 if self._last_ms is None else max(0, self._last_ms + self.min_interval_ms - now_ms)

    def offer(self, reports: Mapping[str, DeviceReport], now_ms: int) -> tuple[DeviceReport, ...]:
        """What to send now of these reports; then `seq` has risen by one. Empty: nothing, or not yet."""
        if self.wait_ms(now_ms):
            return ()
        changed = tuple(report for report in reports.values() if self.worth(report, now_ms))
        if not changed:
            return ()
        for report in changed:
            self._sent[report.uuid] = report
            self._sent_at_ms[report.uuid] = now_ms
        self._last_ms = now_ms
        self.seq += 1
        return changed

    def worth(self, report: DeviceReport, now_ms: int) -> bool:
        """Whether this is to be sent, as soon as it may be."""
        sent = self._sent.get(report.uuid)
        if sent is None:
            return True
        if differs(sent, report, self.bands):
            return True
        since_ms = now_ms - self._sent_at_ms[report.uuid]
        return (since_ms >= SETTLE_MS and not _same(sent, report)) or (
            since_ms >= ENERGY_MS and sent.slices != report.slices
        )


def _same(sent: DeviceReport, now: DeviceReport) -> bool:
    """Equal but for the time of the sample and the load, which changes all the time."""
    told, known = (sent.foreign_bytes, sent.memory_used_bytes), (now.foreign_bytes, now.memory_used_bytes)
    return told == known and not _slices_differ(sent, now, EXACT)
