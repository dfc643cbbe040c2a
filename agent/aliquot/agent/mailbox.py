"""What waits to be sent to the coordinator: reports of slices, devices that have changed, the whole node.

The parts of the agent put it in; the stream waits for it and takes it out. So they need not know one another.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping

from aliquot.agent.core.deltas import DeltaTracker, DeviceReport
from aliquot.agent.core.figures import ServedReport
from aliquot.agent.core.model import Holder
from aliquot.agent.core.overtime import Record, Seen
from aliquot.agent.core.reports import LeaseHit, ReportQueue, SliceReport
from aliquot.agent.state import NodeState
from aliquot.agent.wakeup import Wakeup
from aliquot.agent.wire import device_report
from aliquot.common.clock import Clock

MAX_HITS = 64
MAX_TENANTS = 64
"""Over limits at once, of which the coordinator is told in one message."""
OVERTIME_EVERY_MS = 250
"""A lease that stays over its limit is told of so often: each look would be another message to each node."""


class Mailbox:
    """See the module's docstring. Use from one event loop."""

    def __init__(self, state: NodeState, clock: Clock) -> None:
        self._state = state
        self._clock = clock
        self._reports = ReportQueue()
        self._tracker = DeltaTracker(min_interval_ms=1000)
        self._devices: set[str] = set()
        """Those that have changed enough to be sent."""
        self._whole = False
        self._hits: deque[LeaseHit] = deque(maxlen=MAX_HITS)
        self._served: dict[Holder, ServedReport] = {}
        """The latest of each member that is served."""
        self._unsaid: set[Holder] = set()
        """Those whose latest was not sent."""
        self._records: Mapping[str, Record] = {}
        self._told: dict[str, tuple[int, Seen]] = {}
        """By tenant: when the coordinator was told last of its time over limits, and what."""
        self.wakeup = Wakeup()
        """Set when there is something to take out."""

    @property
    def seq(self) -> int:
        """Of the last snapshot or delta that was taken out."""
        return self._tracker.seq

    @property
    def wants_snapshot(self) -> bool:
        """Whether the whole node must be sent."""
        return self._whole or self._reports.overflowed

    def set_interval(self, min_interval_ms: int) -> None:
        """How often the coordinator wants messages, at most."""
        self._tracker.min_interval_ms = min_interval_ms

    # -- put in

    def confirm(self, reports: Iterable[SliceReport]) -> None:
        """What has become true of slices: sent one by one, in this order."""
        self._reports.add(reports)
        self.wakeup.set()

    def hit(self, hit: LeaseHit) -> None:
        """A lease's program had a fault. Of more than are kept, the oldest are dropped."""
        self._hits.append(hit)
        self.wakeup.set()

    def over(self, records: Mapping[str, Record]) -> None:
        """How long leases of tenants were over their limits, as it is now."""
        if records is not self._records:
            self._records = records
            self._told = {tenant: told for tenant, told in self._told.items() if tenant in records}
        if self._untold_tenants():
            self.wakeup.set()

    def _untold_tenants(self) -> list[str]:
        """Those of which something is new: that old spans count no more everybody knows."""
        now_ms, found = self._clock.monotonic_ms(), []
        for tenant, record in self._records.items():
            told_ms, told = self._told.get(tenant, (now_ms - OVERTIME_EVERY_MS, Seen()))
            due = now_ms - told_ms >= OVERTIME_EVERY_MS
            grown = bool(record.here.spans) and record.here.spans[-1:] != told.spans[-1:]
            killed = record.here.killed_ms not in (None, told.killed_ms)
            if killed or (grown and due):
                found.append(tenant)
        return found[:MAX_TENANTS]

    def device_polled(self, uuid: str) -> None:
        """A device was polled: it may have changed enough to be sent."""
        device = self._state.devices.get(uuid)
        if device is None or uuid in self._devices:
            return
        if self._tracker.worth(device_report(device, self._state.actual), self._clock.monotonic_ms()):
            self._devices.add(uuid)
            self.wakeup.set()

    def serve(self, holder: Holder, report: ServedReport | None) -> None:
        """What a member's process counts; None: it is not served any more."""
        if report is None:
            self._served.pop(holder, None)
            return
        self._served[holder] = report
        self._unsaid.add(holder)
        self.wakeup.set()

    def rated(self, holder: Holder) -> bool:
        """Whether something was going on when a member was reported last: that it has stopped is news then."""
        report = self._served.get(holder)
        return report is not None and any(report.rates.values())

    def request_snapshot(self) -> None:
        """The node itself has changed: a snapshot must be sent."""
        self._whole = True
        self.wakeup.set()

    # -- taken out

    def take_confirmations(self) -> list[SliceReport]:
        """The next ones in line."""
        return self._reports.take()

    def take_hits(self) -> tuple[LeaseHit, ...]:
        """Faults of leases' programs since this was last called."""
        hits = tuple(self._hits)
        self._hits.clear()
        return hits

    def take_overtime(self) -> dict[str, Seen]:
        """By tenant, what is new of its time over limits here."""
        found = {tenant: self._records[tenant].here for tenant in self._untold_tenants()}
        self._told |= {tenant: (self._clock.monotonic_ms(), seen) for tenant, seen in found.items()}
        return found

    def take_all(self, reports: Mapping[str, DeviceReport]) -> int:
        """A snapshot with these reports is about to be sent; what waited is in it. Returns its sequence number."""
        self._whole = False
        self._told.clear()  # another coordinator may lead now
        self._reports.clear()
        self._devices.clear()
        self._unsaid.update(self._served)
        return self._tracker.reset(reports.values(), self._clock.monotonic_ms())

    def take_served(self) -> list[ServedReport]:
        """What is counted of members that are served, where it was not sent yet."""
        reports = [self._served[holder] for holder in self._unsaid if holder in self._served]
        self._unsaid.clear()
        return reports

    def take_devices(self) -> tuple[DeviceReport, ...]:
        """What has changed enough since the last message; empty: nothing, or it is too early."""
        now_ms = self._clock.monotonic_ms()
        if not self._devices or self._tracker.wait_ms(now_ms):
            return ()
        devices = self._state.devices
        reports = {uuid: device_report(devices[uuid], self._state.actual) for uuid in devices if uuid in self._devices}
        self._devices.clear()
        return self._tracker.offer(reports, now_ms)

    def devices_in_s(self) -> float:
        """How long to wait before taking devices out; infinite while none has changed."""
        return self._tracker.wait_ms(self._clock.monotonic_ms()) / 1000 if self._devices else math.inf
