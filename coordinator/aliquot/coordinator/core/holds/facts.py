"""What has happened to holds. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.holds.records import HoldKind
from aliquot.coordinator.core.types import Placement


class HoldCreated(Fact, frozen=True, tag="hold"):
    """These devices are kept for the owner until `expires_ms`."""

    owner: str
    kind: HoldKind
    placement: Placement
    expires_ms: int
    victims: tuple[str, ...] = ()
    start_ms: int = 0
    shed: tuple[str, ...] = ()


class HoldReleased(Fact, frozen=True, tag="hold-"):
    """The hold is over: its owner no longer needs it, or its time is up."""

    owner: str
    reason: str = ""


class HoldBroken(Fact, frozen=True, tag="holdx"):
    """The hold can't be kept: a device of it was lost."""

    owner: str
    reason: str
