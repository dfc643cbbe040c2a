"""When a window is open: `weekdays 08:00-18:00 Europe/Zurich`, as people say it.

Quotas and rules of elastic leases have such windows. Up to three words, each of which may be left out: days (`daily`,
`weekdays`, `weekends`, or names as in `mon-thu,sat`), hours on the wall (`22:00-06:00` goes on into the next day,
which need not be one of the days; `24:00` is the end of the day), and a time zone of the IANA database (else UTC).
Where clocks are put forward or back the rules are those of maintenance windows: an hour that is skipped counts as if
the clock had not been put forward, and of one that comes twice a window has both if they are all its own. The zone's
table is asked only where something is decided; facts carry the milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from aliquot.coordinator.core.books.maintenance import first_ms, last_ms, zone_of

TEXT_MAX = 100
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_NAMED = {"daily": tuple(range(7)), "weekdays": tuple(range(5)), "weekends": (5, 6)}
_HOURS = re.compile(r"(\d{1,2}):(\d{2})-(\d{1,2}):(\d{2})")
_DAY_LIST = re.compile(r"[a-z]{3}(-[a-z]{3})?(,[a-z]{3}(-[a-z]{3})?)*")
_EXAMPLE = "such as `weekdays 08:00-18:00 Europe/Zurich`, `fri-sun`, or `daily 22:00-06:00`"


class Timetable(NamedTuple):
    """A recurring window, read."""

    days: tuple[int, ...]
    """On which it begins, Monday is 0; rising."""
    start_min: int
    """Minutes after midnight on the wall."""
    end_min: int
    """Beyond a day's 1,440 where it goes on into the next day."""
    zone: str

    @property
    def text(self) -> str:
        """The same in its shortest words: equal timetables have equal text."""
        days = next((name for name, numbers in _NAMED.items() if numbers == self.days), "") or _ranges(self.days)
        whole = self.start_min == 0 and self.end_min == 1440
        hours = "" if whole else f" {_clock(self.start_min)}-{_clock(self.end_min)}"
        return f"{days}{hours}" + ("" if self.zone == "UTC" else f" {self.zone}")


def read_timetable(text: str) -> Timetable:
    """Raises ValueError, saying what is wrong and how it is said right."""
    if len(text) > TEXT_MAX:
        raise ValueError(f"{len(text)} characters; at most {TEXT_MAX}")
    return _read(text)


@lru_cache(maxsize=4096)
def _read(text: str) -> Timetable:
    words = text.split()
    days: tuple[int, ...] = _NAMED["daily"]
    hours, zone = (0, 1440), "UTC"
    if not words:
        raise ValueError(f"it says nothing; {_EXAMPLE}")
    if words[0].lower() in _NAMED or _DAY_LIST.fullmatch(words[0].lower()):
        days = _read_days(words.pop(0).lower())
    if words and ":" in words[0]:
        hours = _read_hours(words.pop(0))
    if words:
        zone = words.pop(0)
    if words:
        raise ValueError(f"{' '.join(words)!r} is too much: days, then hours, then a zone; {_EXAMPLE}")
    try:
        zone_of(zone)
    except ValueError as error:
        raise ValueError(f"{error}; a zone is a name of the IANA database, {_EXAMPLE}") from error
    return Timetable(days, *hours, zone)


def _read_days(word: str) -> tuple[int, ...]:
    if word in _NAMED:
        return _NAMED[word]
    found: set[int] = set()
    for part in word.split(","):
        first, _, last = part.partition("-")
        for name in filter(None, (first, last)):
            if name not in _DAYS:
                raise ValueError(f"{name!r} is no day of the week: mon tue wed thu fri sat sun; {_EXAMPLE}")
        start = _DAYS.index(first)
        length = (_DAYS.index(last) - start) % 7 if last else 0
        found.update((start + number) % 7 for number in range(length + 1))
    return tuple(sorted(found))


def _read_hours(word: str) -> tuple[int, int]:
    match = _HOURS.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} are no hours; {_EXAMPLE}")
    start_h, start_m, end_h, end_m = map(int, match.groups())
    start, end = start_h * 60 + start_m, end_h * 60 + end_m
    if start_m > 59 or end_m > 59 or start >= 1440 or end > 1440:
        raise ValueError(f"{word!r} are no hours: from 00:00 to 24:00")
    if start == end:
        raise ValueError(f"{word!r} begins when it ends; leave the hours out where it lasts all day")
    return start, end if end > start else end + 1440


def _clock(minutes: int) -> str:
    hour, minute = divmod(minutes if minutes <= 1440 else minutes - 1440, 60)
    return f"{hour:02}:{minute:02}"


def _ranges(days: tuple[int, ...]) -> str:
    parts: list[str] = []
    for day in days:
        if parts and day - 1 in days:
            parts[-1] = f"{parts[-1].partition('-')[0]}-{_DAYS[day]}"
        else:
            parts.append(_DAYS[day])
    return ",".join(parts)


def occurrences(timetable: Timetable, from_ms: int, days: int) -> Iterator[tuple[int, int]]:
    """When it is open, as [start, end) in order: of all that are not over at `from_ms`, those that begin within so many
    days. Of two that touch each other, each is one. Raises ValueError where the zone is not known here.
    """
    zone = zone_of(timetable.zone)
    today = datetime.fromtimestamp(from_ms // 1000, UTC).astimezone(zone).date()
    for number in range(-2, days + 1):
        day = today + timedelta(days=number)
        if day.weekday() in timetable.days:
            starts_ms = first_ms(zone, _wall(day, timetable.start_min))
            ends_ms = last_ms(zone, _wall(day, timetable.end_min))
            if starts_ms < ends_ms and from_ms < ends_ms:
                yield starts_ms, ends_ms


def is_open(when: str, now_ms: int) -> bool:
    """Whether that timetable is open now. Raises ValueError where it can't be read, or its zone is not known here."""
    return any(starts_ms <= now_ms for starts_ms, _ in occurrences(read_timetable(when), now_ms, days=0))


def _wall(day: date, minutes: int) -> datetime:
    return datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)  # noqa: DTZ001 - on the wall


def wall_text(when: str, at_ms: int) -> str:
    """A moment for people, on the wall where a window is: `2026-11-24 18:00 Europe/Zurich`."""
    try:
        name = read_timetable(when).zone
        zone = zone_of(name)
    except ValueError:
        name, zone = "UTC", UTC
    return f"{datetime.fromtimestamp(at_ms // 1000, zone):%Y-%m-%d %H:%M} {name}"
