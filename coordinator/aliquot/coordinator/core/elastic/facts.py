"""What has happened to the shape of elastic leases. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.leases.facts import SliceGrant


class LeaseGrown(Fact, frozen=True, tag="grown"):
    """An elastic lease holds more members. Their numbers are fresh or those of members that are gone."""

    lease_id: str
    slices: tuple[SliceGrant, ...]


class LeaseShrinking(Fact, frozen=True, tag="shed"):
    """An elastic lease gives these slices back and goes on without them.

    With `notice` they run until the deadline, or until the launcher acknowledges; without, they are being stopped.
    What holds nothing any more is forgotten.
    """

    lease_id: str
    slice_ids: tuple[str, ...]
    deadline_ms: int
    reason: str
    notice: bool = False


class SlicesKept(Fact, frozen=True, tag="kept"):
    """Slices that were to be given back stay: nobody needs their capacity any more."""

    lease_id: str
    slice_ids: tuple[str, ...]
    reason: str = ""


class ShapeAcknowledged(Fact, frozen=True, tag="shapeack"):
    """The launcher of an elastic lease has adapted to this shape."""

    lease_id: str
    shape: int
