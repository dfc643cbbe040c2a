"""What counts as a change of what a node's devices can give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from aliquot.coordinator.core.values.types import DeviceSpec
from aliquot.coordinator.reading.totals import DeviceUse

FOREIGN_DEADBAND_BYTES = 16 << 20


def as_held(devices: Iterable[DeviceSpec], uses: Mapping[str, DeviceUse]) -> tuple[DeviceSpec, ...]:
    """Devices as a node has them on the books that says so: none is smaller there than what leases hold of it."""
    return tuple(
        replace(device, compute_milli=max(device.compute_milli, use.share_milli))
        if device.mig_profile and (use := uses.get(device.uuid)) is not None
        else device
        for device in devices
    )


def foreign_changed(known_bytes: int, now_bytes: int) -> bool:
    """Whether foreign memory has changed enough to be journalled: by the deadband, or from or to nothing."""
    if known_bytes == now_bytes:
        return False
    return known_bytes == 0 or now_bytes == 0 or abs(known_bytes - now_bytes) >= FOREIGN_DEADBAND_BYTES
