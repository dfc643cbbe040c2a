"""Devices: their health, their care and their cuts."""

from __future__ import annotations

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.commands.base import Command


class ReportDevice(Command[None], frozen=True):
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


class ReportCare(Command[None], frozen=True):
    """An agent has carried out an order about sick cards, or says why not."""

    node_id: str
    session_epoch: int
    number: int
    problem: str = ""
    story: str = ""
    copies: tuple[tuple[str, int], ...] = ()
    """(unit, megabytes a second) of what was tested."""


class ReportHit(Command[None], frozen=True):
    """A fault on a device was of one lease's program, as its agent found out."""

    node_id: str
    session_epoch: int
    uuid: str
    lease_id: str
    text: str
    suspicious: bool = False
    """Whether it might be the device's after all, where others are hit as well."""


class QuarantineDevice(Command[None], frozen=True):
    """Take a card out of service; `drain` also ends its leases."""

    uuid: str
    reason: str = ""
    drain: bool = False
    by: str = ""


class VerifyDevice(Command[None], frozen=True):
    """Have a card tested."""

    uuid: str
    reason: str = ""
    by: str = ""


class ReturnDevice(Command[None], frozen=True):
    """Take a card back into service. `overrule`: also where its agent says that it is not well."""

    uuid: str
    reason: str = ""
    by: str = ""
    overrule: bool = False


class ReportCut(Command[None], frozen=True):
    """An agent has carried out an order to cut a card, or says why not."""

    node_id: str
    session_epoch: int
    card_uuid: str
    number: int
    problem: str = ""
