"""Which window of a quota is in force, and until when: found out once, when something is decided, and then a fact.

Nobody's lease is ended by a limit that comes down: what is held above it stays until it is given back, and nothing is
added meanwhile. A guarantee that goes up is reclaimed as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.books.tenancy.specs import Quota
from aliquot.coordinator.core.books.tenancy.timetable import occurrences, read_timetable

DAY_MS = 86_400_000
OUTSIDE = -1
"""In force outside of all windows: what the quota says of itself."""
WINDOWS_MAX = 16
_DAYS_KEPT = 8
"""A window comes back within a week..."""
_LATER_DAYS = 15
"""...or two, where a clock that is put forward skips it."""
UNKNOWN_MS = 3_600_000
"""How long what is in force stays so where this machine does not know a zone, before it is looked at again."""


class InForce(msgspec.Struct, frozen=True, array_like=True):
    """What is in force of one quota with windows."""

    kind: str
    """"t": of a tenant; "q": of a queue."""
    name: str
    window: int
    """Its place among the quota's windows, or `OUTSIDE`."""
    until_ms: int
    """When it is to be found out anew; 0: never, another one never opens."""
    following: int = OUTSIDE
    """What is in force from then on."""
    unknown: bool = False
    """This machine does not know the zone of a window, so what was in force stays so."""


class Step(NamedTuple):
    """From when on which window is in force."""

    at_ms: int
    window: int


def steps(quota: Quota, now_ms: int, *, days: int = _DAYS_KEPT) -> list[Step]:
    """Which window is in force now, and each change that comes within so many days. Raises ValueError for a zone that
    is not known here, or a window that can't be read.
    """
    edges: dict[int, list[tuple[int, int]]] = {}
    until_ms = now_ms + days * DAY_MS
    for number, window in enumerate(quota.windows):
        for starts_ms, ends_ms in occurrences(read_timetable(window.when), now_ms, days):
            edges.setdefault(max(starts_ms, now_ms), []).append((number, 1))
            edges.setdefault(ends_ms, []).append((number, -1))
    opened = [0] * len(quota.windows)
    found = [Step(now_ms, OUTSIDE)]
    for at_ms in sorted(edges):
        if at_ms >= until_ms:
            break
        for number, change in edges[at_ms]:
            opened[number] += change
        place = next((number for number, count in enumerate(opened) if count), OUTSIDE)
        if at_ms == now_ms:
            found[0] = Step(now_ms, place)
        elif place != found[-1].window:
            found.append(Step(at_ms, place))
    return found


def in_force(kind: str, name: str, quota: Quota, now_ms: int, before: InForce | None = None) -> InForce:
    """What is in force of a quota with windows. `before`: what was, and stays so where a zone is not known any more."""
    try:
        found = steps(quota, now_ms)
        if len(found) == 1:
            found = steps(quota, now_ms, days=_LATER_DAYS)
        if len(found) == 1:
            return InForce(kind, name, found[0].window, 0)
        return InForce(kind, name, found[0].window, found[1].at_ms, found[1].window)
    except ValueError:
        window = before.window if before is not None else OUTSIDE
        return InForce(kind, name, window, now_ms + UNKNOWN_MS, window, unknown=True)


def over(known: Iterable[InForce], now_ms: int) -> Iterator[InForce]:
    """Those that are to be found out anew."""
    return (item for item in known if 0 < item.until_ms <= now_ms)


def most_of(quota: Quota, kind: str, *, memory: bool) -> int:
    """The highest limit that is ever in force, on share or on memory, of a kind of devices or (empty) all; -1: none."""
    limits = []
    for variant in quota.variants():
        of_kind = [model.limit for model in variant.models if model.model == kind] if kind else [variant.limit]
        limits += [limit.memory_bytes if memory else limit.share_milli for limit in of_kind] or [-1]
    return -1 if min(limits) < 0 else max(limits)
