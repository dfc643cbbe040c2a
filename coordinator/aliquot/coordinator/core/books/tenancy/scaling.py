"""Rules that hold elastic leases of a queue back: by time of day, by requests waiting, by how busy their devices are.

Elastic leases grow by themselves into what is idle. A rule says when they should not, and how much they then keep:
their start, or their least.
"""

from __future__ import annotations

import enum

import msgspec

from aliquot.coordinator.core.books.tenancy.timetable import is_open


class Keep(enum.StrEnum):
    """How much an elastic lease keeps while a rule applies."""

    START = "start"
    LEAST = "least"


class ScaleRule(msgspec.Struct, frozen=True, omit_defaults=True):
    """One rule. It applies while all of its conditions do."""

    keep: Keep = Keep.START
    when: str = ""
    """A timetable, as windows of quotas have them; empty: at any time."""
    waiting_at_least: int = 0
    """So many requests wait in the queue, or below it; 0: however many."""
    busy_below_permille: int = 0
    """In the latest looks it made less of its share than this, and that was measured; 0: however busy."""


def in_window(rule: ScaleRule, now_ms: int) -> bool:
    """Whether the rule's window is open; one without a window always is, one in a zone that is not known here never."""
    if not rule.when:
        return True
    try:
        return is_open(rule.when, now_ms)
    except ValueError:
        return False
