"""Reports of slices, and the queue in which they wait to be sent. No report is merged with another."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from aliquot.agent.core.model import Actual, Reservation
from aliquot.agent.core.reservations import SliceStatus, status_of
from aliquot.common.limits import MAX_SLICE_REPORTS
from aliquot.common.text import one_line
from aliquot.common.tiers import Tier

MAX_WAITING = 100_000
MAX_DETAIL_CHARS = 1024
"""Of a sentence for people: some of what it says may come from a tenant's process, or from a driver."""


class SliceReport(msgspec.Struct, frozen=True):
    """What has become true of one slice."""

    slice_id: str
    lease_id: str
    lease_epoch: int
    status: SliceStatus
    tier: Tier | None
    reason: str
    detail: str
    device_uuid: str
    share_milli: int
    memory_bytes: int
    tier_notes: tuple[str, ...] = ()
    endpoint: str = ""
    energy_mj: int | None = None


class LeaseHit(msgspec.Struct, frozen=True):
    """A fault on a device was one of a lease's own program."""

    device_uuid: str
    lease_id: str
    text: str
    """For its holder."""
    suspicious: bool
    """It may be the device's after all, where others are hit as well."""


def report_of(record: Reservation, actual: Actual, detail: str = "") -> SliceReport:
    """The report of a reservation as it is now."""
    spec = record.spec
    told = detail or record.detail or ("quarantined" if record.quarantined else "")
    notes = (*actual.tier_notes, actual.unserved) if actual.unserved else actual.tier_notes
    return SliceReport(
        slice_id=spec.slice_id,
        lease_id=spec.lease_id,
        lease_epoch=spec.lease_epoch,
        status=status_of(record, actual),
        tier=actual.tier if actual.limit_set else None,
        reason=record.reason,
        detail=one_line(told or actual.unserved, MAX_DETAIL_CHARS),
        device_uuid=spec.device_uuid,
        share_milli=spec.share_milli,
        memory_bytes=spec.memory_bytes,
        tier_notes=tuple(one_line(note, MAX_DETAIL_CHARS) for note in notes),
        endpoint=actual.endpoint,
        energy_mj=actual.energy_mj if record.holds else record.energy_mj,
    )


class ReportQueue:
    """Reports in the order in which they became true. A snapshot has the present state of every slice, so whoever
    sends one clears the queue first.
    """

    def __init__(self) -> None:
        self._waiting: deque[SliceReport] = deque()
        self.overflowed = False
        """More waited than is kept, and reports were dropped: a snapshot must be sent."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, reports: Iterable[SliceReport]) -> None:
        """Put confirmations at the end."""
        for report in reports:
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.clear()
                self.overflowed = True
            self._waiting.append(report)

    def take(self, limit: int = MAX_SLICE_REPORTS) -> list[SliceReport]:
        """The next ones to send, at most `limit`."""
        return [self._waiting.popleft() for _ in range(min(limit, len(self._waiting)))]

    def clear(self) -> None:
        """A snapshot is being made."""
        self._waiting.clear()
        self.overflowed = False
