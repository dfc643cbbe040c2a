"""The pool's answers as immutable values: no protobuf in a user's program, names with units, typed states.

They show one moment: ask again, or `watch`, to see changes. `None` means "unknown", never zero. `_milli` is thousandths
(of a device, of a CPU), `_bytes` bytes, `_ms` milliseconds since the Unix epoch on the coordinator's clock; a time of 0
has not come. `seq` is the number of a durable fact: it only rises.
"""

from __future__ import annotations

from aliquot.client._values.base import Page
from aliquot.client._values.events import Event, LeaseChanged, NodeChanged, Resynced
from aliquot.client._values.leases import (
    ActivitySource,
    Explanation,
    Lease,
    LeaseState,
    LeaseUse,
    MemberPlace,
    Missing,
    NodeFit,
    Serve,
    ServedUse,
    Slice,
    SliceState,
    Tier,
    Timeline,
    TimelineStep,
    Topology,
    UseState,
    WaitUntil,
)
from aliquot.client._values.nodes import (
    Closure,
    Device,
    MaintenancePhase,
    MigCard,
    MigPart,
    MigProfile,
    Node,
    NodeCondition,
    NodeState,
    Remedy,
    Sign,
    SignScope,
    SignSeverity,
    Standing,
    Telemetry,
)
from aliquot.client._values.pool import PoolTotals, Status, TenantTotals

__all__ = [
    "ActivitySource",
    "Closure",
    "Device",
    "Event",
    "Explanation",
    "Lease",
    "LeaseChanged",
    "LeaseState",
    "LeaseUse",
    "MaintenancePhase",
    "MemberPlace",
    "MigCard",
    "MigPart",
    "MigProfile",
    "Missing",
    "Node",
    "NodeChanged",
    "NodeCondition",
    "NodeFit",
    "NodeState",
    "Page",
    "PoolTotals",
    "Remedy",
    "Resynced",
    "Serve",
    "ServedUse",
    "Sign",
    "SignScope",
    "SignSeverity",
    "Slice",
    "SliceState",
    "Standing",
    "Status",
    "Telemetry",
    "TenantTotals",
    "Tier",
    "Timeline",
    "TimelineStep",
    "Topology",
    "UseState",
    "WaitUntil",
]
