"""What the kernel's log says of devices: XIDs with the pid that NVML does not tell, and what makes one ask.

NVML does not report every XID (79, 119 and 120 among them), so the log is the second ear. But it is one that others
speak into: a program can have text of its own put into a record (an option of `mount` that the kernel quotes), and
anybody who may write to the device makes records. So only a record of the kernel's own facility is read, only from its
first letter, and what it says is never a verdict: it makes the agent ask the driver. Pure: records come in.
"""

from __future__ import annotations

import re

import msgspec

from aliquot.agent.core.samples import DeviceEvent, EventKind
from aliquot.agent.core.signals import signal_of
from aliquot.common.signs import Severity

ALL_CARDS = "*"
"""In place of a bus address: what links the node's cards, which is none of them."""
HARMLESS = "nonfatal"
"""What a line says of an XID that is no fault by itself."""
LINE_CHARS_MAX = 4_096
_BUS = r"(?P<bus>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"
# Some drivers and log collectors repeat the time or the word `kernel:` at the start of the text. Nobody else's text
# comes before them, so they may be passed over.
_START = r"(?:kernel: )?(?:\[ *\d{1,10}\.\d{1,9}\] )?"
_PREFIX = re.compile(r"(?P<priority>\d{1,4}),(?P<number>\d{1,20}),(?P<at_us>\d{1,20}),(?P<flags>[^,;]{1,8})[^;]{0,64};")
_XID = re.compile(
    rf"{_START}NVRM: Xid \((?:PCI:)?{_BUS}(?: GPU-I:(?P<instance>\d{{1,3}}))?(?: CI:\d{{1,3}})?\)"
    r": (?P<xid>\d{1,5})\b(?P<rest>.*)"
)
_PID = re.compile(r", pid='?(?P<pid>\d{1,10})")
_NONFATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_LINK_XIDS = range(144, 151)
"""Those of the links, whose text says whether they are fatal."""
_FACILITY_BITS = 3
_KERNEL = 0


class _Wording(msgspec.Struct, frozen=True):
    """Words of a driver that are a reason to ask how a card is."""

    pattern: re.Pattern[str]
    said: str
    """For people; the same for all records of this wording, so that equal ones are counted together."""


def _wording(pattern: str, said: str) -> _Wording:
    return _Wording(re.compile(_START + pattern), said)


_WORDINGS = (
    _wording(rf"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?{_BUS}:?.{{0,256}}fallen off the bus", "fallen off the bus"),
    _wording(rf"NVRM: GPU (?:PCI:)?{_BUS}: (?:RmInitAdapter|rm_init_adapter) failed", "it could not be initialised"),
    _wording(rf"nvidia-nvswitch\d{{1,3}}: SXid \(PCI:{_BUS}\): \d{{1,6}}\b", "SXid of an NVSwitch"),
    _wording(rf"(?:nvidia|amdgpu|i915|xe) {_BUS}: AER: PCIe Bus Error: severity=Uncorrect", "uncorrected PCIe error"),
    _wording(rf"amdgpu {_BUS}: (?:amdgpu: )?GPU reset\b", "the driver resets it"),
    _wording(rf"amdgpu {_BUS}: (?:amdgpu: )?\d{{1,9}} uncorrectable hardware errors", "uncorrectable memory errors"),
    _wording(rf"amdgpu {_BUS}: (?:amdgpu: )?(?:\[drm\] )?(?:\*ERROR\* )?ring \S{{1,32}} timeout", "a ring timed out"),
    _wording(rf"(?:i915|xe) {_BUS}: \[drm\] (?:\*ERROR\* )?GPU HANG\b", "it hung"),
    _wording(rf"(?:i915|xe) {_BUS}: \[drm\] .{{0,64}}(?:[Rr]esetting chip|[Ee]ngine reset)", "the driver resets it"),
    _wording(rf"xe {_BUS}: \[drm\] .{{0,64}}declared (?:the )?device wedged", "the driver has given it up"),
)
_SWITCH = "nvidia-nvswitch"


class Record(msgspec.Struct, frozen=True):
    """One record of the kernel's log."""

    number: int
    """Rises by one with each record since the machine's start."""
    text: str
    own: bool
    """Whether it is the kernel's own, and no piece of a line that others began."""


def bus_of(text: str) -> str:
    """A bus address as the kernel names it: `0000:3b:00`, without the function, which is always 0."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest.partition('.')[0]}"


def read_record(line: str) -> Record | None:
    """The first line of a record as `/dev/kmsg` gives it; None for its dictionary's lines, and for anything else."""
    found = _PREFIX.match(line[:LINE_CHARS_MAX])
    if found is None:
        return None
    own = int(found["priority"]) >> _FACILITY_BITS == _KERNEL and not set(found["flags"]) & set("c+")
    return Record(int(found["number"]), line[found.end() : LINE_CHARS_MAX], own)


def parse(line: str) -> tuple[str, DeviceEvent] | None:
    """The bus address (or `ALL_CARDS`) and the event of a record about a device, without its device; None for all
    others.

    The pid is kept only where an XID concerns single programs: events that are equal are counted together.
    """
    record = read_record(line)
    if record is None or not record.own:
        return None
    found = _XID.match(record.text)
    if found is not None:
        return bus_of(found["bus"]), _xid(found)
    for wording in _WORDINGS:
        found = wording.pattern.match(record.text)
        if found is not None:
            bus = ALL_CARDS if _SWITCH in found[0] else bus_of(found["bus"])
            return bus, DeviceEvent(uuid="", kind=EventKind.ASK, from_log=True, said=wording.said)
    return None


def _xid(found: re.Match[str]) -> DeviceEvent:
    xid, rest = int(found["xid"]), found["rest"]
    signal = signal_of(xid)
    pid = _PID.match(rest) if signal is not None and signal.severity is Severity.LEASE else None
    harmless = xid in _LINK_XIDS and _NONFATAL.search(rest) is not None
    return DeviceEvent(
        uuid="",
        xid=xid,
        gpu_instance_id=int(found["instance"]) if found["instance"] else None,
        pid=int(pid["pid"]) if pid is not None else None,
        from_log=True,
        said=HARMLESS if harmless else "",
    )
