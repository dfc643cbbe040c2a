"""Open what is kept: devices that are held for later requests are enough for this one, which goes first."""

from __future__ import annotations

from collections.abc import Collection

from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding import holds as holding
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand, Placement


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """One trial placement, where anything is in the way. It is granted when it is tried again, at once."""
    if waiting.room_is_coming(known):
        return Attempt([])
    blocking = waiting.blocking(known)
    placement = with_open(known, blocking, waiting.demand) if blocking else None
    if placement is None:
        return Attempt([])
    waiting.kept_suffices = True
    facts = clear(known, blocking, placement, waiting.now_ms)
    return Attempt(facts, again=bool(facts))


def clear(
    known: Known, holds: list[Hold], placement: Placement, now_ms: int, taken_over: Collection[str] = ()
) -> list[Fact]:
    """Give up those of the holds that keep a device of this placement."""
    wanted = devices_of(placement)
    facts: list[Fact] = []
    for hold in holds:
        if not wanted.isdisjoint(hold.device_uuids):
            facts += holding.give_up(known, hold, now_ms, "somebody goes first", taken_over)
    return facts


def devices_of(placement: Placement) -> set[str]:
    """The devices of all members."""
    return {plan.device_uuid for member in placement.members for plan in member}


def with_open(known: Known, holds: list[Hold], demand: Demand) -> Placement | None:
    """Where the demand would go if these holds were not."""
    with known.inventory.trial() as inventory:
        for hold in holds:
            inventory.open_devices(hold.device_uuids)
        return known.engine.place(demand) if known.engine.fits(demand) else None
