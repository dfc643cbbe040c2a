"""What has happened to maintenance windows; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.maintenance.windows import Phase, WindowSpec


class MaintenanceDeclared(Fact, frozen=True, tag="maint"):
    """A maintenance window was declared; this is the time of it that is next, or now, and how far it has come."""

    spec: WindowSpec
    phase: Phase
    starts_ms: int
    ends_ms: int


class MaintenanceMoved(Fact, frozen=True, tag="maint>"):
    """A window entered this phase, of this time that it is held."""

    name: str
    phase: Phase
    starts_ms: int
    ends_ms: int


class MaintenanceEnded(Fact, frozen=True, tag="maint-"):
    """A window was withdrawn, or was held for the last time: its nodes are as if it had never been."""

    name: str
    reason: str
