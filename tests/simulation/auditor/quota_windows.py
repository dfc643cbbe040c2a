"""Which window of a quota is open: read off the wall at the very moment, with no knowledge of how edges are found."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

OUTSIDE = -1
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
PATIENCE_MS = 30_000
"""An edge is in the journal so long afterwards, however many commits fail meanwhile."""


class QuotaWindows:
    """What is declared, and facts about what is in force."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._quotas: dict[tuple[str, str], dict[str, Any]] = {}
        """By ("t" or "q", name), as declared."""
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        """The window that is in force by the facts, and until when."""
        books.handle({"quotas>": self._in_force})

    def declare(self, kind: str, name: str, quota: dict[str, Any] | None) -> None:
        """A quota was declared, or withdrawn."""
        self._known.pop((kind, name), None)
        self._quotas.pop((kind, name), None)
        if quota is not None:
            self._quotas[kind, name] = quota

    def now(self, kind: str, name: str) -> dict[str, Any]:
        """What a quota says at the time of the fact that is looked at."""
        quota = self._quotas.get((kind, name), {})
        number = open_at(quota, self._books.at_ms)
        if number == OUTSIDE:
            return quota
        window = quota["windows"][number]
        return {**quota, **{key: window[key] for key in ("limit", "guaranteed", "models") if key in window}}

    def limits_at_some_time(self, kind: str, name: str) -> bool:
        """Whether its limits differ by the time."""
        return bool(self._quotas.get((kind, name), {}).get("windows"))

    def _in_force(self, fact: list[Any]) -> str:
        for kind, name, number, until_ms, following, unknown in fact[2]:
            quota = self._quotas.get((kind, name))
            if quota is None or not quota.get("windows"):
                return f"{kind} {name} has no windows, but window {number} is in force"
            if unknown:
                return f"{kind} {name} has a window in a zone that is not known"
            if number != open_at(quota, fact[1]):
                return f"window {number} of {kind} {name} is in force, not {open_at(quota, fact[1])}"
            if until_ms and (until_ms <= fact[1] or open_at(quota, until_ms - 1) != number):
                return f"window {number} of {kind} {name} is not in force until {until_ms}"
            if until_ms and not number != following == open_at(quota, until_ms):
                return f"window {following} of {kind} {name} does not follow at {until_ms}"
            self._known[kind, name] = number, until_ms
        return ""

    def overdue(self) -> str:
        """What should be in force by now."""
        now_ms, led_ms = self._books.at_ms, self._books.windows.led_since_ms
        for (kind, name), (number, until_ms) in self._known.items():
            if until_ms and now_ms > max(until_ms, led_ms) + PATIENCE_MS:
                return f"window {number} of {kind} {name} is still in force, which was over at {until_ms}"
        return ""


def open_at(quota: dict[str, Any], at_ms: int) -> int:
    """The first window that the wall says is open."""
    for number, window in enumerate(quota.get("windows", ())):
        if _is_open(window["when"], at_ms):
            return number
    return OUTSIDE


def _is_open(when: str, at_ms: int) -> bool:
    """All zones here are far from a day on which clocks change, so the wall decides."""
    words = when.split()
    days, hours, zone = words.pop(0), "00:00-24:00", "UTC"
    if words and ":" in words[0]:
        hours = words.pop(0)
    if words:
        zone = words.pop(0)
    wall = datetime.fromtimestamp(at_ms / 1000, ZoneInfo(zone))
    minute = wall.hour * 60 + wall.minute
    start, end = (int(part[:2]) * 60 + int(part[3:]) for part in hours.split("-"))
    if start < end:
        return _covers(days, wall) and start <= minute < end
    return (_covers(days, wall) and minute >= start) or (_covers(days, wall - timedelta(days=1)) and minute < end)


def _covers(days: str, wall: datetime) -> bool:
    number = wall.weekday()
    if days in ("daily", "weekdays", "weekends"):
        return days == "daily" or (number < 5) == (days == "weekdays")
    for part in days.split(","):
        first, _, last = part.partition("-")
        begin, end = DAYS.index(first), DAYS.index(last or first)
        if begin <= number <= end:
            return True
    return False
