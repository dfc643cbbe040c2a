"""What is known at one moment: which requests wait, and what pods' leases make of what they hold.

Whatever an autoscaler asks is answered from the last picture. So an answer costs the pool nothing, and while the
coordinator is replaced there is one: what was durable last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from aliquot.common.catalog import memory_total_bytes, vendor_of
from aliquot.common.limits import WHOLE_SHARE_MILLI
from aliquot.common.request import GpuRequest

HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """One request, or one pod, that waits for capacity."""

    tenant: str
    queue: str
    pool: str
    models: tuple[str, ...]
    """What it names; empty: any."""
    share_milli: int
    """All that it asks for, in thousandths of a device."""
    since_ms: int


@dataclass(frozen=True, slots=True)
class Held:
    """A lease's part on one device, with what is measured there of its own programs, and of nobody else's."""

    member: int
    model: str
    share_milli: int
    memory_bytes: int
    utilisation_percent: int | None = None
    """Of the device's time; None: not known."""
    used_bytes: int | None = None
    seen_ms: int = 0
    """When that was measured, by the coordinator's clock."""

    @property
    def vendor(self) -> str:
        """Whose device it is; empty: the catalogue does not know the model."""
        return vendor_of(self.model) or ""


@dataclass(frozen=True, slots=True)
class PodLease:
    """A lease of this cluster, by slice."""

    lease_id: str
    namespace: str
    parts: Mapping[str, Held] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the pool expects to be asked for, by the hour: in all, or of one pool, model or tenant."""

    kind: str
    """pool, model, tenant (without those below it); empty: all."""
    name: str
    from_ms: int
    """Where the first hour begins."""
    hours: tuple[int | None, ...]
    """Thousandths of devices, held and waited for; None: not known."""

    def at(self, at_ms: int) -> int | None:
        """In the hour of that time; None: not known."""
        hour = (at_ms - self.from_ms) // HOUR_MS
        return self.hours[hour] if 0 <= hour < len(self.hours) else None


@dataclass(frozen=True, slots=True)
class Picture:
    """See the module's docstring."""

    at_ms: int
    waiting: tuple[Waiting, ...] = ()
    leases: Mapping[str, PodLease] = field(default_factory=dict)
    of_pod: Mapping[str, str] = field(default_factory=dict)
    """The lease of a pod, by the pod's uid."""
    forecasts: tuple[Forecast, ...] | None = None
    """None: the pool offers none."""

    def remembering(self, before: Picture | None) -> Picture:
        """This one, where what it does not know (yet) of a slice is as it was `before`, at the time of then.

        A coordinator that has just taken over knows what is measured only once the agents have told it.
        """
        if before is None:
            return self
        return replace(
            self,
            leases={
                lease_id: lease if (known := before.leases.get(lease_id)) is None else _remembering(lease, known)
                for lease_id, lease in self.leases.items()
            },
            forecasts=before.forecasts if self.forecasts is None else self.forecasts,
        )


def _remembering(lease: PodLease, before: PodLease) -> PodLease:
    return replace(lease, parts={key: _latest(part, before.parts.get(key)) for key, part in lease.parts.items()})


def _latest(now: Held, before: Held | None) -> Held:
    if before is None or now.seen_ms >= before.seen_ms or now.share_milli != before.share_milli:
        return now
    return replace(
        now, utilisation_percent=before.utilisation_percent, used_bytes=before.used_bytes, seen_ms=before.seen_ms
    )


def asked_milli(request: GpuRequest, members: int = 1) -> int:
    """What a request asks for in all, in thousandths of a device.

    What it asks for by memory alone is the part of the smallest device that it names whose memory that is; where
    nothing tells, a whole one.
    """
    if request.mig_profile is not None:
        # "3g.40gb": three of a card's seven slices.
        share = min(WHOLE_SHARE_MILLI, int(request.mig_profile.partition("g.")[0]) * WHOLE_SHARE_MILLI // 7)
    elif request.share_milli is not None:
        share = request.share_milli
    else:
        share = _part_of_memory(request.memory_bytes or 0, {name for group in request.models for name in group})
    return share * request.count * members


def _part_of_memory(memory_bytes: int, models: Iterable[str]) -> int:
    totals = [total for name in models if (total := memory_total_bytes(name))]
    if not totals:
        return WHOLE_SHARE_MILLI
    return min(WHOLE_SHARE_MILLI, -(-memory_bytes * WHOLE_SHARE_MILLI // min(totals)))


def models_of(request: GpuRequest) -> tuple[str, ...]:
    """The models that a request names, in order."""
    return tuple(dict.fromkeys(name for group in request.models for name in group))
