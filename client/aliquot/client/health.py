"""The health of cards: incidents, and how long they kept cards out of service."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.client._values.nodes import NodeCondition, Remedy, Sign, SignScope, SignSeverity, Standing

__all__ = [
    "CauseTotal",
    "Health",
    "Incident",
    "IncidentStep",
    "Remedy",
    "Sign",
    "SignScope",
    "SignSeverity",
    "Standing",
]


@dataclass(frozen=True, slots=True)
class IncidentStep:
    """One line of an incident's story."""

    at_ms: int
    state: Standing
    text: str


@dataclass(frozen=True, slots=True)
class Incident:
    """From the first bad sign until the cards are well again."""

    number: int
    cause: str
    """Stable word, such as `off-the-bus`."""
    severity: SignSeverity
    scope: SignScope
    node_id: str
    node_name: str
    uuids: tuple[str, ...]
    """Of cards, or of single MIG instances."""
    pool: str
    model: str
    reason: str
    state: Standing
    opened_ms: int
    since_ms: int
    """In this state."""
    back_ms: int
    """In service again; 0: not yet."""
    closed_ms: int
    outcome: str
    waits_for: str
    """Why it does not go on at the moment; empty: it does, or is over."""
    opened_by: str
    """Who opened it by hand; empty: nobody did."""
    steps: tuple[IncidentStep, ...]
    """At most 32; only where one incident was asked for."""
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class CauseTotal:
    """Incidents of one cause that are over."""

    cause: str
    incidents: int
    out_ms: int
    """Time out of service, summed over cards."""


@dataclass(frozen=True, slots=True)
class UnknownSlice:
    """What an agent holds although the books do not know it, such as after a restore. Its programs run on."""

    slice_id: str
    lease_id: str
    node_id: str
    node_name: str
    device_uuid: str
    share_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Health:
    """What is wrong in the pool, and how long that takes to mend."""

    open: tuple[Incident, ...]
    closed: tuple[Incident, ...]
    """The latest first."""
    causes: tuple[CauseTotal, ...]
    open_count: int
    mttr_ms: int | None
    """Mean time to repair, of those in `closed`; None: there was none."""
    mttr_p95_ms: int | None
    mtbf_ms: int | None
    """Mean time between two incidents of one card; None: no card had two."""
    unknown_slices: tuple[UnknownSlice, ...] = ()
    """Quarantined where they are, until somebody settles them; at most 1000."""
    conditions: tuple[NodeCondition, ...] = ()
    """What the coordinator that leads fails to do; at most 64. Nodes have their own."""
