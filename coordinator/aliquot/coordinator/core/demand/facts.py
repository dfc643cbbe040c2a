"""What has happened to demand; see `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact


class DemandNoted(Fact, frozen=True, tag="demand"):
    """An hour (number `hour` since the epoch) is over, and this was the mean demand in it, by series."""

    hour: int
    milli: tuple[tuple[str, int], ...]
