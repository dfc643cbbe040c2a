"""How much of a device's time each slice on it may use for now, from what each was measured to use: pure.

The driver gives every busy process as much time as any other. So a slice with many processes takes from its neighbours,
and one with a small share takes from one with a large one. Those that use more than their part are held to it (the
preload library makes their launches wait); the others are left alone and so get what becomes free. Nothing is held back
for long that nobody uses: while the device has time left, the held ones may use that too.

Whether a slice that uses less than its part wants more can't be measured. It is tried, by holding its neighbours to
theirs: where that left time unused, it has all it wants, and is taken to for a while, each time for longer.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

WHOLE_MILLI = 1000
FULL_MILLI = 970
"""A device that is used so much has no time left: measurements are whole percents, and late."""
SLACK_MILLI = 20
"""So near to its part a slice is at it."""
BUSY_MILLI = 20
"""What uses less wants nothing."""
CHANGE_MILLI = 50
"""What uses so much more or less than before may want something else."""
PATIENCE_MS = 4_000, 60_000
"""How long a slice is taken to want no more than it was seen to use while there was time left: at first, at most."""


class Pace(msgspec.Struct, frozen=True):
    """Of one slice."""

    allowed_milli: int = 0
    """Of the device's time; 0: as much as there is."""
    used_us: int = 0
    """Of it, while it had an allowance, since the slice was first seen."""
    content_milli: int | None = None
    """What it used while there was time left; None: not known, or too long ago."""
    content_ms: int = 0
    patience_ms: int = PATIENCE_MS[0]
    """For how long that is believed; the next time for twice as long."""


class Use(msgspec.Struct, frozen=True):
    """What a slice was measured to use since the last time, beside its share; both in thousandths of the device."""

    share_milli: int
    used_milli: int


def keep_pace(
    paces: Mapping[str, Pace], uses: Mapping[str, Use], others_milli: int, passed_ms: int, now_ms: int
) -> dict[str, Pace]:
    """The paces from now on, by slice. `others_milli`: what processes of no lease used."""
    known = {name: _counted(paces.get(name, Pace()), use, passed_ms, now_ms) for name, use in uses.items()}
    busy = {name: use for name, use in uses.items() if use.used_milli >= BUSY_MILLI}
    if len(busy) < 2:
        return {name: replace(pace, allowed_milli=0) for name, pace in known.items()}
    shares_milli = sum(use.share_milli for use in busy.values())
    parts = {name: WHOLE_MILLI * use.share_milli // shares_milli for name, use in busy.items()}
    left_milli = WHOLE_MILLI - others_milli - sum(use.used_milli for use in uses.values())
    if left_milli > WHOLE_MILLI - FULL_MILLI:
        return _loosened(known, uses, left_milli, now_ms)
    if not any(_short(known[name], use, parts[name]) for name, use in busy.items()):
        return known
    return {
        name: replace(pace, allowed_milli=parts[name])
        if name in busy and (pace.allowed_milli > parts[name] or uses[name].used_milli > parts[name] + SLACK_MILLI)
        else pace
        for name, pace in known.items()
    }


def _counted(pace: Pace, use: Use, passed_ms: int, now_ms: int) -> Pace:
    if pace.content_milli is not None:
        if abs(use.used_milli - pace.content_milli) > CHANGE_MILLI:
            pace = replace(pace, content_milli=None, patience_ms=PATIENCE_MS[0])
        elif now_ms - pace.content_ms >= pace.patience_ms:
            pace = replace(pace, content_milli=None, patience_ms=min(2 * pace.patience_ms, PATIENCE_MS[1]))
    return replace(pace, used_us=pace.used_us + use.used_milli * passed_ms) if pace.allowed_milli else pace


def _short(pace: Pace, use: Use, part_milli: int) -> bool:
    """Whether a slice may want more than it gets."""
    return use.used_milli < part_milli - SLACK_MILLI and pace.content_milli is None


def _loosened(paces: Mapping[str, Pace], uses: Mapping[str, Use], left_milli: int, now_ms: int) -> dict[str, Pace]:
    """While there is time left: those that are held may use that too, and the others have all they want."""
    held = {
        name
        for name, pace in paces.items()
        if pace.allowed_milli and uses[name].used_milli >= pace.allowed_milli - 2 * SLACK_MILLI
    }
    shares_milli = sum(uses[name].share_milli for name in held)

    def loosened(name: str, pace: Pace) -> Pace:
        if name not in held:
            return replace(pace, content_milli=uses[name].used_milli, content_ms=now_ms)
        allowed_milli = pace.allowed_milli + left_milli * uses[name].share_milli // shares_milli
        return replace(pace, allowed_milli=allowed_milli if allowed_milli < WHOLE_MILLI else 0)

    return {name: loosened(name, pace) for name, pace in paces.items()}
