"""What the decider remembers: earlier searches, work that it has still to look at, measurements.

All of it may be thrown away at any moment, which only costs time; a restarted coordinator begins with none. What was
found for one version of an index holds only for that version, so that nobody has to clear it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Self, TypeVar, cast

from aliquot.coordinator.core.books.tenancy.accounts import AccountKey, Chain
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.queueing import AdmissionPass
from aliquot.coordinator.core.queueing.failed import FailedDemands
from aliquot.coordinator.core.values.rests import Rests
from aliquot.coordinator.core.values.timers import Timers
from aliquot.coordinator.core.values.troubles import Troubles
from aliquot.coordinator.core.values.types import Demand, RequestSpec

_REMEMBERED_MAX = 4_096

SearchKey = tuple[Demand, str, str, int, frozenset[str] | None]
"""What makes two searches for victims the same: the demand, the tenant, the queue, the priority, and the owners of the
holds in the way. None for these: it is a limit that keeps the request out, not the devices.
"""

Outlook = tuple[tuple[str, ...], int, tuple[str, ...], tuple[str, ...]]
"""(who would have to end, when it could start or 0, leases without an end that keep it waiting, notes on it)."""

_T = TypeVar("_T")
_K = TypeVar("_K")
_V = TypeVar("_V")


class Remembered(dict[_K, _V]):
    """What was found for one version; with another one it begins anew, and when there is too much of it."""

    __slots__ = ("_version",)

    def at(self, version: object) -> Self:
        """What still holds."""
        if len(self) >= _REMEMBERED_MAX or getattr(self, "_version", None) != version:
            self.clear()
            self._version = version
        return self


@dataclass(slots=True)
class GrowthRound:
    """One pass over the elastic leases that may grow."""

    lease_ids: list[str]
    """Those that were not looked at yet, the next one last."""
    again_ms: int
    """When to look again once it is over."""
    grew_priority: int = -(1 << 62)
    """Of the last one that grew."""


@dataclass(slots=True)
class Seen:
    """The versions of the State that the memory was last brought in line with."""

    freed: int = 0
    closed: int = 0
    idle: int = 0
    reshaped: int = 0
    started: int = 0
    prices: PriceTable | None = None


class Memory:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.timers = Timers()
        """What the decider itself wants to look at later."""
        self.troubles = Troubles()
        """Work on which deciding failed."""

        # -- admission
        self.admission: AdmissionPass | None = None
        """The pass over the waiting lines that is under way."""
        self.offered_version = 0
        """Of the State when the last pass began: what may have been freed since was not offered yet."""
        self.look_again = False
        """Time alone has made another pass worth while."""
        self.known_full = FailedDemands()
        """Demands that are known not to fit until something is freed."""
        self.full_before: dict[Demand, int] = {}
        """Demands that do not fit on nodes either that close later than this."""

        # -- searches
        self.victim_searches: Rests[SearchKey] = Rests()
        """Searches for victims that found none."""
        self.shrink_searches: Rests[tuple[Demand, str, str, int]] = Rests()
        """Searches for what elastic leases could give back that found nothing."""
        self.outlooks: dict[tuple[Demand, str, str, int], tuple[int, Outlook]] = {}
        """What `Explain` said lately of when equal requests can start."""
        self.chains: Remembered[tuple[str, str], Chain] = Remembered()
        """The accounts that requests of a tenant and queue count against."""
        self.declared: Remembered[RequestSpec, RequestSpec] = Remembered()
        """Requests that their tenants may make, with what is declared for their queues."""
        self.protected: Remembered[AccountKey, tuple[tuple[int, int], Container[str]]] = Remembered()
        """The leases that each guarantee covers, and the versions of its account; see `preemption.victims`."""
        self.entitled: Remembered[str, bool] = Remembered()
        """Whether a guarantee covers each waiting lease."""
        self.scale_key = (-1, -1)
        self.scale = 0
        """How much of every guarantee can be kept, in millionths: remembered for these versions."""
        self.elastic_key = -1
        self.elastic_in_order: list[str] = []
        """Elastic leases in the order in which they give back: remembered for this version."""
        self._parts: dict[type, object] = {}

        # -- what comes by the clock
        self.growth_round: GrowthRound | None = None
        self.growth_due_ms = 0
        """When growth is looked for next; 0: nothing asks for it."""
        self.cuts_due_ms = 0
        """When to look next whether a card should be cut; 0: never."""
        self.cuts_turn = 0
        """How many nodes with cards the last look has passed."""
        self.supply_due_ms = 0
        """When it is looked at next which nodes should come or go; 0: nothing asks for it."""
        self.supply_calm = False
        """That look is late, because nobody waited when it was put off."""
        self.forget_due_ms = 0
        """When ended leases are to be forgotten next; 0: nothing asks for it."""
        self.forgot_ms = 0
        self.fold_due = False
        """Usage is to be folded."""

    def part(self, kind: type[_T], make: Callable[[], _T]) -> _T:
        """What one subject remembers in a class of its own; made when it is first asked for."""
        found = self._parts.get(kind)
        if found is None:
            found = self._parts[kind] = make()
        return cast(_T, found)
