"""What pods make of what they hold: of their own lease, over their own share.

What a card is told to do by others does not come in: a quarter of a card whose programs use a quarter of its time is at
100 %, whatever its neighbours do. More than its share counts as all of it: beyond its share a lease has what others
leave it, and an autoscaler that followed that would follow the neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from aliquot.common.catalog import VENDORS
from aliquot.kube.core.scaling.picture import Held, Picture

GPU_USE: Final = "container_gpu_usage"
MEMORY_USE: Final = "container_gpu_memory_usage"
_OF_VENDOR: Final = {f"container_{vendor}_gpu_usage": vendor for vendor in VENDORS}
POD_METRICS: Final[Mapping[str, str]] = {
    GPU_USE: "the part of its share of GPUs that a pod uses",
    MEMORY_USE: "the part of its GPU memory that a pod uses",
    **{name: f"as {GPU_USE}, of devices of the vendor {vendor}" for name, vendor in _OF_VENDOR.items()},
}
"""Metrics of pods, and what each is."""
FRESH_MS: Final = 90_000
"""What was measured longer ago is not known any more."""
_WHOLE: Final = 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """A value in thousandths, and when it was measured."""

    milli: int
    seen_ms: int


@dataclass(frozen=True, slots=True)
class ScaledPod:
    """A pod as far as autoscalers choose it."""

    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str]
    owner: str
    """Such as `Deployment/web`; empty: nobody's."""
    lease_id: str
    member: int
    node: str
    over: bool
    since_ms: int


def reading(picture: Picture, pod: ScaledPod, metric: str, now_ms: int) -> Reading | None:
    """A pod's value; None: it has no lease, none of that vendor, or something of it is not known.

    Raises KeyError for a metric that is none of `POD_METRICS`.
    """
    vendor = _OF_VENDOR.get(metric, "")
    if metric not in POD_METRICS:
        raise KeyError(metric)
    parts = [part for part in held(picture, pod) if not vendor or part.vendor == vendor]
    if not parts or any(now_ms - part.seen_ms > FRESH_MS for part in parts):
        return None
    seen_ms = min(part.seen_ms for part in parts)
    milli = _memory(parts) if metric == MEMORY_USE else _compute(parts)
    return None if milli is None else Reading(milli, seen_ms)


def held(picture: Picture, pod: ScaledPod) -> list[Held]:
    """What a pod holds. An assignment counts only where its lease is of the pod's own namespace."""
    lease = picture.leases.get(pod.lease_id or picture.of_pod.get(pod.uid, ""))
    if lease is None or lease.namespace != pod.namespace:
        return []
    member = max(pod.member, 0)
    return [part for part in lease.parts.values() if part.member == member]


def _compute(parts: Iterable[Held]) -> int | None:
    used = share = 0
    for part in parts:
        if part.utilisation_percent is None:
            return None
        used += min(part.utilisation_percent * 10, part.share_milli)
        share += part.share_milli
    return used * _WHOLE // share if share else None


def _memory(parts: Iterable[Held]) -> int | None:
    used = memory = 0
    for part in parts:
        if part.used_bytes is None:
            return None
        used += min(part.used_bytes, part.memory_bytes)
        memory += part.memory_bytes
    return used * _WHOLE // memory if memory else None
