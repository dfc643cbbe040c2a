"""Cards that can be simulated, with the numbers that their drivers show."""

from __future__ import annotations

import msgspec

GIB = 1 << 30
MIB = 1 << 20


class CardModel(msgspec.Struct, frozen=True):
    """One product."""

    driver: str
    vendor_id: str
    device_id: str
    memory_bytes: int
    product_name: str = ""
    """As sysfs tells it; empty: it does not."""
    regions: int = 1
    unique: bool = True
    """AMD: it has an identity of its own."""
    modes: tuple[str, ...] = ()
    """AMD: how it can be cut."""
    integrated: bool = False


MODELS = {
    "MI300X": CardModel(
        "amdgpu", "0x1002", "0x74a1", 196_288 * MIB, "AMD Instinct MI300X OAM", modes=("SPX", "DPX", "QPX", "CPX")
    ),
    "MI210": CardModel("amdgpu", "0x1002", "0x740f", 65_520 * MIB),
    "RX7900XTX": CardModel("amdgpu", "0x1002", "0x744c", 24_560 * MIB, unique=False),
    "APU": CardModel("amdgpu", "0x1002", "0x1900", 512 * MIB, unique=False, integrated=True),
    "B580": CardModel("xe", "0x8086", "0xe20b", 12_216 * MIB),
    "B60": CardModel("xe", "0x8086", "0xe211", 24_480 * MIB),
    "MAX1550": CardModel("xe", "0x8086", "0x0bd5", 128 * GIB, regions=2),
    "IRIS": CardModel("i915", "0x8086", "0x46a6", 0, integrated=True),
    "A770": CardModel("i915", "0x8086", "0x56a0", 16_225 * MIB),
}
"""By the name that a machine is made with."""
