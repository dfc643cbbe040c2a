"""What the kernel's log says of devices: the driver's lines about XIDs, with the pid that NVML does not tell.

NVML does not report every XID (79, 119 and 120 among them), so the log is the second ear. Pure: lines come in.
"""

from __future__ import annotations

import re

from aliquot.agent.core.samples import DeviceEvent
from aliquot.agent.core.signals import signal_of
from aliquot.common.signs import Severity

_XID = re.compile(
    r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.\d)?"
    r"(?: GPU-I:(?P<instance>\d{1,3}))?\)"
    r": (?P<xid>\d{1,5})\b(?:, pid='?(?P<pid>\d{1,10}))?"
)
LINE_CHARS_MAX = 4_096


def bus_of(text: str) -> str:
    """A bus address as the kernel names it: `0000:3b:00`, without the function, which is always 0."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"


def parse(line: str) -> tuple[str, DeviceEvent] | None:
    """The bus address and the event of a line about an XID, without its device; None for all other lines.

    The pid is kept only where an XID concerns single programs: events that are equal are counted together.
    """
    found = _XID.search(line[:LINE_CHARS_MAX]) if "NVRM: Xid" in line else None
    if found is None:
        return None
    xid = int(found["xid"])
    signal = signal_of(xid)
    wanted = signal is not None and signal.severity is Severity.LEASE
    return bus_of(found["bus"]), DeviceEvent(
        uuid="",
        xid=xid,
        gpu_instance_id=int(found["instance"]) if found["instance"] else None,
        pid=int(found["pid"]) if wanted and found["pid"] else None,
        from_log=True,
    )
