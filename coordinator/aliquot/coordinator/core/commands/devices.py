"""Devices: their health, their care and their cuts."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.commands.base import Command


@dataclass(frozen=True, slots=True)
class ReportDevice(Command[None]):
    """What a device can give has changed."""

    node_id: str
    session_epoch: int
    uuid: str
    foreign_bytes: int
    healthy: bool
    reason: str = ""
    cause: str = ""
    severity: Severity = Severity.NONE
    scope: Scope = Scope.DEVICE
    remedy: Remedy = Remedy.NONE


@dataclass(frozen=True, slots=True)
class ReportCare(Command[None]):
    """An agent has carried out an order about sick cards, or says why not."""

    node_id: str
    session_epoch: int
    number: int
    problem: str = ""
    story: str = ""
    copies: tuple[tuple[str, int], ...] = ()
    """(unit, megabytes a second) of what was tested."""


@dataclass(frozen=True, slots=True)
class ReportHit(Command[None]):
    """A fault on a device was of one lease's program, as its agent found out."""

    node_id: str
    session_epoch: int
    uuid: str
    lease_id: str
    text: str
    suspicious: bool = False
    """Whether it might be the device's after all, where others are hit as well."""


@dataclass(frozen=True, slots=True)
class QuarantineDevice(Command[None]):
    """Take a card out of service; `drain` also ends its leases."""

    uuid: str
    reason: str = ""
    drain: bool = False
    by: str = ""


@dataclass(frozen=True, slots=True)
class VerifyDevice(Command[None]):
    """Have a card tested."""

    uuid: str
    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class ReturnDevice(Command[None]):
    """Take a card back into service. `overrule`: also where its agent says that it is not well."""

    uuid: str
    reason: str = ""
    by: str = ""
    overrule: bool = False


@dataclass(frozen=True, slots=True)
class ReportCut(Command[None]):
    """An agent has carried out an order to cut a card, or says why not."""

    node_id: str
    session_epoch: int
    card_uuid: str
    number: int
    problem: str = ""
