"""The stable words for what a demand lacks, and which of them waiting does not cure."""

from __future__ import annotations

import enum
from typing import NamedTuple

from aliquot.coordinator.core.values.types import Admits


class Reason(enum.StrEnum):
    """What is missing."""

    NO_DEVICES = "NO_DEVICES"
    OTHER_MODEL = "OTHER_MODEL"
    OTHER_VENDOR = "OTHER_VENDOR"
    OTHER_PROFILE = "OTHER_PROFILE"
    OTHER_POOL = "OTHER_POOL"
    WHOLE_ONLY = "WHOLE_ONLY"
    """Such devices are not shared."""
    MEMORY_OVER_DEVICE = "MEMORY_OVER_DEVICE"
    TOO_FEW_DEVICES_ON_NODE = "TOO_FEW_DEVICES_ON_NODE"
    NO_ISLAND = "NO_ISLAND"
    SELECTOR = "SELECTOR"
    SERVE = "SERVE"
    """No agent can serve leases so."""
    TIER = "TIER"
    NODE_LIST = "NODE_LIST"
    HOST_TOO_SMALL = "HOST_TOO_SMALL"
    GANG_OVER_POOL = "GANG_OVER_POOL"
    NOT_READY = "NOT_READY"
    UNAVAILABLE = "UNAVAILABLE"
    ANTI_AFFINITY = "ANTI_AFFINITY"
    SHARE_HELD = "SHARE_HELD"
    MEMORY_HELD = "MEMORY_HELD"
    HOST_HELD = "HOST_HELD"
    FRAGMENTED = "FRAGMENTED"
    GANG_TOO_LARGE_NOW = "GANG_TOO_LARGE_NOW"
    NODE_UNKNOWN = "NODE_UNKNOWN"
    """No such node; said of one node, as all that follow."""
    DEVICE_UNKNOWN = "DEVICE_UNKNOWN"
    """No such device on that node."""
    CORDONED = "CORDONED"
    MAINTENANCE = "MAINTENANCE"
    """A maintenance window keeps it waiting, not a lack of devices."""
    WITHHELD = "WITHHELD"
    """Free, but kept for somebody else."""
    MISMATCH = "MISMATCH"
    """Devices that fit one by one, but don't make up what was asked for."""
    BAD_LINKS = "BAD_LINKS"
    """Free, but a link of their island is bad: only leases of one device are placed there."""
    PROBATION = "PROBATION"
    """Free, but repaired lately: only leases of one device that give way to others are placed there."""
    FITS = "FITS"
    """Nothing is missing: it would be placed now."""


class Restricted(NamedTuple):
    """What there is to say of devices that don't admit a demand."""

    reason: Reason
    why: str
    change: str


RESTRICTED = {
    Admits.SINGLE: Restricted(
        Reason.BAD_LINKS,
        "are in an island with a bad link, and take leases of one device only",
        "ask for one device, or wait until the links are well",
    ),
    Admits.PREEMPTIBLE: Restricted(
        Reason.PROBATION,
        "are on probation after a repair, and take preemptible leases of one device only",
        "ask for a preemptible lease of one device, or take them back at once (`aliquot device return`)",
    ),
}
"""By what a device admits."""
RESTRICTIONS = frozenset(said.reason for said in RESTRICTED.values())


OTHER_KIND = frozenset({Reason.OTHER_MODEL, Reason.OTHER_VENDOR, Reason.OTHER_PROFILE})
"""The request is for other devices: the least helpful reason."""

PERMANENT = OTHER_KIND | {
    Reason.NO_DEVICES,
    Reason.OTHER_POOL,
    Reason.WHOLE_ONLY,
    Reason.MEMORY_OVER_DEVICE,
    Reason.TOO_FEW_DEVICES_ON_NODE,
    Reason.NO_ISLAND,
    Reason.SELECTOR,
    Reason.SERVE,
    Reason.TIER,
    Reason.NODE_LIST,
    Reason.HOST_TOO_SMALL,
    Reason.GANG_OVER_POOL,
}
"""Reasons that waiting does not remove."""
