"""What has happened to maintenance windows; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.maintenance.windows import Phase, WindowSpec


class MaintenanceDeclared(Fact, frozen=True, tag="maint"):
    """A maintenance window was declared, with its present or next occurrence and how far that has come."""

    spec: WindowSpec
    phase: Phase
    starts_ms: int
    ends_ms: int


class MaintenanceMoved(Fact, frozen=True, tag="maint>"):
    """A window entered this phase of this occurrence."""

    name: str
    phase: Phase
    starts_ms: int
    ends_ms: int


class MaintenanceEnded(Fact, frozen=True, tag="maint-"):
    """A window was withdrawn, or was held for the last time: its nodes are open again."""

    name: str
    reason: str
