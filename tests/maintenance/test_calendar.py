"""When windows are: weeks that wrap, clocks that are put forward and back, and times that nobody's clock shows."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.books.maintenance import Occurrence, Phase, WindowSpec, next_occurrence, shown

ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",  # put forward by half an hour
    "Asia/Kathmandu",  # 05:45
    "Pacific/Apia",
    "Africa/Casablanca",  # put back for Ramadan
)
DAY = timedelta(days=1)
FIRST = datetime(2026, 1, 5)  # noqa: DTZ001 - a time on a wall clock


def ms(text: str) -> int:
    """Milliseconds of a time in UTC."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def window(start: str, end: str, zone: str = "UTC", *, weekly: bool = True) -> WindowSpec:
    return WindowSpec("w", start, end, zone, weekly, pool="default")


def test_a_window_is_held_once_or_every_week_for_ever() -> None:
    once = window("2026-11-28T22:00", "2026-11-29T06:00", weekly=False)
    held = Occurrence(ms("2026-11-28T22:00"), ms("2026-11-29T06:00"))
    assert next_occurrence(once, 0) == held
    assert next_occurrence(once, held.ends_ms - 1) == held
    assert next_occurrence(once, held.ends_ms) is None
    weekly = window("2026-11-28T22:00", "2026-11-29T06:00")
    assert next_occurrence(weekly, 0) == held
    assert next_occurrence(weekly, held.ends_ms) == Occurrence(ms("2026-12-05T22:00"), ms("2026-12-06T06:00"))
    assert next_occurrence(weekly, ms("2031-01-01T00:00")) == Occurrence(ms("2031-01-04T22:00"), ms("2031-01-05T06:00"))


def test_the_clock_on_the_wall_decides_when_it_is_put_forward_or_back() -> None:
    spec = window("2026-03-21T22:00", "2026-03-22T06:00", "Europe/Berlin")
    winter = next_occurrence(spec, ms("2026-03-20T00:00"))
    assert winter == Occurrence(ms("2026-03-21T21:00"), ms("2026-03-22T05:00"))
    across = next_occurrence(spec, ms("2026-03-25T00:00"))
    assert across == Occurrence(ms("2026-03-28T21:00"), ms("2026-03-29T04:00")), "an hour of that night was skipped"
    assert next_occurrence(spec, ms("2026-04-01T00:00")) == Occurrence(ms("2026-04-04T20:00"), ms("2026-04-05T04:00"))
    assert next_occurrence(spec, ms("2026-10-22T00:00")) == Occurrence(ms("2026-10-24T20:00"), ms("2026-10-25T05:00"))


def test_a_time_that_is_skipped_is_later_and_a_window_without_length_is_not_held() -> None:
    skipped = window("2026-03-22T02:30", "2026-03-22T05:00", "Europe/Berlin")
    assert next_occurrence(skipped, ms("2026-03-25T00:00")) == Occurrence(
        ms("2026-03-29T01:30"), ms("2026-03-29T03:00")
    ), "02:30 is 03:30 that night"
    nothing = window("2026-03-22T02:00", "2026-03-22T03:00", "Europe/Berlin")
    assert next_occurrence(nothing, ms("2026-03-25T00:00")) == Occurrence(
        ms("2026-04-05T00:00"), ms("2026-04-05T01:00")
    ), "there is no such hour that night"


def test_of_a_time_that_comes_twice_a_start_is_the_first_and_an_end_the_last() -> None:
    spec = window("2026-10-18T02:15", "2026-10-18T02:45", "Europe/Berlin")
    assert next_occurrence(spec, ms("2026-10-20T00:00")) == Occurrence(ms("2026-10-25T00:15"), ms("2026-10-25T01:45"))


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00", "2026-11-28T22:00Z", "2026-11-28T22:00+01:00"])
def test_what_is_no_time_on_a_wall_clock_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        next_occurrence(window(text, "2026-11-29T06:00"), 0)


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "../etc/passwd", "", "/etc/localtime"])
def test_what_is_no_zone_is_refused(zone: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        next_occurrence(window("2026-11-28T22:00", "2026-11-29T06:00", zone), 0)


def test_phases_follow_one_another_without_a_gap() -> None:
    held = Occurrence(1000, 2000)
    phases = [held.phase(100, at) for at in (899, 900, 999, 1000, 1999, 2000)]
    assert phases == [Phase.PLANNED, Phase.CLOSING, Phase.CLOSING, Phase.OPEN, Phase.OPEN, None]
    assert held.phase(0, 999) is Phase.PLANNED


def test_a_moment_is_shown_in_utc() -> None:
    assert shown(ms("2026-11-28T22:00")) == "2026-11-28 22:00 UTC"


walls = st.integers(0, 7 * 24 * 4 - 1).map(lambda quarter: FIRST + quarter * timedelta(minutes=15))
lengths = st.integers(1, 7 * 24 * 4 - 1).map(lambda quarters: quarters * timedelta(minutes=15))
moments = st.integers(ms("2026-01-01T00:00"), ms("2036-01-01T00:00"))


def naive_search(spec: WindowSpec, now_ms: int) -> Occurrence | None:
    """The same by brute force: every week from the first, by the zone's own conversion to UTC and back."""
    zone = ZoneInfo(spec.zone)
    start, end = datetime.fromisoformat(spec.start), datetime.fromisoformat(spec.end)
    for week in range(1100):
        starts = [(start + week * 7 * DAY).replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        ends = [(end + week * 7 * DAY).replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)]
        begins = starts[0]  # a skipped time is the later one of the two, and of a time that comes twice the first
        over = max(ends)
        held = Occurrence(int(begins.timestamp() * 1000), int(over.timestamp() * 1000))
        if held.starts_ms < held.ends_ms and now_ms < held.ends_ms:
            return held
    return None


@given(zone=st.sampled_from(ZONES), start=walls, length=lengths, now_ms=moments)
def test_the_next_one_is_the_first_of_all_that_is_not_over(
    zone: str, start: datetime, length: timedelta, now_ms: int
) -> None:
    spec = window(start.isoformat(), (start + length).isoformat(), zone)
    assert next_occurrence(spec, now_ms) == naive_search(spec, now_ms)


@given(zone=st.sampled_from(ZONES), start=walls, length=lengths, now_ms=moments)
def test_held_by_held_a_weekly_window_goes_on_and_shows_its_times_on_the_wall(
    zone: str, start: datetime, length: timedelta, now_ms: int
) -> None:
    spec = window(start.isoformat(), (start + length).isoformat(), zone)
    place = ZoneInfo(zone)
    for _ in range(60):  # more than a year: every change of the clock is met
        held = next_occurrence(spec, now_ms)
        assert held is not None
        assert held.starts_ms < held.ends_ms
        assert held.ends_ms > now_ms
        for at_ms, wall in ((held.starts_ms, start), (held.ends_ms, start + length)):
            there = datetime.fromtimestamp(at_ms / 1000, place)
            exact = (there.weekday(), there.time()) == (wall.weekday(), wall.time())
            later = there.replace(fold=0, tzinfo=None) - timedelta(hours=24)
            assert exact or _skips(place, later, timedelta(hours=30)), "only where the clock was put forward"
        now_ms = held.ends_ms


def _skips(zone: ZoneInfo, after: datetime, within: timedelta) -> bool:
    """Whether clocks were put forward in this time."""
    from_, to = after.replace(tzinfo=zone), (after + within).replace(tzinfo=zone)
    return to.utcoffset() != from_.utcoffset()


def test_any_order_of_questions_gives_the_same_answers() -> None:
    spec = window("2026-01-05T22:00", "2026-01-06T06:00", "Europe/Berlin")
    moments_ms = [ms("2026-01-01T00:00") + day * 86_400_000 for day in range(400)]
    answers = {at: next_occurrence(spec, at) for at in moments_ms}
    random.Random(7).shuffle(moments_ms)
    assert all(next_occurrence(spec, at) == answers[at] for at in moments_ms)
