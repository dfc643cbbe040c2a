"""Signs that only show over time: clocks held down again and again, PCIe replays a minute, links that were up once.

Pure: samples and times come in. Times are milliseconds of the monotonic clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.samples import HealthSample
from aliquot.agent.core.signals import (
    CLOCKS_HELD,
    FABRIC,
    HOT,
    LINKS,
    PCIE_REPLAYS,
    PCIE_WIDTH,
    Signal,
)

WINDOW_MS = 600_000
HELD_DOWN = 0x8 | 0x40 | 0x80
"""Hardware slowdown, hardware thermal slowdown, power brake. The power cap (0x4) is normal."""
HELD_TIMES = 6
REPLAYS_A_MINUTE = 8
SPARE_C = 5
FABRIC_COMPLETED = 3
MINUTE_MS = 60_000
NARROW_MS = 600_000


class Trends(msgspec.Struct, frozen=True):
    """What is remembered of one card's samples."""

    held_ms: tuple[int, ...] = ()
    """When clocks were held down, within the window."""
    replays: tuple[int, int] | None = None
    """(when, how many) as last counted from."""
    bad_ms: tuple[tuple[str, int], ...] = ()
    """Causes that last for a while, and when each was last seen."""
    links: int = 0
    """The most that were up at once."""
    width: int = 0
    """The most lanes that its PCIe link had. Slots and risers with fewer lanes than a card has are common, so it is
    compared with its own past, not with what it could have elsewhere.
    """
    narrow_since_ms: int | None = None
    """Since when it has had fewer: a link may save power for a while."""
    hot: bool = False


def follow(
    trends: Trends, sample: HealthSample, now_ms: int, ignored: Collection[str] = ()
) -> tuple[Trends, Signal | None, str]:
    """What is remembered from now on, and what that says: the worst signal that is not ignored and its
    reason, or nothing.
    """
    held = tuple(at_ms for at_ms in trends.held_ms if at_ms > now_ms - WINDOW_MS)
    if (sample.clock_event_reasons or 0) & HELD_DOWN:
        held = (*held, now_ms)[-64:]
    bad = dict(trends.bad_ms)
    if len(held) >= HELD_TIMES:
        bad[CLOCKS_HELD.cause] = held[-1]
    replays = _count_replays(trends, sample, now_ms, bad)
    width = max(trends.width, sample.pcie_width or 0)
    narrow_since_ms = trends.narrow_since_ms
    if sample.pcie_width is not None:
        narrow_since_ms = None if sample.pcie_width >= width else narrow_since_ms or now_ms
    if narrow_since_ms is not None and now_ms - narrow_since_ms >= NARROW_MS:
        bad[PCIE_WIDTH.cause] = now_ms
    links = max(trends.links, sample.links_up or 0)
    if sample.links_up is not None and sample.links_up < links:
        bad[LINKS.cause] = now_ms
    hot = trends.hot
    if sample.margin_c is not None:
        hot = sample.margin_c <= 0 or (hot and sample.margin_c < SPARE_C)
    bad = {cause: at_ms for cause, at_ms in bad.items() if at_ms > now_ms - WINDOW_MS}
    now = Trends(held, replays, tuple(bad.items()), links, width, narrow_since_ms, hot)
    return now, *next(((signal, why) for signal, why in _all(now, sample) if signal.cause not in ignored), (None, ""))


def _count_replays(trends: Trends, sample: HealthSample, now_ms: int, bad: dict[str, int]) -> tuple[int, int] | None:
    """Counted over a minute or more, so that one burst between two samples is not taken for a rate."""
    if sample.pcie_replays is None:
        return trends.replays
    if trends.replays is None or sample.pcie_replays < trends.replays[1]:
        return now_ms, sample.pcie_replays
    passed_ms, more = now_ms - trends.replays[0], sample.pcie_replays - trends.replays[1]
    if passed_ms < MINUTE_MS:
        return trends.replays
    if more * MINUTE_MS > REPLAYS_A_MINUTE * passed_ms:
        bad[PCIE_REPLAYS.cause] = now_ms
    return now_ms, sample.pcie_replays


def _all(trends: Trends, sample: HealthSample) -> Iterator[tuple[Signal, str]]:
    """What is wrong, the worst first."""
    bad = dict(trends.bad_ms)
    if trends.hot:
        yield HOT, "it is so hot that its clocks are about to be held down"
    if CLOCKS_HELD.cause in bad:
        yield CLOCKS_HELD, f"its clocks were held down by heat or power {HELD_TIMES} times or more in 10 min"
    if LINKS.cause in bad:
        up = "unknown" if sample.links_up is None else sample.links_up
        yield LINKS, f"NVLink: {up} of {trends.links} links are up, or were not within 10 min"
    if sample.fabric_state is not None and sample.fabric_state not in (0, FABRIC_COMPLETED):
        yield FABRIC, f"its registration with the fabric is in state {sample.fabric_state}: is Fabric Manager running?"
    if PCIE_WIDTH.cause in bad:
        yield PCIE_WIDTH, f"its PCIe link has fewer lanes than the {trends.width} that it had"
    if PCIE_REPLAYS.cause in bad:
        yield PCIE_REPLAYS, f"more than {REPLAYS_A_MINUTE} PCIe replays a minute"


def settled(trends: Trends) -> Trends:
    """The card was repaired: what was before it says nothing of now."""
    return replace(trends, held_ms=(), replays=None, bad_ms=(), width=0, narrow_since_ms=None, hot=False)
