"""Rules that hold elastic leases of a queue back: by time of day, by requests waiting, by how busy their devices are.

Elastic leases grow by themselves into what is idle. A rule says when they should not, and how much they then keep:
their start, or their least. Times are UTC, and cron expressions have five fields: minute, hour, day of the month,
month, day of the week (0 or 7 is Sunday). As everywhere, a day matches when either of its two fields does, where both
are restricted.
"""

from __future__ import annotations

import enum
from functools import lru_cache
from typing import NamedTuple

import msgspec

_DAY_MS = 86_400_000
_LOOK_BACK_DAYS = 8
WINDOW_MS_MAX = 7 * _DAY_MS
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")


class Keep(enum.StrEnum):
    """How much an elastic lease keeps while a rule applies."""

    START = "start"
    LEAST = "least"


class ScaleRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule. It applies while all of its conditions do."""

    keep: Keep = Keep.START
    cron: str = ""
    """When a window begins; empty: at any time."""
    lasting_ms: int = 0
    """How long the window lasts."""
    waiting_at_least: int = 0
    """So many requests wait in the queue, or below it; 0: however many."""
    busy_below_permille: int = 0
    """The lease's own parts were less busy than this lately, and that was measured; 0: however busy."""


class Cron(NamedTuple):
    """A cron expression, read."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def matches_day(self, day: int) -> bool:
        """`day`: days since the Unix epoch."""
        _, month, of_month = civil(day)
        if month not in self.months:
            return False
        by_month, by_week = of_month in self.days, (day + 4) % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_month and by_week
        return by_month or by_week

    def last_before(self, now_ms: int) -> int | None:
        """The latest match that is not after `now_ms`, of the last eight days."""
        today, of_day = divmod(now_ms // 60_000, 1440)
        for back in range(_LOOK_BACK_DAYS + 1):
            if not self.matches_day(today - back):
                continue
            latest = of_day if not back else 1439
            for hour in reversed(self.hours):
                for minute in reversed(self.minutes):
                    if hour * 60 + minute <= latest:
                        return ((today - back) * 1440 + hour * 60 + minute) * 60_000
        return None


def civil(day: int) -> tuple[int, int, int]:
    """(year, month, day of the month) of a day since the Unix epoch, in the Gregorian calendar."""
    shifted = day + 719_468
    era, of_era = divmod(shifted, 146_097)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * of_year + 2) // 153
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (month <= 2)
    return year, month, of_year - (153 * shifted_month + 2) // 5 + 1


@lru_cache(maxsize=1024)
def read_cron(text: str) -> Cron:
    """Raises ValueError, saying which field is wrong."""
    fields = text.lower().split()
    if len(fields) != 5:
        raise ValueError(f"{text!r} has {len(fields)} fields, not five: minute, hour, day, month, day of the week")
    minute, hour, day, month, weekday = fields
    weekdays = _field("day of the week", weekday, 0, 7, _WEEKDAYS, 0)
    return Cron(
        minutes=tuple(sorted(_field("minute", minute, 0, 59))),
        hours=tuple(sorted(_field("hour", hour, 0, 23))),
        days=_field("day", day, 1, 31),
        months=_field("month", month, 1, 12, _MONTHS, 1),
        weekdays=frozenset(number % 7 for number in weekdays),
        any_day=day == "*",
        any_weekday=weekday == "*",
    )


def _field(name: str, text: str, low: int, high: int, words: tuple[str, ...] = (), first: int = 0) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        span, slash, step_text = part.partition("/")
        step = int(step_text) if slash and step_text.isdigit() else 1
        start_text, dash, end_text = span.partition("-")
        if span == "*":
            start, end = low, high
        else:
            start = _number(name, start_text, words, first)
            end = _number(name, end_text, words, first) if dash else (high if slash else start)
        if (slash and not step_text.isdigit()) or step < 1 or not low <= start <= end <= high:
            raise ValueError(f"{name} {part!r} is not within {low}-{high}")
        found.update(range(start, end + 1, step))
    return frozenset(found)


def _number(name: str, text: str, words: tuple[str, ...], first: int) -> int:
    if text in words:
        return words.index(text) + first
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"{name} {text!r} is no number")
    return int(text)


def in_window(rule: ScaleRule, now_ms: int) -> bool:
    """Whether the rule's window is open; one without a window always is."""
    if not rule.cron:
        return True
    began_ms = read_cron(rule.cron).last_before(now_ms)
    return began_ms is not None and now_ms < began_ms + rule.lasting_ms
