"""What has happened to the health of cards. See `core.facts`."""

from __future__ import annotations

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.health.records import Standing


class IncidentOpened(Fact, frozen=True, tag="ill"):
    """Cards were taken out of service. Incidents that are about some of them go on as part of this one."""

    number: int
    cause: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    node_id: str
    units: tuple[str, ...]
    reason: str
    pool: str = ""
    model: str = ""
    absorbs: tuple[int, ...] = ()
    by: str = ""
    suspect: str = ""
    """The unit that the sign was about, where more goes out of service for it; empty: all."""


class IncidentMoved(Fact, frozen=True, tag="ill>"):
    """An incident has come into a state, or something of note has happened in the one that it is in."""

    number: int
    state: Standing
    text: str
    due_ms: int = 0
    order: int = 0
    """Of what the node's agent is told to do; 0: nothing."""
    action: Remedy = Remedy.NONE
    remedy: Remedy = Remedy.NONE
    """What is to be done next from now on."""
    well: bool = False
    units: tuple[str, ...] = ()
    """All that it covers from now on, where that changes."""
    absorbs: tuple[int, ...] = ()


class IncidentClosed(Fact, frozen=True, tag="ill-"):
    """The cards are in service, or gone for good."""

    number: int
    outcome: str
    by: str = ""


class CopiesMeasured(Fact, frozen=True, tag="copies"):
    """Cards that were tested copy within their own memory so fast."""

    node_id: str
    model: str
    copies: tuple[tuple[str, int], ...]
    """(unit, megabytes a second)."""


class LeaseTold(Fact, frozen=True, tag="told"):
    """The holder of a lease is told what has happened to a card that it uses."""

    lease_id: str
    text: str
    hit: str = ""
    """The card on which a fault of the lease's own program was seen; empty: it is not about that."""
