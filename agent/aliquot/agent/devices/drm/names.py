"""Product names by PCI device id, for cards whose own files tell none. From the public pci.ids and vendors' lists."""

from __future__ import annotations

AMD = "0x1002"
INTEL = "0x8086"

_NAMES = {
    (AMD, "0x738c"): "AMD Instinct MI100",
    (AMD, "0x7408"): "AMD Instinct MI250X",
    (AMD, "0x740c"): "AMD Instinct MI250X",
    (AMD, "0x740f"): "AMD Instinct MI210",
    (AMD, "0x74a0"): "AMD Instinct MI300A",
    (AMD, "0x74a1"): "AMD Instinct MI300X",
    (AMD, "0x74a2"): "AMD Instinct MI308X",
    (AMD, "0x74a5"): "AMD Instinct MI325X",
    (AMD, "0x75a0"): "AMD Instinct MI350X",
    (AMD, "0x75a3"): "AMD Instinct MI355X",
    (AMD, "0x7448"): "AMD Radeon PRO W7900",
    (AMD, "0x744c"): "AMD Radeon RX 7900 XTX",
    (AMD, "0x7550"): "AMD Radeon RX 9070 XT",
    (INTEL, "0x0bd5"): "Intel Data Center GPU Max 1550",
    (INTEL, "0x0bda"): "Intel Data Center GPU Max 1100",
    (INTEL, "0x56c0"): "Intel Data Center GPU Flex 170",
    (INTEL, "0x56c1"): "Intel Data Center GPU Flex 140",
    (INTEL, "0x56a0"): "Intel Arc A770",
    (INTEL, "0xe20b"): "Intel Arc B580",
    (INTEL, "0xe20c"): "Intel Arc B570",
    (INTEL, "0xe211"): "Intel Arc Pro B60",
    (INTEL, "0xe212"): "Intel Arc Pro B50",
}


def product_name(vendor_id: str, device_id: str) -> str:
    """A card's; of one that is not listed, its vendor and number."""
    vendor = {AMD: "AMD", INTEL: "Intel"}.get(vendor_id, vendor_id)
    return _NAMES.get((vendor_id, device_id), f"{vendor} {device_id}")
