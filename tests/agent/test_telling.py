"""What is told of devices, and when."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from aliquot.agent.core import reports
from aliquot.agent.core.deltas import SETTLE_MS, Deadbands, DeltaTracker, DeviceReport, SliceUseReport, differs
from aliquot.agent.core.model import Actual, Reservation, SliceSpec
from aliquot.agent.core.reports import ReportQueue, report_of
from aliquot.agent.core.reservations import SliceStatus
from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2

MIB = 1 << 20
BASE = DeviceReport(
    "GPU-a", healthy=True, health_reason="", foreign_bytes=0, memory_used_bytes=1000 * MIB, gpu_percent=50
)


def tracker(min_interval_ms: int = 1000) -> DeltaTracker:
    found = DeltaTracker(min_interval_ms)
    assert found.reset([BASE], 0) == 1
    return found


def test_small_changes_are_kept_to_oneself_until_they_settle() -> None:
    mine = tracker()
    little = replace(BASE, memory_used_bytes=1010 * MIB)
    assert not mine.offer({"GPU-a": little}, 2_000)
    assert mine.seq == 1
    assert mine.offer({"GPU-a": little}, SETTLE_MS) == (little,)
    assert mine.seq == 2


def test_drift_is_measured_from_what_was_sent() -> None:
    mine = tracker()
    sent = [
        step
        for step in range(1, 20)
        if mine.offer({"GPU-a": replace(BASE, memory_used_bytes=(1000 + 10 * step) * MIB)}, step * 1000)
    ]
    assert sent == [7, 14]


def test_no_more_often_than_the_coordinator_can_listen() -> None:
    mine = tracker(min_interval_ms=5_000)
    changes = [replace(BASE, gpu_percent=step % 100) for step in range(0, 2000, 37)]
    sent = [at for at, report in enumerate(changes) if mine.offer({"GPU-a": report}, at * 1000)]
    assert sent
    assert all(later - earlier >= 5 for earlier, later in pairwise(sent))


def test_it_is_known_how_long_to_wait_before_something_may_be_sent() -> None:
    mine = tracker(min_interval_ms=5_000)
    news = replace(BASE, gpu_percent=90)
    assert mine.worth(news, 1_000)
    assert mine.wait_ms(1_000) == 4_000
    assert not mine.offer({"GPU-a": news}, 4_999)
    assert mine.wait_ms(5_000) == 0
    assert mine.offer({"GPU-a": news}, 5_000) == (news,)
    assert not mine.worth(news, 5_000)


def test_health_foreign_memory_and_processes_are_news_at_once() -> None:
    for news in (
        replace(BASE, healthy=False, health_reason="XID 79"),
        replace(BASE, foreign_bytes=1),
        replace(BASE, foreign_bytes=None),
        replace(BASE, slices=(SliceUseReport("s", 0, 1),)),
        replace(BASE, memory_used_bytes=None),
    ):
        assert differs(BASE, news, Deadbands())


@given(st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_what_is_within_no_band_is_told(old: int, new: int) -> None:
    told = differs(replace(BASE, memory_used_bytes=old), replace(BASE, memory_used_bytes=new), Deadbands())
    assert told == (abs(old - new) >= 64 * MIB or (old != new and 0 in (old, new)))


def test_confirmations_come_in_order_and_are_never_merged() -> None:
    line = ReportQueue()
    record = Reservation(SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 250, MIB))
    line.add([report_of(record, Actual()), report_of(record, Actual(limit_set=True))])
    assert [report.status.name for report in line.take(1)] == ["PENDING"]
    assert [report.status.name for report in line.take()] == ["ACTIVE"]
    assert not line.take()


@pytest.mark.parametrize(
    ("name", "band"),
    [
        ("foreign_bytes", 16 * MIB),
        ("memory_used_bytes", 64 * MIB),
        ("unattributed_bytes", 64 * MIB),
        ("gpu_percent", 5),
        ("memory_percent", 5),
        ("temperature_c", 3),
        ("power_mw", 15_000),
    ],
)
def test_each_value_is_told_from_its_own_band_on(name: str, band: int) -> None:
    sent = replace(BASE, **{name: 2 * band})
    for by, told in ((band - 1, False), (1 - band, False), (band, True), (-band, True)):
        assert differs(sent, replace(sent, **{name: 2 * band + by}), Deadbands()) == told


def test_what_slices_use_is_told_from_its_band_on() -> None:
    used = SliceUseReport("s", 100 * MIB, 2, 50)
    sent = replace(BASE, slices=(used,))
    for now, told in (
        (used, False),
        (replace(used, observed_bytes=164 * MIB - 1), False),
        (replace(used, observed_bytes=164 * MIB), True),
        (replace(used, observed_bytes=None), True),
        (replace(used, gpu_percent=54), False),
        (replace(used, gpu_percent=55), True),
        (replace(used, processes=1), True),
        (replace(used, slice_id="t"), True),
    ):
        assert differs(sent, replace(sent, slices=(now,)), Deadbands()) == told
    assert differs(sent, BASE, Deadbands())


def test_what_settles_is_told_to_the_millisecond_and_load_that_wavers_never() -> None:
    little = replace(BASE, memory_used_bytes=1001 * MIB)
    assert not tracker().worth(little, SETTLE_MS - 1)
    assert tracker().worth(little, SETTLE_MS)
    assert not tracker().worth(replace(BASE, gpu_percent=51, sampled_ms=7), SETTLE_MS)
    assert tracker().worth(replace(BASE, uuid="GPU-b"), 0), "nothing was said of that one yet"


def test_before_the_first_snapshot_nothing_is_waited_for() -> None:
    assert DeltaTracker(1000).wait_ms(5) == 0
    assert tracker().wait_ms(999) == 1


def test_a_line_that_grows_too_long_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "MAX_WAITING", 2)
    line, told = ReportQueue(), report_of(Reservation(SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 250, MIB)), Actual())
    line.add([told, told])
    assert (len(line), line.overflowed) == (2, False)
    line.add([told])
    assert (len(line), line.overflowed) == (1, True)
    line.clear()
    assert (len(line), line.overflowed) == (0, False)


def test_what_is_said_of_a_slice() -> None:
    record = Reservation(SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 250, MIB))
    actual = Actual(tier=Tier.WATCHDOG, tier_notes=("weak",), unserved="its process\nhas not answered")
    told = report_of(record, actual)
    assert (told.tier, told.detail) == (None, r"its process\nhas not answered"), "a tier holds once its limit is set"
    assert told.tier_notes == ("weak", told.detail)
    assert report_of(record, replace(actual, limit_set=True)).tier is Tier.WATCHDOG
    assert report_of(replace(record, quarantined=True), actual).detail == "quarantined"
    assert report_of(replace(record, quarantined=True, detail="broke"), actual).detail == "broke"
    assert report_of(replace(record, detail="broke"), actual, "now this").detail == "now this"


def test_what_is_told_of_a_slice_has_the_numbers_of_the_contract() -> None:
    told = {f"SLICE_STATUS_{name}": status.value for name, status in SliceStatus.__members__.items()}
    assert told == {name: number for name, number in agent_pb2.SliceStatus.items() if number}
