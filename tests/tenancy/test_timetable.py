"""When a window of a quota is open, in words that people use, also on the days when clocks are put forward or back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.books.tenancy.in_force import OUTSIDE, in_force, steps
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, QuotaWindow
from aliquot.coordinator.core.books.tenancy.timetable import occurrences, read_timetable, wall_text

HOUR_MS = 3_600_000
ZURICH = ZoneInfo("Europe/Zurich")


def at(text: str, zone: ZoneInfo | None = None, *, fold: int = 0) -> int:
    """Milliseconds since the epoch of a time on the wall."""
    wall = datetime.fromisoformat(text).replace(tzinfo=zone or UTC, fold=fold)
    return int(wall.timestamp() * 1000)


def quota(*whens: str) -> Quota:
    """Limited to as many devices as the number of the window says, 100 outside of all."""
    windows = tuple(QuotaWindow(when, limit=Amount(1000 * number, -1)) for number, when in enumerate(whens))
    return Quota(limit=Amount(100_000, -1), windows=windows)


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        ("weekdays 08:00-18:00 Europe/Zurich", "weekdays 08:00-18:00 Europe/Zurich"),
        ("mon-fri 8:00-18:00", "weekdays 08:00-18:00"),
        ("sat,sun", "weekends"),
        ("fri-mon 22:00-06:00 UTC", "mon,fri-sun 22:00-06:00"),
        ("22:00-06:00", "daily 22:00-06:00"),
        ("daily 00:00-24:00 Asia/Tokyo", "daily Asia/Tokyo"),
        ("Weekdays 12:00-24:00", "weekdays 12:00-24:00"),
        ("America/New_York", "daily America/New_York"),
    ],
)
def test_words_are_read_and_written_in_their_shortest_form(text: str, shortest: str) -> None:
    assert read_timetable(text).text == shortest
    assert read_timetable(shortest) == read_timetable(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "says nothing"),
        ("mon-foo 08:00-10:00", "'foo' is no day"),
        ("weekdays 08:00", "are no hours"),
        ("weekdays 08:00-25:00", "are no hours"),
        ("weekdays 08:61-09:00", "are no hours"),
        ("weekdays 08:00-08:00", "begins when it ends"),
        ("weekdays 08:00-18:00 Europe/Zuerich", "'Europe/Zuerich' is not known here"),
        ("weekdays 08:00-18:00 ../../etc/passwd", "is not known here"),
        ("weekdays 08:00-18:00 UTC and more", "too much"),
        ("x" * 101, "at most 100"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_timetable(text)


def test_an_hour_that_is_skipped_and_one_that_comes_twice() -> None:
    spring = at("2026-03-29T00:00", ZURICH)  # 02:00 becomes 03:00
    night = read_timetable("daily 01:00-02:30 Europe/Zurich")
    assert next(occurrences(night, spring, 1)) == (at("2026-03-29T00:00"), at("2026-03-29T01:30"))  # ends at 03:30
    assert next(occurrences(read_timetable("daily 02:30-04:00 Europe/Zurich"), spring, 1)) == (
        at("2026-03-29T01:30"),  # begins at 03:30
        at("2026-03-29T02:00"),
    )
    autumn = at("2026-10-25T00:00", ZURICH)  # 03:00 becomes 02:00
    twice = read_timetable("daily 02:00-03:00 Europe/Zurich")
    assert next(occurrences(twice, autumn, 1)) == (at("2026-10-25T00:00"), at("2026-10-25T02:00"))  # two hours
    assert next(occurrences(read_timetable("sun Europe/Zurich"), autumn, 1)) == (
        at("2026-10-24T22:00"),
        at("2026-10-25T23:00"),  # a day of 25 hours
    )


def test_hours_on_the_wall_stay_the_same_all_year() -> None:
    day = read_timetable("weekdays 08:00-18:00 Europe/Zurich")
    for starts_ms, ends_ms in occurrences(day, at("2026-01-01T00:00"), 365):
        start, end = (datetime.fromtimestamp(ms // 1000, ZURICH) for ms in (starts_ms, ends_ms))
        assert (start.hour, end.hour) == (8, 18)
        assert start.weekday() < 5
    assert wall_text("weekdays 08:00-18:00 Europe/Zurich", at("2026-07-06T16:00")) == "2026-07-06 18:00 Europe/Zurich"


def test_the_first_window_that_is_open_is_in_force() -> None:
    both = quota("weekdays 12:00-13:00", "weekdays 08:00-18:00", "weekends")
    monday = at("2026-11-23T07:00")
    assert [((step.at_ms - monday) // HOUR_MS, step.window) for step in steps(both, monday)][:6] == [
        (0, OUTSIDE),
        (1, 1),
        (5, 0),
        (6, 1),
        (11, OUTSIDE),
        (25, 1),
    ]
    found = in_force("t", "a", both, at("2026-11-28T10:00"))  # a Saturday
    assert (found.window, found.until_ms, found.following) == (2, at("2026-11-30T00:00"), OUTSIDE)


def test_a_window_that_never_closes_has_no_end() -> None:
    assert in_force("t", "a", quota("daily"), at("2026-11-23T07:00")).until_ms == 0
    hidden = in_force("t", "a", quota("daily", "weekends"), at("2026-11-23T07:00"))
    assert (hidden.window, hidden.until_ms) == (0, 0)


def test_a_zone_that_is_no_longer_known_leaves_what_was_in_force() -> None:
    windows = quota("weekdays 08:00-18:00 Mars/Olympus")
    before = in_force("t", "a", quota("daily"), at("2026-11-23T07:00"))
    found = in_force("t", "a", windows, at("2026-11-23T09:00"), before)
    assert found.unknown
    assert (found.window, found.until_ms) == (0, at("2026-11-23T10:00"))


_ZONES = ("UTC", "Europe/Zurich", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago")


@st.composite
def _texts(draw: st.DrawFn) -> str:
    days = draw(st.lists(st.sampled_from(("mon", "tue", "wed", "thu", "fri", "sat", "sun")), min_size=1, unique=True))
    start, end = draw(st.lists(st.integers(0, 95), min_size=2, max_size=2, unique=True))
    hours = "-".join(f"{quarter // 4:02}:{quarter % 4 * 15:02}" for quarter in (start, end))
    return f"{','.join(days)} {hours} {draw(st.sampled_from(_ZONES))}"


@given(st.lists(_texts(), min_size=1, max_size=3), st.integers(0, 366 * 24 * 4))
def test_what_is_in_force_is_so_until_it_changes_and_follows_the_wall(texts: list[str], quarter: int) -> None:
    windows = quota(*texts)
    now_ms = at("2026-01-01T00:00") + quarter * HOUR_MS // 4
    found = in_force("t", "a", windows, now_ms)
    assert found.until_ms == 0 or now_ms < found.until_ms <= now_ms + 15 * 24 * HOUR_MS
    for later_ms in range(now_ms, (found.until_ms or now_ms + HOUR_MS), 4 * HOUR_MS):
        assert in_force("t", "a", windows, later_ms).window == found.window
    if found.until_ms:
        assert in_force("t", "a", windows, found.until_ms).window == found.following != found.window
    assert read_timetable(texts[0]).text == read_timetable(read_timetable(texts[0]).text).text
    for step in steps(windows, now_ms):
        _agrees_with_the_wall(texts, step.at_ms, step.window)


def _agrees_with_the_wall(texts: list[str], at_ms: int, window: int) -> None:
    """Far from changes of clocks, the wall says it too."""
    for number, text in enumerate(texts):
        days, hours, name = text.split()
        wall = datetime.fromtimestamp(at_ms // 1000, ZoneInfo(name))
        offsets = {(wall + timedelta(days=shift)).utcoffset() for shift in (-2, -1, 0, 1)}
        if len(offsets) > 1:
            return
        start, end = (int(part[:2]) * 60 + int(part[3:]) for part in hours.split("-"))
        minute = wall.hour * 60 + wall.minute
        today, before = (f"{wall - timedelta(days=back):%a}".lower() in days.split(",") for back in (0, 1))
        is_open = today and start <= minute < (end if end > start else 1440)
        if end < start:
            is_open = is_open or (before and minute < end)
        if is_open:
            assert window == number
            return
    assert window == OUTSIDE
