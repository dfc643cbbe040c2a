"""The kernel's log: the real device where this machine has one, drivers' wordings, and what is believed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from aliquot.agent.core.kernel_log import ALL_CARDS, HARMLESS, parse, read_record
from aliquot.agent.core.samples import DeviceEvent, EventKind
from aliquot.agent.devices.kmsg import KernelLog
from aliquot.agent.disk import durable
from aliquot.agent.disk.log_mark import LogMark
from tests.agent.harness import auntil

KMSG = Path("/dev/kmsg")
BUS = "0000:3b:00"


def real() -> bool:
    """Whether the kernel's own log may be read and written here."""
    try:
        os.close(os.open(KMSG, os.O_RDWR | os.O_NONBLOCK))
    except OSError:
        return False
    return True


needs_kmsg = pytest.mark.skipif(not real(), reason="/dev/kmsg can't be read and written here")


def say(text: str) -> None:
    """Of facility user, as everything that is written into the log by programs: the kernel sees to that."""
    KMSG.write_text(f"<3>{text}\n", encoding="ascii")


def as_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this test writes has facility user; let it count as the kernel's (0), so that it is heard."""
    read = os.read

    def relabelled(descriptor: int, length: int) -> bytes:
        record = read(descriptor, length)
        return b"3" + record[2:] if record.startswith(b"11,") and b"aliquot-test" in record else record

    monkeypatch.setattr(os, "read", relabelled)


class Ear:
    """A reader of the real log, and what it has heard."""

    def __init__(self, mark: LogMark | None = None) -> None:
        self.heard: list[int] = []
        self.told: list[str] = []
        self.numbers: list[int | None] = []
        self._news = asyncio.Event()
        self.log = KernelLog(KMSG, lambda bus: "GPU-x", self._take, self._tell, mark)
        self.task = asyncio.create_task(self.log.run())

    async def _take(self, event: DeviceEvent, times: int) -> None:
        self.numbers.append(self.log.heard_to)
        self.heard += [event.xid] * times
        self._news.set()

    def _tell(self, why: str) -> None:
        self.told.append(why)
        self._news.set()

    async def ready(self) -> None:
        await self.until(lambda: self.told == [""])

    async def until(self, holds: object) -> None:
        async with asyncio.timeout(60):
            while not holds():  # type: ignore[operator]
                await self._news.wait()
                self._news.clear()

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


def line(xid: int) -> str:
    return f"NVRM: Xid (PCI:{BUS}): {xid}, pid=1, name=aliquot-test"


@needs_kmsg
async def test_the_real_log_tells_what_is_new_and_not_its_past(monkeypatch: pytest.MonkeyPatch) -> None:
    as_the_kernels(monkeypatch)
    say(line(48))
    ear = Ear()
    await ear.ready()
    say(line(79))
    await ear.until(lambda: ear.heard)
    await ear.stop()
    assert ear.heard == [79]
    assert ear.told == [""], "it was never deaf"


@needs_kmsg
async def test_an_agent_that_starts_again_hears_what_came_meanwhile_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_the_kernels(monkeypatch)
    path = tmp_path / "log"
    say(line(46))
    first = Ear(LogMark(path, "boot-1", durable))
    await first.ready()
    say(line(79))
    await first.until(lambda: first.heard)
    await auntil(lambda: LogMark(path, "boot-1", durable).read() == first.numbers[-1], "it is kept", 60)
    await first.stop()
    assert first.heard == [79]
    say(line(119))
    second = Ear(LogMark(path, "boot-1", durable))
    await second.until(lambda: 119 in second.heard)
    await second.ready()
    await second.stop()
    assert second.heard.count(119) == 1
    assert 46 not in second.heard
    other_boot = Ear(LogMark(path, "boot-2", durable))
    await other_boot.ready()
    await other_boot.stop()
    assert other_boot.heard == [], "numbers of another boot say nothing"


@needs_kmsg
async def test_what_programs_write_into_the_log_is_not_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    ear = Ear()
    await ear.ready()
    say(line(79).replace("aliquot-test", "somebody"))
    as_the_kernels(monkeypatch)
    say("aliquot-test " + line(48))
    say(line(119))
    await ear.until(lambda: ear.heard)
    await ear.stop()
    assert ear.heard == [119]


async def test_a_log_that_can_not_be_read_is_said(tmp_path: Path) -> None:
    told: list[str] = []
    come = asyncio.Event()

    async def take(event: DeviceEvent, times: int) -> None: ...

    def tell(why: str) -> None:
        told.append(why)
        come.set()

    task = asyncio.create_task(KernelLog(tmp_path / "none", lambda bus: "", take, tell).run())
    async with asyncio.timeout(60):
        await come.wait()
    task.cancel()
    assert "No such file" in told[0]


XID, ASK = EventKind.XID, EventKind.ASK
WORDINGS = [
    ("4,800,1000,-;NVRM: Xid (0000:03:00): 8, Channel 00000001", "0000:03:00", XID, 8),
    ("3,802,1002,-;NVRM: GPU at PCI:0000:3b:00: GPU-00000000-0000-0000-0000-000000000000", None, None, 0),
    ("3,804,1004,-;NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x00:0x00:1)", BUS, ASK, 0),
    ("3,805,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", BUS, ASK, 0),
    ("3,808,8,-;NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 to 0x2", BUS, XID, 154),
    ("3,810,1010,-;nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x00000001}", ALL_CARDS, ASK, 0),
    ("3,812,1012,-;[ 1843.308145] NVRM: Xid (PCI:0000:3b:00): 48, pid=41, name=a b, DBE", BUS, XID, 48),
    ("3,814,4,-;nvidia 0000:3b:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=x", BUS, ASK, 0),
    ("3,816,1016,-;amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "0000:c1:00", ASK, 0),
    ("3,818,8,-;amdgpu 0000:c1:00.0: amdgpu: 1 uncorrectable hardware errors detected in umc", "0000:c1:00", ASK, 0),
    ("3,820,20,-;i915 0000:03:00.0: [drm] GPU HANG: ecode 12:1:00000000, in python3 [1234]", "0000:03:00", ASK, 0),
    ("3,822,1022,-;kernel: NVRM: Xid (PCI:0000:3B:00 GPU-I:13 CI:01): 94, pid=77, Contained", BUS, XID, 94),
    ("3,826,1026,-;NVRM: _kgspLogXid119: ********* GSP report *****", None, None, 0),
    ("3,828,1028,-;MUSA: GPU 0 hang", None, None, 0),
    ("3,830,1,-,caller=T12;NVRM: Xid (PCI:0000:3b:00): 62, 0000(0000) 00000000", BUS, XID, 62),
    # Others' words within the kernel's: an option of mount that it quotes, a dictionary, a piece of another's line.
    ("3,831,1,-;tmpfs: Unknown parameter 'NVRM: Xid (PCI:0000:3b:00): 79, pid=1, off the bus'", None, None, 0),
    (" DEVICE=NVRM: Xid (PCI:0000:3b:00): 79", None, None, 0),
    ("3,832,1,c;NVRM: Xid (PCI:0000:3b:00): 79, pid=1", None, None, 0),
    ("11,833,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1", None, None, 0),
    ("30,833,1,-;NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.", None, None, 0),
    ("NVRM: Xid (PCI:0000:3b:00): 79, without a head", None, None, 0),
]


@pytest.mark.parametrize(("text", "bus", "kind", "xid"), WORDINGS)
def test_wordings_of_drivers(text: str, bus: str | None, kind: EventKind | None, xid: int) -> None:
    found = parse(text)
    if bus is None:
        assert found is None
        return
    assert found is not None
    assert (found[0], found[1].kind, found[1].xid) == (bus, kind, xid)
    assert found[1].from_log


def test_a_fault_of_links_that_the_driver_calls_nonfatal_is_harmless() -> None:
    said = "3,806,1006,-;NVRM: Xid (PCI:0000:3b:00): 145, RLW_RXPIPE {} XC0 i0 Link 13 (0x1)"
    harmless, fatal = parse(said.format("Nonfatal")), parse(said.format("Fatal"))
    assert harmless is not None
    assert fatal is not None
    assert (harmless[1].said, fatal[1].said) == (HARMLESS, "")


def test_a_record_has_a_number_and_an_owner() -> None:
    own = read_record("6,18446744073709551615,5,-;x")
    assert own is not None
    assert (own.number, own.own, own.text) == (2**64 - 1, True, "x")
    assert read_record("x" * 5_000) is None
