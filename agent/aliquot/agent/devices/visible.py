"""By which variables a program is shown its devices and no others, vendor by vendor. Pure.

Where a vendor takes identities, identities are given: an index is another device on another machine, in a container,
and after a restart. Variables of one vendor that filter one another are never given together: HIP numbers what ROCR has
left, so the two would compose, and HIP takes `CUDA_VISIBLE_DEVICES` for a list of indices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aliquot.agent.core.samples import DeviceInfo

COMPOSING = {"amd": ("HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "CUDA_VISIBLE_DEVICES")}
"""By vendor: variables that would choose again among what the lease shows."""


def nvidia(devices: Sequence[DeviceInfo]) -> dict[str, str]:
    """By UUID, and in the order of the bus, in which CUDA numbers them from 0 then."""
    uuids = ",".join(device.uuid for device in devices)
    return {
        "CUDA_VISIBLE_DEVICES": uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


def by_vendor(devices: Sequence[DeviceInfo]) -> dict[str, str]:
    """Where only descriptions of devices are known: of vendors whose programs take what devices are known by."""
    found: dict[str, str] = {}
    own = [device for device in devices if device.vendor.lower() in ("", "nvidia")]
    if own:
        found |= nvidia(own)
    amd = [device for device in devices if device.vendor.lower() == "amd"]
    if amd:
        found["ROCR_VISIBLE_DEVICES"] = ",".join(device.uuid for device in amd)
    return found


def notes(devices: Sequence[DeviceInfo], present: Mapping[str, str]) -> list[str]:
    """What people should know of variables that a process has set already."""
    told = []
    for vendor in dict.fromkeys(device.vendor.lower() for device in devices):
        clashing = [name for name in COMPOSING.get(vendor, ()) if present.get(name)]
        if clashing:
            told.append(f"{', '.join(clashing)} chooses again among the devices of the lease: unset it")
    return told
