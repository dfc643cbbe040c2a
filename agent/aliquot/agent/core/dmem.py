"""The texts of the cgroup controller `dmem`: one line a region of device memory, `drm/<address>/<region> <bytes|max>`.
Pure.
"""

from __future__ import annotations

NO_LIMIT = None
PAGE_BYTES = 4096


def parse(text: str) -> dict[str, int | None]:
    """By region: bytes; None for `max`. Lines that are neither are passed over."""
    found: dict[str, int | None] = {}
    for line in text.splitlines():
        region, _, value = line.strip().rpartition(" ")
        if region and value == "max":
            found[region] = NO_LIMIT
        elif region and value.isdecimal():
            found[region] = int(value)
    return found


def regions_of(known: dict[str, int | None], pci_bus_id: str) -> list[str]:
    """Those of one card."""
    return sorted(region for region in known if region.startswith(f"drm/{pci_bus_id}/"))


def order(region: str, limit_bytes: int | None) -> str:
    """What sets one region's limit: one write takes one region."""
    return f"{region} {'max' if limit_bytes is None else limit_bytes}"
