"""Settings that make machine-learning frameworks keep within a lease by themselves, so that they never meet its limit.

The fraction's denominator is what the framework sees as the device: the lease where a tier shows it that (preload,
NVIDIA's driver, mig), the physical device where it does not (watchdog, mps, dmem). The CUDA context is charged to
the lease but not counted by the frameworks' allocators, so room is left for it. What the user has set already is kept
where it asks for less, and lowered where it asks for more. PyTorch raises an error for keys it doesn't know, so its key
is only set when the caller says, in `ALIQUOT_TORCH_VERSION`, that its PyTorch knows it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from aliquot.common.limits import MIB
from aliquot.common.tiers import Tier

CONTEXT_ROOM_BYTES = 512 * MIB
TORCH_VERSION = "ALIQUOT_TORCH_VERSION"
TORCH_SINCE = (2, 9)

_SEES_LEASE = frozenset({Tier.PRELOAD, Tier.DRIVER, Tier.MIG})
_UNTOLD = frozenset({"amd", "intel"})
"""Vendors whose programs are not told the limit that the kernel holds a cgroup to (dmem)."""
_TORCH_KEY = "per_process_memory_fraction"


class DevicePart(msgspec.Struct, frozen=True):
    """What a process has of one device."""

    memory_bytes: int
    device_bytes: int
    tier: Tier
    vendor: str = "nvidia"

    @property
    def allocator_bytes(self) -> int:
        """What allocators may take: the lease without room for a context, which is at most a quarter of it."""
        return self.memory_bytes - min(CONTEXT_ROOM_BYTES, self.memory_bytes // 4)

    @property
    def seen_bytes(self) -> int:
        """What a framework takes for the device's memory."""
        sees_lease = self.tier in _SEES_LEASE and not (self.tier is Tier.DRIVER and self.vendor in _UNTOLD)
        return self.memory_bytes if sees_lease else self.device_bytes


def settings(parts: Sequence[DevicePart], present: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Variables to set for a process with these parts, and notes for people. One setting serves all its
    devices, so the smallest part decides. `present`: what the process has set already.
    """
    limited = [part for part in parts if part.tier is not Tier.NONE]
    if not limited:
        return {}, []
    fraction = min(part.allocator_bytes / part.seen_bytes for part in limited)
    found: dict[str, str] = {}
    notes: list[str] = []
    _set_torch(found, notes, present, fraction)
    _set_jax(found, present, fraction)
    _set_cupy(found, present, min(part.allocator_bytes for part in limited), fraction)
    return found, notes


def _set_torch(found: dict[str, str], notes: list[str], present: Mapping[str, str], fraction: float) -> None:
    version = present.get(TORCH_VERSION, "")
    if not version:
        return
    numbers = tuple(int(word) for word in re.findall(r"\d+", version)[:2])
    if numbers < TORCH_SINCE:
        notes.append(f"PyTorch {version} can't be told its part by environment; 2.9 and newer can")
        return
    # The older name is still read where the newer one is absent, so it is the one to merge with then.
    name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in present else "PYTORCH_CUDA_ALLOC_CONF"
    entries = [entry for entry in _torch_entries(present.get(name, "")) if entry]
    mine = [entry for entry in entries if entry.partition(":")[0].strip() == _TORCH_KEY]
    wanted = min([fraction, *(_number(entry.partition(":")[2]) or fraction for entry in mine)])
    kept = [entry for entry in entries if entry not in mine]
    found["PYTORCH_ALLOC_CONF"] = ",".join([*kept, f"{_TORCH_KEY}:{_shown(wanted)}"])


def _torch_entries(text: str) -> list[str]:
    """Entries are separated by commas, except within brackets."""
    return [entry.strip() for entry in re.split(r",(?![^\[]*\])", text)]


def _set_jax(found: dict[str, str], present: Mapping[str, str], fraction: float) -> None:
    # Setting both names is an error in JAX: whoever uses the older one keeps using it.
    older, newer = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
    name = older if older in present and newer not in present else newer
    theirs = _number(present.get(name, ""))
    if theirs is None or theirs > fraction:
        found[name] = _shown(fraction)


def _set_cupy(found: dict[str, str], present: Mapping[str, str], limit_bytes: int, fraction: float) -> None:
    name = "CUPY_GPU_MEMORY_LIMIT"
    text = present.get(name, "").strip()
    if text.endswith("%"):
        percent = _number(text.removesuffix("%"))
        if percent is not None and percent / 100 <= fraction:
            return
    elif text.isdecimal() and 0 < int(text) <= limit_bytes:
        return
    found[name] = str(limit_bytes)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _shown(fraction: float) -> str:
    """Four decimals, rounded down: a little less, never more."""
    return f"{int(fraction * 10_000) / 10_000:.4f}"
