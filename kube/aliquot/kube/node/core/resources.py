"""What a node advertises to Kubernetes, and when it must not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from aliquot.kube.core import names

PERCENT_RESOURCE = names.GPU_PERCENT
"""Whose units the kubelet gives out: hundredths of devices. Admission counts everything that pods ask for in them."""
MEMORY_RESOURCE = names.GPU_MEMORY_MIB
FOREIGN_RESOURCES: Mapping[str, str] = {
    "nvidia.com/gpu": "NVIDIA's device plugin",
    "nvidia.com/gpu.shared": "NVIDIA's device plugin",
}
"""Resources of others that stand for the same devices, and who has them."""
FOREIGN_PREFIXES: Mapping[str, str] = {"nvidia.com/mig-": "NVIDIA's device plugin"}
FOREIGN_DRIVERS: Mapping[str, str] = {"gpu.nvidia.com": "NVIDIA's DRA driver"}
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PoolDevice:
    """A device as its agent describes it."""

    uuid: str
    healthy: bool
    memory_bytes: int
    """What can be leased of it: without what the driver reserves and foreign processes hold."""
    percent: int
    model: str = ""

    def ill(self) -> PoolDevice:
        """The same, of which nothing can be had."""
        return replace(self, healthy=False)


@dataclass(frozen=True, slots=True)
class Units:
    """Of one resource: how many there are, and how many of them can be had."""

    count: int
    healthy: int


@dataclass(frozen=True, slots=True)
class Advertised:
    """What a node offers: hundredths of devices, and memory in MiB."""

    percent: Units
    memory_mib: int

    def ill(self) -> Advertised:
        """The same units, none of which can be had."""
        return Advertised(Units(self.percent.count, 0), 0)


NOTHING = Advertised(Units(0, 0), 0)


def advertise(devices: Iterable[PoolDevice]) -> Advertised:
    """What these devices come to. Units have no device of their own: where a pod goes, its assignment says."""
    found = list(devices)
    well = [device for device in found if device.healthy]
    return Advertised(
        percent=Units(sum(device.percent for device in found), sum(device.percent for device in well)),
        memory_mib=sum(device.memory_bytes // MIB for device in well),
    )


def unit_names(units: Units) -> list[tuple[str, bool]]:
    """Each unit's name, and whether it is healthy. Names stay when devices come and go; the last fall ill first."""
    return [(f"percent-{number:05d}", number < units.healthy) for number in range(units.count)]


def other_owners(allocatable: Mapping[str, str], drivers: Collection[str]) -> list[str]:
    """Who else gives out the GPUs of this node, in words; empty where nobody does."""
    found = []
    for name, quantity in sorted(allocatable.items()):
        owner = FOREIGN_RESOURCES.get(name) or next(
            (who for prefix, who in FOREIGN_PREFIXES.items() if name.startswith(prefix)), ""
        )
        if owner and quantity not in ("", "0"):
            found.append(f"{owner} ({name}: {quantity})")
    found += [
        f"{FOREIGN_DRIVERS[name]} (ResourceSlices of {name})" for name in sorted(drivers) if name in FOREIGN_DRIVERS
    ]
    return found
