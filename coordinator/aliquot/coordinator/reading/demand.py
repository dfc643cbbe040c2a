"""Demand as it is durable, added up exactly for the hour that goes on.

Every lease counts for what it holds or, while it waits, for what it asks for: in the whole, for its tenant, and where
these are known for its model and its pool. A coordinator that takes over begins in the middle of an hour, and says how
much of it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.common.clock import Clock
from aliquot.coordinator.core.books.demand import HOUR_MS, WHOLE
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.commands import NoteDemand
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.totals import Totals

Milli = dict[str, int]


class _Level:
    """One series in this hour."""

    __slots__ = ("area", "at_ms", "milli")

    def __init__(self, at_ms: int) -> None:
        self.milli = 0
        self.area = 0
        """Thousandths times milliseconds, up to `at_ms`."""
        self.at_ms = at_ms

    def accrue(self, now_ms: int) -> None:
        """It was so up to now."""
        if now_ms > self.at_ms:
            self.area += self.milli * (now_ms - self.at_ms)
            self.at_ms = now_ms


class DemandMeter(Follower):
    """See the module's docstring. On the event loop; nothing in it is durable before `NoteDemand` is."""

    def __init__(self, clock: Clock, leases: Iterable[Lease], totals: Totals) -> None:
        self._clock = clock
        self._totals = totals
        self._levels: dict[str, _Level] = {}
        self._counted: dict[str, Milli] = {}
        """What each lease counts for."""
        self._since_ms = clock.now_ms()
        for lease in leases:
            self._count(lease.lease_id, self._of(lease))

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """See `Follower`."""
        if old is not None and new is not None and old.slices is new.slices and _over(old) == _over(new):
            return
        lease = new or old
        if lease is not None:
            wanted = {} if new is None else self._of(new)
            if wanted != self._counted.get(lease.lease_id, {}):
                self._count(lease.lease_id, wanted)

    @property
    def milli(self) -> int:
        """All that is held or waited for now."""
        whole = self._levels.get(WHOLE)
        return 0 if whole is None else whole.milli

    def take(self, hour: int) -> NoteDemand:
        """What is known of an hour that is over; what comes after it is a new one."""
        until_ms = max(self._since_ms, self._clock.now_ms())
        covered_ms = min(until_ms - self._since_ms, HOUR_MS)
        mean: Milli = {}
        for name, level in list(self._levels.items()):
            level.accrue(until_ms)
            if covered_ms:
                mean[name] = round(level.area / covered_ms)
            level.area = 0
            if not level.milli:
                del self._levels[name]
        self._since_ms = until_ms
        return NoteDemand(hour, covered_ms * 1000 // HOUR_MS, tuple(mean.items()))

    def _count(self, lease_id: str, wanted: Milli) -> None:
        now_ms = self._clock.now_ms()
        for sign, counts in ((-1, self._counted.pop(lease_id, {})), (1, wanted)):
            for name, milli in counts.items():
                level = self._levels.get(name)
                if level is None:
                    level = self._levels[name] = _Level(max(now_ms, self._since_ms))
                level.accrue(now_ms)
                level.milli += sign * milli
        if wanted:
            self._counted[lease_id] = wanted

    def _of(self, lease: Lease) -> Milli:
        """Series -> thousandths of devices."""
        if lease.ended:
            return {}
        found: Milli = {}
        request = lease.request
        for piece in lease.holding:
            use = self._totals.devices.get(piece.plan.device_uuid)
            pool = use.pool if use is not None else ""
            _add(found, piece.plan.own_share_milli, pool, piece.model, f"class/{pool}/{piece.model}")
        if lease.waiting and not found:
            demand = request.demand
            share = demand.share_milli or self._share_of(demand.memory_bytes)
            # That of a request that names just one.
            model = demand.models[0][0] if list(map(len, demand.models)) == [1] else ""
            milli = demand.gang_size * demand.count * share
            _add(found, milli, demand.pool, model, self._only_class(demand.pool, demand.models))
        if found:
            found[f"tenant/{request.tenant}"] = found[WHOLE]
        return found

    def _only_class(self, pool: str, models: tuple[tuple[str, ...], ...]) -> str:
        """Where a request can only be for devices of one model in one pool: these."""
        suiting = [
            key
            for key, there in self._totals.classes.items()
            if there.devices and pool in ("", key[0]) and (not models or any(key[1] in each for each in models))
        ]
        return f"class/{suiting[0][0]}/{suiting[0][1]}" if len(suiting) == 1 else ""

    def _share_of(self, memory_bytes: int) -> int:
        """What memory alone takes of a device of mean size."""
        classes = self._totals.classes.values()
        devices = sum(each.devices for each in classes)
        mean_bytes = sum(each.capacity_memory_bytes for each in classes) // max(devices, 1)
        if not memory_bytes or not mean_bytes:
            return WHOLE_SHARE_MILLI
        return min(-(-memory_bytes * WHOLE_SHARE_MILLI // mean_bytes), WHOLE_SHARE_MILLI)


def _add(found: Milli, milli: int, pool: str, model: str, of_class: str) -> None:
    found[WHOLE] = found.get(WHOLE, 0) + milli
    for name in (f"pool/{pool}" if pool else "", f"model/{model}" if model else "", of_class):
        if name:
            found[name] = found.get(name, 0) + milli


def _over(lease: Lease) -> tuple[str, int]:
    return lease.end_reason, lease.ended_ms
