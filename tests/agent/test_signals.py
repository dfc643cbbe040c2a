"""The signal table, what shows only over time, and the kernel's log as a second ear."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.core import signals
from aliquot.agent.core.caring import Begun, CareOrder, CareResult, interrupted
from aliquot.agent.core.health import Health, on_failure, on_repair, on_sample, on_xid
from aliquot.agent.core.kernel_log import bus_of, parse
from aliquot.agent.core.samples import DeviceEvent, HealthSample, RecoveryAction
from aliquot.agent.core.signals import SIGNALS, signal_of
from aliquot.agent.devices import kmsg
from aliquot.agent.devices.kmsg import LINES_A_SECOND, KernelLog
from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.v1 import types_pb2

MINUTE_MS = 60_000
WELL = HealthSample(recovery_action=RecoveryAction.NONE, remap_pending=False, remap_failed=False)


def test_a_cause_has_one_row_and_an_xid_one_cause() -> None:
    assert len({signal.cause for signal in SIGNALS}) == len(SIGNALS)
    xids = [xid for signal in SIGNALS for xid in signal.xids]
    assert len(xids) == len(set(xids))


def test_numbers_are_those_of_the_contract() -> None:
    for kind, contract in (
        (Severity, types_pb2.SignSeverity),
        (Scope, types_pb2.SignScope),
        (Remedy, types_pb2.Remedy),
    ):
        assert sorted(map(int, kind)) == sorted(contract.values())


@given(st.integers(0, 1_000))
def test_whatever_takes_a_card_out_by_its_xid_has_a_row_that_says_why(xid: int) -> None:
    health = on_xid(Health(), xid, None, 0)
    if not health.healthy:
        assert health.signal is not None
        assert health.signal.severity >= Severity.DEGRADED
    signal = signal_of(xid)
    if signal is not None and signal.severity <= Severity.LEASE:
        assert health.healthy


def test_xid_119_without_a_recovery_action_and_ten_quiet_minutes_later_is_still_out_until_it_is_repaired() -> None:
    health = on_xid(Health(), 119, None, 0)
    for minute in range(1, 11):
        health = on_sample(health, HealthSample(), minute * MINUTE_MS)
    assert not health.healthy
    assert health.signal is signals.ENGINE
    assert on_sample(on_repair(health), HealthSample(), 11 * MINUTE_MS).healthy


def judged(*samples: HealthSample, every_ms: int = 30_000) -> Health:
    health = Health()
    for number, sample in enumerate(samples):
        health = on_sample(health, sample, number * every_ms)
    return health


def sample(**said: int) -> HealthSample:
    return HealthSample(recovery_action=RecoveryAction.NONE, **said)  # type: ignore[arg-type]


@pytest.mark.parametrize("reason", [0x8, 0x40, 0x80])
def test_clocks_held_down_six_times_in_ten_minutes_take_a_card_out_for_ten_minutes(reason: int) -> None:
    held = sample(clock_event_reasons=reason)
    assert judged(*[held] * 5).healthy
    out = judged(*[held] * 6)
    assert out.signal is signals.CLOCKS_HELD
    assert judged(*[held] * 6, *[WELL] * 19).signal is signals.CLOCKS_HELD
    assert judged(*[held] * 6, *[WELL] * 24).healthy
    assert judged(*[sample(clock_event_reasons=0x4)] * 60).healthy


def test_a_link_that_was_up_and_is_down_takes_a_card_out_until_it_was_up_for_ten_minutes() -> None:
    up, down = sample(links_up=12), sample(links_up=11)
    assert judged(down, down).healthy, "it never had more"
    assert judged(up, down).signal is signals.LINKS
    assert judged(up, down, *[up] * 18).signal is signals.LINKS
    assert judged(up, down, *[up] * 25).healthy


def test_replays_count_by_the_minute() -> None:
    slow = [sample(pcie_replays=number * 4) for number in range(10)]
    fast = [sample(pcie_replays=number * 5) for number in range(10)]
    assert judged(*slow).healthy
    assert judged(*fast).signal is signals.PCIE_REPLAYS


def test_a_width_is_compared_with_the_cards_own_past_and_counts_when_it_lasts() -> None:
    slot, full = sample(pcie_width=8), sample(pcie_width=16)
    assert judged(*[slot] * 60).healthy, "its slot has no more lanes"
    assert judged(full, *[slot] * 19, full).healthy, "it saved power"
    narrow = judged(full, *[slot] * 22)
    assert narrow.signal is signals.PCIE_WIDTH
    assert on_sample(on_repair(narrow), slot, 60 * MINUTE_MS).healthy, "a verdict that was overruled is over"


@pytest.mark.parametrize("signal", [signal for signal in SIGNALS if signal.takes_out], ids=lambda each: each.cause)
def test_any_signal_can_be_switched_off(signal: signals.Signal) -> None:
    ignored = {signal.cause}
    for xid in signal.xids:
        assert on_xid(Health(), xid, None, 0, ignored).healthy
    failed = on_failure(Health(), "gone", 0, signal, ignored=ignored)
    assert failed.signal is None, "no case for a repair"
    everything = HealthSample(
        remap_pending=True, remap_failed=True, uncorrected_errors=1, margin_c=0, fabric_state=1, links_up=0
    )
    health = Health()
    for number in range(3):
        health = on_sample(health, everything, number * MINUTE_MS, ignored=ignored)
    assert health.signal is not None, "others are masked by none"
    assert health.signal.cause != signal.cause
    silent = on_failure(on_failure(Health(), "x", 0), "x", 45_000, ignored={"not-answering"})
    assert silent.signal is None


def test_heat_needs_five_degrees_to_spare_and_the_fabric_its_registration() -> None:
    assert judged(sample(margin_c=0)).signal is signals.HOT
    assert judged(sample(margin_c=0), sample(margin_c=4)).signal is signals.HOT
    assert judged(sample(margin_c=0), *[sample(margin_c=5)] * 4).healthy
    assert judged(sample(fabric_state=2)).signal is signals.FABRIC
    assert judged(sample(fabric_state=0)).healthy
    assert judged(sample(fabric_state=3)).healthy


def test_a_silent_device_is_a_case_for_a_repair_after_45_seconds_and_the_nodes_own_trouble_never_is() -> None:
    health = on_failure(Health(), "no answer", 0)
    assert not health.healthy
    assert health.signal is None
    assert on_failure(health, "no answer", 44_999).signal is None
    assert on_failure(health, "no answer", 45_000).signal is signals.NOT_ANSWERING
    node = on_failure(Health(), "the disk is full", 0, silent=False)
    assert on_failure(node, "the disk is full", 900_000, silent=False).signal is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.", (79, None, None)),
        ("3,1,2,-;NVRM: Xid (PCI:0000:3B:00): 31, pid=1234, name=python, MMU Fault", (31, None, 1234)),
        ("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid='<unknown>', name=<unknown>, x", (31, None, None)),
        ("3,1,2,-;NVRM: Xid (PCI:0000:3b:00 GPU-I:05): 13, pid=7, Graphics", (13, 5, 7)),
        ("3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 45, pid=9, Ch 00000008", (45, None, None)),
        ("3,1,2,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module", None),
        ("3,1,2,-;NVRM: Xid (PCI:zz): 31", None),
        ("", None),
    ],
)
def test_lines_of_the_kernels_log(line: str, found: tuple[int, int | None, int | None] | None) -> None:
    parsed = parse(line)
    if found is None:
        assert parsed is None
        return
    assert parsed is not None
    bus, event = parsed
    assert bus == bus_of("00000000:3B:00.0") == "0000:3b:00"
    assert (event.xid, event.gpu_instance_id, event.pid) == found


@given(st.text(max_size=200))
def test_any_line_is_read_or_passed_over(text: str) -> None:
    parse(text)
    parse(f"NVRM: Xid (PCI:0000:3b:00): {text}")


async def test_a_flood_of_lines_is_read_within_its_bound_and_what_was_lost_is_counted(tmp_path: Path) -> None:
    fifo = tmp_path / "kmsg"
    os.mkfifo(fifo)
    taken: list[tuple[DeviceEvent, int]] = []
    come = asyncio.Event()

    async def take(event: DeviceEvent, times: int) -> None:
        taken.append((event, times))
        come.set()

    log = KernelLog(fifo, lambda bus: "GPU-1" if bus == "0000:3b:00" else "", take)
    running = asyncio.create_task(log.run())
    end = await asyncio.to_thread(os.open, fifo, os.O_WRONLY)
    try:
        flood = b"6,1,2,-;something else that the kernel says\n" * 500
        for _ in range(3 * LINES_A_SECOND // 500):
            await asyncio.to_thread(os.write, end, flood)
        await asyncio.to_thread(os.write, end, b"3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 79, off\n" * 3)
        async with asyncio.timeout(30):
            await come.wait()
    finally:
        os.close(end)
        running.cancel()
    assert log.lost, "it read no more than its bound in a second"
    assert sum(times for _, times in taken) <= 3
    assert taken[0][0].uuid == "GPU-1"


async def test_a_log_that_was_overwritten_before_it_was_read_is_read_on_and_the_gap_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    read, answers = os.read, [BrokenPipeError(errno.EPIPE, "overwritten"), PermissionError(errno.EPERM, "not now")]

    def overwritten(descriptor: int, length: int) -> bytes:
        if threading.current_thread().name == "kernel log" and answers:
            raise answers.pop(0)
        return read(descriptor, length)

    monkeypatch.setattr(os, "read", overwritten)
    monkeypatch.setattr(kmsg, "RETRY_S", 0.01)
    seen: list[int] = []
    there = asyncio.Event()

    async def take(event: DeviceEvent, times: int) -> None:
        assert event.xid is not None
        seen.append(event.xid)
        there.set()

    log = KernelLog(path, lambda bus: "GPU-a", take)
    writer = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    task = asyncio.create_task(log.run())
    try:
        os.write(writer, b"3,1,2,-;NVRM: Xid (PCI:0000:01:00): 79, pid=1, off the bus\n")
        async with asyncio.timeout(30):
            await there.wait()
        assert seen == [79]
        assert log.lost == 1
        assert not answers, "it was refused once, and tried again"
    finally:
        task.cancel()
        os.close(writer)


def test_an_interrupted_order_is_begun_once_more_and_a_restart_is_told_by_the_boot() -> None:
    reset = CareOrder(1, Remedy.RESET, ("GPU-1",))
    again = interrupted(Begun(reset, "boot-1"), "boot-1")
    assert isinstance(again, Begun)
    over = interrupted(again, "boot-1")
    assert isinstance(over, CareResult)
    assert over.problem
    reboot = CareOrder(2, Remedy.REBOOT, ("GPU-1",))
    done = interrupted(Begun(reboot, "boot-1"), "boot-2")
    assert isinstance(done, CareResult)
    assert not done.problem
