"""The signal table: everything that says a card is not well, one row a signal, with what follows from it.

The agent only judges; what becomes of a card is decided by the coordinator, which knows the leases and the pool.
Numbers of XIDs are the vendor's catalogue's; thresholds without a source are ours. `docs/health.md` shows the table.
Most XIDs are a program's own fault (a bad address, an assertion in a kernel): they say nothing about the device, and
taking a device out of service for them lets one user's bug take hardware from all.
"""

from __future__ import annotations

import enum

import msgspec

from aliquot.agent.core.samples import RecoveryAction
from aliquot.common.signs import Remedy, Scope, Severity


class Signal(msgspec.Struct, frozen=True):
    """One row."""

    cause: str
    """Stable word, for machines."""
    source: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    over: str
    """What must be the case for it to be over."""
    xids: frozenset[int] = frozenset()
    """Those that mean this."""

    @property
    def takes_out(self) -> bool:
        """Whether it keeps new leases away."""
        return self.severity >= Severity.DEGRADED


def _span(first: int, last: int) -> set[int]:
    return set(range(first, last + 1))


_N, _L, _D, _F = Severity.NONE, Severity.LEASE, Severity.DEGRADED, Severity.FATAL
_ACTION_NONE = "the recovery action is none, or a reset or restart was done, and the card is verified"

RECOVERY_RESET = Signal("recovery-reset", "field 230: reset, bus reset", _F, Scope.CARD, Remedy.RESET, _ACTION_NONE)
RECOVERY_REBOOT = Signal("recovery-reboot", "field 230: reboot", _F, Scope.NODE, Remedy.REBOOT, _ACTION_NONE)
RECOVERY_ISLAND = Signal("recovery-drain", "field 230: drain P2P", _F, Scope.ISLAND, Remedy.RESET, _ACTION_NONE)
OFF_THE_BUS = Signal(
    "off-the-bus", "XID 79, event 0x4000, GPU_IS_LOST", _F, Scope.NODE, Remedy.REBOOT,
    "it answers again, and is verified", frozenset({79}),
)  # fmt: skip
RESTART = Signal("xid-restart", "XID 151", _F, Scope.NODE, Remedy.REBOOT, _ACTION_NONE, frozenset({151}))
UNCONTAINED = Signal(
    "uncontained-memory", "XIDs 48, 95, 140, 171, 172; field 94 without 230", _F, Scope.CARD, Remedy.RESET,
    _ACTION_NONE, frozenset({48, 95, 140, 171, 172}),
)  # fmt: skip
ENGINE = Signal(
    "engine", "XIDs 46, 62, 109, 119, 120, 143, 158 unless 230 is none", _F, Scope.CARD, Remedy.RESET, _ACTION_NONE,
    frozenset({46, 62, 109, 119, 120, 143, 158}),
)  # fmt: skip
RESET_ASKED = Signal(
    "xid-reset", "XIDs 110, 136, 155, 156", _F, Scope.CARD, Remedy.RESET, _ACTION_NONE, frozenset({110, 136, 155, 156})
)
NOT_ANSWERING = Signal(
    "not-answering", "no answer from the driver for 45 s", _F, Scope.CARD, Remedy.RESET, "it answers again"
)
REMAP_PENDING = Signal("remap-pending", "field 144 without 230", _D, Scope.CARD, Remedy.RESET, "field 144 is 0")
REMAP_FAILED = Signal(
    "remap-failed", "field 145, XID 64", _F, Scope.CARD, Remedy.SERVICE, "a person has seen to it", frozenset({64})
)
SUPPORT = Signal("support", "XID 142", _F, Scope.CARD, Remedy.SERVICE, "a person has seen to it", frozenset({142}))
POWER_CABLES = Signal(
    "power-cables", "XID 54", _D, Scope.CARD, Remedy.SERVICE, "a person has seen to it", frozenset({54})
)
LINKS = Signal(
    "links", "XIDs 74, 144-150 unless 230 is none; a link that was up is down", _D, Scope.CARD, Remedy.NONE,
    "all links up for 10 min", frozenset({74} | _span(144, 150)),
)  # fmt: skip
FABRIC = Signal("fabric", "GpuFabricInfoV: state is not completed", _D, Scope.CARD, Remedy.NONE, "it is completed")
CLOCKS_HELD = Signal(
    "clocks-held", "clock reasons 0x8, 0x40, 0x80: 6 times in 10 min", _D, Scope.CARD, Remedy.NONE, "10 min without"
)
HOT = Signal("hot", "MarginTemperature at 0", _D, Scope.CARD, Remedy.NONE, "5 degrees to spare")
PCIE_REPLAYS = Signal(
    "pcie-replays", "more than 8 PCIe replays a minute", _D, Scope.CARD, Remedy.NONE, "10 min without"
)
PCIE_WIDTH = Signal(
    "pcie-width", "CurrPcieLinkWidth below what it was, for 10 min", _D, Scope.CARD, Remedy.NONE, "10 min at it"
)

CONTAINED = Signal("contained-memory", "XID 94", _L, Scope.DEVICE, Remedy.NONE, "at once", frozenset({94}))
PROGRAM = Signal(
    "program", "XIDs 8, 11, 13, 31, 43", _L, Scope.DEVICE, Remedy.NONE,
    "at once; where two tenants' programs are hit within a day, the card is verified when it is empty",
    frozenset(
        {8, 11, 13, 25, 31, 32, 43, 60, 80, 88, 89, 139}
        | _span(39, 41) | _span(68, 72) | _span(75, 77) | _span(82, 86) | _span(96, 105) | _span(126, 135)
    ),
)  # fmt: skip
TEARDOWN = Signal("teardown", "XID 45", _N, Scope.DEVICE, Remedy.NONE, "it says nothing by itself", frozenset({45}))
RECORDED = Signal("recorded", "XIDs 63, 92", _N, Scope.DEVICE, Remedy.NONE, "it is counted", frozenset({63, 92}))
NOTICE = Signal(
    "notice", "XIDs 159, 162-170", _N, Scope.DEVICE, Remedy.NONE, "the recovery action is asked for, and judges",
    frozenset({159} | _span(162, 170)),
)  # fmt: skip
POWER_CAP = Signal("power-cap", "clock reason 0x4", _N, Scope.DEVICE, Remedy.NONE, "it is normal")

SIGNALS = (
    RECOVERY_RESET, RECOVERY_REBOOT, RECOVERY_ISLAND, OFF_THE_BUS, RESTART, UNCONTAINED, ENGINE, RESET_ASKED,
    NOT_ANSWERING, REMAP_PENDING, REMAP_FAILED, SUPPORT, POWER_CABLES, LINKS, FABRIC, CLOCKS_HELD, HOT, PCIE_REPLAYS,
    PCIE_WIDTH, CONTAINED, PROGRAM, TEARDOWN, RECORDED, NOTICE, POWER_CAP,
)  # fmt: skip

OF_NO_CONCERN = frozenset(
    {37, 38, 44, 66, 67, 78, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161}
    | _span(162, 165)  # power smoothing went off, came back, is wearing out, is worn out
)
"""XIDs that ask for nothing at all, or for a newer driver."""
_OF_XID = {xid: signal for signal in SIGNALS for xid in signal.xids}
_OF_RECOVERY = {
    RecoveryAction.RESET: RECOVERY_RESET,
    RecoveryAction.BUS_RESET: RECOVERY_RESET,
    RecoveryAction.REBOOT: RECOVERY_REBOOT,
    RecoveryAction.SYSTEM_REBOOT: RECOVERY_REBOOT,
    RecoveryAction.DRAIN_P2P: RECOVERY_ISLAND,
    RecoveryAction.DRAIN_AND_RESET: RECOVERY_ISLAND,
}
_ASKS_FIRST = {LINKS: "check the NVLink fabric", POWER_CABLES: "check the power cables"}
_ASKS = {
    Remedy.RESET: "reset the device",
    Remedy.REBOOT: "restart the machine",
    Remedy.SERVICE: "have the device serviced",
}


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


_SEVERITIES = {_N: XidSeverity.NONE, _L: XidSeverity.PROGRAM, _D: XidSeverity.DEGRADED, _F: XidSeverity.FATAL}


def signal_of(xid: int) -> Signal | None:
    """What an XID is a signal of; None: of nothing that the table knows, so the recovery action alone judges."""
    return _OF_XID.get(xid)


def severity_of(xid: int) -> XidSeverity:
    """Whom it concerns, by its number alone."""
    signal = signal_of(xid)
    if xid in OF_NO_CONCERN:
        return XidSeverity.NONE
    return XidSeverity.UNKNOWN if signal is None or signal is NOTICE else _SEVERITIES[signal.severity]


def asked_by(xid: int) -> str:
    """What people are to do about one that takes a device out."""
    signal = signal_of(xid)
    return "" if signal is None else _ASKS_FIRST.get(signal) or _ASKS[signal.remedy]


def signal_of_recovery(action: RecoveryAction) -> Signal | None:
    """What the driver asks for."""
    return _OF_RECOVERY.get(action)
