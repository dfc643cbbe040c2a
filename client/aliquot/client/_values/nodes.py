"""Nodes and their devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aliquot.client._values.base import Word
from aliquot.client._values.leases import ActivitySource
from aliquot.client._values.requests import Serve, Tier


class NodeState(Word):
    """What the coordinator knows of a node."""

    UNSPECIFIED = "UNSPECIFIED"
    DECLARED = "DECLARED"
    RECONCILING = "RECONCILING"
    READY = "READY"
    SUSPECT = "SUSPECT"
    LOST = "LOST"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A device's last report. None: unknown."""

    gpu_utilisation_percent: int | None = None
    memory_utilisation_percent: int | None = None
    memory_used_bytes: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    unattributed_bytes: int | None = None
    sampled_ms: int | None = None
    activity_percent: int | None = None
    """The busiest engine since the last sample, by the best source that there is."""
    activity_source: ActivitySource | None = None
    power_limit_mw: int | None = None


class Standing(Word):
    """The state of a card."""

    UNSPECIFIED = "UNSPECIFIED"
    """Healthy: no incident covers it."""
    QUARANTINED = "QUARANTINED"
    """It takes no new leases. Those that it has are told, and end where the fault is fatal."""
    DRAINED = "DRAINED"
    """Nothing holds any of it."""
    REPAIRING = "REPAIRING"
    VERIFYING = "VERIFYING"
    PROBATION = "PROBATION"
    """In service; the next bad sign counts as a relapse."""
    SERVICE = "SERVICE"
    """A person has to look at it."""


class SignSeverity(Word):
    """Whom a sign concerns."""

    UNSPECIFIED = "UNSPECIFIED"
    LEASE = "LEASE"
    """The programs of one lease."""
    DEGRADED = "DEGRADED"
    """The card computes, but gets nothing new."""
    FATAL = "FATAL"
    """What runs there can't be relied on."""


class SignScope(Word):
    """How far a sign reaches."""

    UNSPECIFIED = "UNSPECIFIED"
    """The device alone."""
    CARD = "CARD"
    """With its MIG instances."""
    ISLAND = "ISLAND"
    """All cards that fast links join with it."""
    NODE = "NODE"


class Remedy(Word):
    """What is to be done next."""

    UNSPECIFIED = "UNSPECIFIED"
    """Nothing: it waits until its signs are good."""
    RESET = "RESET"
    REBOOT = "REBOOT"
    SERVICE = "SERVICE"
    """By a person."""
    VERIFY = "VERIFY"


@dataclass(frozen=True, slots=True)
class Sign:
    """Why a device is not well, as its agent judges; the reason for people is the device's `health_reason`."""

    cause: str
    severity: SignSeverity
    scope: SignScope
    remedy: Remedy


@dataclass(frozen=True, slots=True)
class Device:
    """One physical GPU, or one MIG instance of it."""

    uuid: str
    index: int
    model: str
    vendor: str
    product_name: str
    node_id: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    """What the driver keeps for itself."""
    foreign_bytes: int
    """Covered by no slice: held by processes outside any lease, or by a slice beyond its limit."""
    leased_share_milli: int
    leased_memory_bytes: int
    healthy: bool
    health_reason: str
    mig_profile: str
    parent_uuid: str
    nvlink_island: int | None
    """The older name of `fabric_island`."""
    numa_node: int | None
    pci_bus_id: str
    tiers: tuple[Tier, ...]
    telemetry: Telemetry
    compute_milli: int = 1000
    """Its part of its card's compute, in thousandths: less than 1000 for a MIG instance."""
    mig_start: int | None = None
    """A MIG instance's first slice of its card's memory; None if its agent does not tell."""
    lease_ids: tuple[str, ...] = ()
    """Leases that hold some of it, at most 64."""
    incident: int = 0
    """The open incident that covers it (`Pool.admin.health`); 0: none."""
    whole_only: bool = False
    """No parts of it are leased: its compute mode lets one process in at a time."""
    standing: Standing = Standing.UNSPECIFIED
    sign: Sign | None = None
    """None: it is well, or its agent does not say why not."""
    fabric_island: int | None = None
    """Devices of a node with the same number reach one another over links of their own (NVLink, XGMI, HCCS)."""

    @property
    def leasable_bytes(self) -> int:
        """Memory that leases may hold, including what they already hold."""
        return max(0, self.memory_total_bytes - self.memory_reserved_bytes - self.foreign_bytes)


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A kind of MIG instance that a card can have, as its driver reports it. Memory slices are counted from 0."""

    name: str
    """`1g.10gb`."""
    compute_slices: int
    memory_bytes: int
    length: int
    """In slices of memory."""
    starts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MigPart:
    """One instance of a card."""

    profile: str
    start: int
    uuid: str
    """The UUID of its device; empty: it has no compute instance, so nobody can hold it."""


@dataclass(frozen=True, slots=True)
class MigCard:
    """A card in MIG mode whose instances the pool may change."""

    uuid: str
    model: str
    profiles: tuple[MigProfile, ...]
    parts: tuple[MigPart, ...]
    cut_for: str
    """The lease for which its instances are being changed now; empty: they are not."""
    problem: str
    """Why the last change of its instances failed; empty: it did not fail."""


class MaintenancePhase(Word):
    """The phase of a maintenance window."""

    UNSPECIFIED = "UNSPECIFIED"
    PLANNED = "PLANNED"
    CLOSING = "CLOSING"
    """Only leases that end before its start are placed on its nodes."""
    OPEN = "OPEN"
    """Nothing is placed there, and what ran was told to stop."""


@dataclass(frozen=True, slots=True)
class Closure:
    """The maintenance window that closes a node: [starts_ms, ends_ms)."""

    window: str
    phase: MaintenancePhase
    starts_ms: int
    ends_ms: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeCondition:
    """A sense in which a node's agent is deaf, or something that it can't do there."""

    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with devices."""

    node_id: str
    name: str
    state: NodeState
    cordoned: bool
    draining: bool
    reason: str
    pool: str
    labels: Mapping[str, str]
    devices: tuple[Device, ...]
    cpu_milli: int | None
    host_memory_bytes: int | None
    agentless: bool
    agent_version: str
    driver_version: str
    last_heard_ms: int
    slices: int
    """How many slices it holds."""
    failure_domain: str
    cards: tuple[MigCard, ...] = ()
    """Cards in MIG mode whose instances may change. Of other cards only the instances are shown, as devices."""
    closure: Closure | None = None
    """None: no maintenance window closes it."""
    serves: tuple[Serve, ...] = ()
    """How its agent can serve leases, beside LOCAL."""
    remedies: tuple[str, ...] = ()
    """What its agent can do about sick cards: reset, reboot, verify."""
    lends: bool = False
    """Its agent knows slices that use the share of idle leases."""
    conditions: tuple[NodeCondition, ...] = ()
    """What keeps it from being as it should, as its agent says."""
