"""Demand by the hour in the books: durable, bounded, and never written twice."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.demand import HOUR_MS, HOURS_MAX, SERIES_MAX, WHOLE
from aliquot.coordinator.core.evolve.snapshot import state_hash
from tests.core.harness import Books


def noted(books: Books, hour: int, covered_permille: int = 1000, **milli: int) -> int:
    """Take an hour down as soon as it is over; how many facts that made."""
    books.now_ms = max(books.now_ms, (hour + 1) * HOUR_MS)
    series = ((WHOLE, sum(milli.values())), *((f"tenant/{name}", value) for name, value in milli.items()))
    return len(books.do(c.NoteDemand(hour, covered_permille, series)).facts)


def test_hours_survive_replay_and_snapshot_and_readers_see_them() -> None:
    books = Books()
    assert noted(books, 10, a=1500) == 1
    assert noted(books, 11, a=500, b=250) == 1
    assert noted(books, 13, b=100) == 1
    wanted = {
        WHOLE: [1500, 750, None, 100],
        "tenant/a": [1500, 500, None, 0],
        "tenant/b": [250, None, 100],
    }
    assert books.state.demand.series() == wanted
    assert books.replayed().demand.series() == wanted
    assert books.restored().demand.series() == wanted
    assert state_hash(books.restored()) == state_hash(books.state)
    assert books.read().books.demand.series() == wanted


def test_an_hour_is_taken_down_once_when_it_is_over_and_was_seen() -> None:
    books = Books()
    assert noted(books, 10, a=1) == 1
    assert noted(books, 10, a=2) == 0
    assert noted(books, 9, a=2) == 0
    assert noted(books, 11, covered_permille=499, a=2) == 0
    now_ms = books.now_ms
    assert books.do(c.NoteDemand(now_ms // HOUR_MS, 1000, ((WHOLE, 1),))).facts == ()
    assert books.state.demand.latest == 10


def test_what_is_kept_is_bounded() -> None:
    books = Books()
    many = {f"t{number:04d}": number + 1 for number in range(SERIES_MAX + 50)}
    noted(books, 1, **many)
    ((_, hour),) = books.state.demand.after(-1)
    assert len(hour) == SERIES_MAX
    kept = dict(hour)
    assert kept[WHOLE] == sum(many.values())
    assert "tenant/t0000" not in kept
    assert f"tenant/t{SERIES_MAX + 49:04d}" in kept
    for number in range(2, HOURS_MAX + 10):
        books.state.demand.note(number, ((WHOLE, number),))
    assert len(books.state.demand.numbers) == HOURS_MAX
    assert books.state.demand.numbers[0] == 10


def test_hours_are_utc_so_that_each_day_has_twenty_four() -> None:
    """Over the night in which European clocks go back (25 October 2026, 01:00 UTC) no hour comes twice."""
    books = Books()
    first = 1_792_886_400 // 3600  # 25 October 2026, 00:00 UTC
    for hour in range(first, first + 24):
        assert noted(books, hour, a=hour - first + 1) == 1
    assert books.state.demand.series()["tenant/a"] == list(range(1, 25))
