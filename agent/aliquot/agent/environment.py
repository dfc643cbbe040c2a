"""The environment a process of a lease gets: which devices it may see, what it holds, and settings that keep
frameworks within it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.devices import visible
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.agent.enforce.frameworks import DevicePart, settings
from aliquot.common.tiers import Tier

# Set where the devices are simulated; names the file that stands for the hardware.
SIMULATED = "ALIQUOT_SIMGPU"
# Set where simulated device memory holds what is written to it.
_BACKED = "ALIQUOT_SIMGPU_BACKED"


class Granted(msgspec.Struct, frozen=True):
    """One slice of a member, its device, and the tier that holds it."""

    spec: SliceSpec
    device: DeviceInfo
    tier: Tier
    tier_environment: Mapping[str, str]


def environment(
    granted: Sequence[Granted],
    present: Mapping[str, str],
    socket_path: str,
    visibility: Callable[[Sequence[DeviceInfo]], Mapping[str, str]],
) -> tuple[dict[str, str], list[str]]:
    """Variables to set before the program starts, and notes for people. `present`: what the process has set already.
    `visibility`: see `DeviceBackend`.

    Lists are in the order of the devices, the order in which a vendor's programs number its devices from 0.
    """
    ordered = sorted(granted, key=lambda each: (each.device.index, each.device.uuid))
    devices = [each.device for each in ordered]
    first = ordered[0].spec
    result = {
        **visibility(devices),
        "ALIQUOT_LEASE_ID": first.lease_id,
        "ALIQUOT_LEASE_EPOCH": str(first.lease_epoch),
        "ALIQUOT_MEMBER": str(first.member),
        "ALIQUOT_SLICE_IDS": ",".join(each.spec.slice_id for each in ordered),
        "ALIQUOT_MEMORY_BYTES": ",".join(str(each.spec.memory_bytes) for each in ordered),
        "ALIQUOT_SHARE_MILLI": ",".join(str(each.spec.share_milli) for each in ordered),
        "ALIQUOT_TIER": ",".join(each.tier.word for each in ordered),
        "ALIQUOT_AGENT_SOCKET": socket_path,
    }
    if scenario := os.environ.get(SIMULATED):
        # Whoever is to use this agent's devices needs the driver that the agent was started with.
        result |= {SIMULATED: scenario, "LD_LIBRARY_PATH": _own_driver_first(present.get("LD_LIBRARY_PATH", ""))}
        result |= {_BACKED: os.environ[_BACKED]} if _BACKED in os.environ else {}
    for each in ordered:
        result |= each.tier_environment
    parts = [
        DevicePart(each.spec.memory_bytes, each.device.memory_total_bytes, each.tier, vendor_of(each.device))
        for each in ordered
    ]
    frameworks, notes = settings(parts, present)
    if first.cuda_ordinals and "CUDA_VISIBLE_DEVICES" in result:
        unnumbered = [each.device.uuid for each in ordered if each.tier in (Tier.MIG, Tier.MPS)]
        if unnumbered:  # CUDA takes instances by UUID alone, and an MPS server numbers what it shows by itself
            notes.append(f"CUDA_VISIBLE_DEVICES has UUIDs: {', '.join(unnumbered)} can't be named by number here")
        else:
            result["CUDA_VISIBLE_DEVICES"] = ",".join(str(device.index) for device in devices)
    return result | frameworks, [*notes, *visible.notes(devices, present)]


def _own_driver_first(present: str) -> str:
    """A library path on which the driver of this agent comes before whatever the process names."""
    own = [each for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if (Path(each) / "libcuda.so.1").is_file()]
    return ":".join([*own, *(each for each in present.split(":") if each and each not in own)])
