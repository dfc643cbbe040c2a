"""What the driver's XID numbers mean for who may use a device.

Source: the vendor's XID catalogue. Most XIDs are a program's own fault (a bad address, an assertion in a kernel): they
say nothing about the device, and taking a device out of service for them lets one user's bug take hardware from all.
"""

from __future__ import annotations

import enum


class XidAction(enum.StrEnum):
    """What an XID asks for."""

    IGNORE = "ignore"
    RESTART_APPLICATION = "restart the application"
    RESET_DEVICE = "reset the device"
    RESTART_MACHINE = "restart the machine"
    CHECK_LINKS = "check the NVLink fabric"
    CHECK_POWER = "check the power cables"
    UPDATE_SOFTWARE = "update the driver or firmware"
    ASK_SUPPORT = "ask the vendor's support"
    READ_RECOVERY_ACTION = "read the recovery action"
    LOOK_UP = "look the number up"


class XidSeverity(enum.StrEnum):
    """Whom an XID concerns, coarsely enough to count by."""

    FATAL = "fatal"
    """The device can't be used."""
    DEGRADED = "degraded"
    """The device computes, but not all of it can be relied on."""
    PROGRAM = "program"
    """One program, whose own fault it usually is."""
    NONE = "none"
    """Nobody: it follows from something else, or is for the record."""
    UNKNOWN = "unknown"
    """The number alone does not say."""


def _span(first: int, last: int) -> set[int]:
    return set(range(first, last + 1))


_APPLICATION = frozenset(
    {8, 11, 13, 25, 31, 32, 60, 80, 88, 89, 94, 139}
    | _span(39, 41) | _span(68, 72) | _span(75, 77) | _span(82, 86) | _span(96, 105) | _span(126, 135)
)  # fmt: skip
_IGNORED = frozenset(
    {37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
    | _span(162, 165)  # power smoothing went off, came back, is wearing out, is worn out
)
_RESET = frozenset({46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158, 171, 172})
_ASK_DRIVER = frozenset({154, 159} | _span(166, 170))
_LINKS = frozenset({74} | _span(144, 150))

_SINGLE = {
    45: XidAction.IGNORE,  # a channel was torn down: follows whatever really happened
    48: XidAction.RESET_DEVICE,  # double-bit memory error
    54: XidAction.CHECK_POWER,
    78: XidAction.UPDATE_SOFTWARE,
    79: XidAction.RESTART_MACHINE,  # fell off the bus
    142: XidAction.ASK_SUPPORT,
    151: XidAction.RESTART_MACHINE,
}

UNSCHEDULABLE = frozenset(
    {
        XidAction.RESET_DEVICE,
        XidAction.RESTART_MACHINE,
        XidAction.CHECK_LINKS,
        XidAction.CHECK_POWER,
        XidAction.ASK_SUPPORT,
    }
)
"""Actions for which a device takes no new leases until it is well again."""

DRIVER_JUDGES = frozenset({46, 62, 109, 119, 120, 143, 158} | _LINKS)
"""The driver may have recovered by itself: nothing is wrong with the device where its recovery action asks for nothing
when it is read after one of these.
"""

PROGRAM_SUSPECTED = frozenset({109})
"""The catalogue asks for a reset, experience says it is usually the program's fault: believed to be the
device's only where the driver's recovery action says so too.
"""


def action_of(xid: int) -> XidAction:
    """What this XID asks for. Unknown numbers ask for a look, and don't take the device out of service."""
    if xid in _SINGLE:
        return _SINGLE[xid]
    if xid in _APPLICATION:
        return XidAction.RESTART_APPLICATION
    if xid in _IGNORED:
        return XidAction.IGNORE
    if xid in _RESET:
        return XidAction.RESET_DEVICE
    if xid in _LINKS:
        return XidAction.CHECK_LINKS
    if xid in _ASK_DRIVER:
        return XidAction.READ_RECOVERY_ACTION
    return XidAction.LOOK_UP


_SEVERITIES = {
    XidAction.IGNORE: XidSeverity.NONE,
    XidAction.UPDATE_SOFTWARE: XidSeverity.NONE,
    XidAction.RESTART_APPLICATION: XidSeverity.PROGRAM,
    XidAction.CHECK_LINKS: XidSeverity.DEGRADED,
    XidAction.READ_RECOVERY_ACTION: XidSeverity.UNKNOWN,
    XidAction.LOOK_UP: XidSeverity.UNKNOWN,
}


def severity_of(xid: int) -> XidSeverity:
    """Whom it concerns, by its number alone."""
    return _SEVERITIES.get(action_of(xid), XidSeverity.FATAL)
