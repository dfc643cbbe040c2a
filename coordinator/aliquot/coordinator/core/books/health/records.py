"""What the books hold about the health of cards: incidents, what was tried, and for how long cards were out.

An incident covers *units*: UUIDs of cards, with all their MIG instances, or of single instances. All units of an
incident are in its state; what is in no open incident is HEALTHY. A unit is in one open incident at most.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter, deque

import msgspec

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.values.fact import Fact

STEPS_MAX = 32
"""Of an incident's story: the first 8, and the latest."""
STEPS_FIRST = 8
CLOSED_KEPT = 500
PAST_KEPT = 16
"""Of each unit's history."""
PAST_MS = 7 * 86_400_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
STARTS_KEPT = 4_096
HITS_KEPT = 8
UNITS_MAX = 1_024

REPAIR_BOUNDS_S = (10, 30, 60, 90, 120, 300, 600, 1_800, 3_600, 14_400, 43_200, 86_400, 259_200, 604_800)
"""Upper bounds of the buckets of `aliquot_repair_seconds`."""
INTERVAL_BOUNDS_S = tuple(round(900 * (2880 ** (step / 13))) for step in range(14))
"""14 of them, 15 minutes to 30 days, exponential."""


class Standing(enum.IntEnum):
    """The state of a card; numbers equal those of the contract."""

    HEALTHY = 0
    QUARANTINED = 1
    """It takes no new leases; those that it has are told, and end where the fault is fatal."""
    DRAINED = 2
    """Nothing holds any of it."""
    REPAIRING = 3
    VERIFYING = 4
    PROBATION = 5
    """In service again; the next bad sign counts as a relapse."""
    SERVICE = 6
    """A person has to look at it."""


OUT = frozenset({Standing.QUARANTINED, Standing.DRAINED, Standing.REPAIRING, Standing.VERIFYING, Standing.SERVICE})
"""States in which nothing is placed on a card."""
ORDERED = frozenset({Standing.REPAIRING, Standing.VERIFYING})
"""States in which an agent has an order to carry out."""


WORDS = {Remedy.RESET: "reset", Remedy.REBOOT: "reboot", Remedy.VERIFY: "verify"}
"""What an agent offers to do, by name."""
BY_HAND = "by-hand"
CHECK = "check"
SUSPECTED = "suspected"
VANISHED = "count-too-low"
LINKS = frozenset({"links", "fabric"})
"""Causes that say that devices of one island don't reach one another as they should."""


class Sign(msgspec.Struct, frozen=True):
    """Why a device is not well, as its agent judges."""

    cause: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    reason: str
    """For people."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One line of an incident's story."""

    at_ms: int
    state: Standing
    text: str


class Incident(msgspec.Struct, frozen=True, omit_defaults=True):
    """From the first bad sign until the cards are well again."""

    number: int
    cause: str
    severity: Severity
    remedy: Remedy
    """What is to be done next, or (NONE) nothing."""
    node_id: str
    units: tuple[str, ...]
    reason: str
    opened_ms: int
    state: Standing
    since_ms: int
    """When it came into this state."""
    pool: str = ""
    model: str = ""
    scope: Scope = Scope.CARD
    due_ms: int = 0
    """When an order is given up, or probation is over."""
    order: int = 0
    """The number of the last order to an agent; numbers rise."""
    action: Remedy = Remedy.NONE
    """What that order asks for."""
    tried: tuple[Remedy, ...] = ()
    well_ms: int = 0
    """Since when all signs have been good; 0: they are not."""
    by: str = ""
    """Who opened it by hand; such an incident is closed by hand."""
    steps: tuple[Step, ...] = ()
    back_ms: int = 0
    """When its cards came back into service; 0: not yet."""
    closed_ms: int = 0
    outcome: str = ""
    suspects: tuple[str, ...] = ()
    """The units that signs were about, where it covers others as well; empty: all."""
    failed: bool = False
    """Its last test failed, and nothing was done about that yet: that its signs are good says nothing."""

    def on_probation(self, unit: str) -> bool:
        """Whether a unit that it covers is watched for a while, rather than in service again like any other."""
        return self.state is Standing.PROBATION and (not self.suspects or unit in self.suspects)

    @property
    def is_check(self) -> bool:
        """Whether nothing is known to be wrong: the card is tested once it is empty."""
        return self.cause in (CHECK, SUSPECTED)

    @property
    def planned(self) -> bool:
        """Whether people wanted it: it says nothing of how often cards fail, and how soon they are mended."""
        return bool(self.by) or self.is_check


class Past(msgspec.Struct, frozen=True, array_like=True):
    """What once befell a unit: an incident of this cause, or (with an action) an attempt to repair it."""

    at_ms: int
    cause: str
    action: Remedy = Remedy.NONE


class RepairStart(msgspec.Struct, frozen=True, array_like=True):
    """An automatic repair, for the breaker."""

    at_ms: int
    pool: str
    model: str
    units: int


class Hit(msgspec.Struct, frozen=True, array_like=True):
    """A fault of one tenant's program on a unit."""

    at_ms: int
    tenant: str


class CopyRate(msgspec.Struct, frozen=True, array_like=True):
    """How fast a unit copies within its own memory, as measured when it passed its last test."""

    node_id: str
    model: str
    mb_s: int


class CauseTotals(msgspec.Struct, frozen=True, array_like=True):
    """Closed incidents of one cause."""

    incidents: int = 0
    out_ms: int = 0
    """Time out of service, summed over cards."""


class CareOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an agent is to do to cards: desired state, the same until it is confirmed or withdrawn."""

    number: int
    incident: int
    action: Remedy
    units: tuple[str, ...]
    reason: str


class Buckets(msgspec.Struct, frozen=True):
    """A histogram as the books keep it."""

    counts: tuple[int, ...] = (0,) * 15
    sum_ms: int = 0

    def add(self, value_ms: int, bounds_s: tuple[int, ...]) -> Buckets:
        """With one value more."""
        index = bisect_left(bounds_s, value_ms / 1000)
        counts = (*self.counts[:index], self.counts[index] + 1, *self.counts[index + 1 :])
        return Buckets(counts, self.sum_ms + value_ms)


class HealthBooks:
    """Books, and below them indexes that follow from them."""

    __slots__ = (
        "bad_links", "cards", "closed", "copies", "hits", "incidents", "intervals", "next_number", "of_unit", "out",
        "past", "repairs", "starts", "totals", "under_repair",
    )  # fmt: skip

    def __init__(self) -> None:
        self.incidents: dict[int, Incident] = {}
        """Those that are open."""
        self.closed: deque[Incident] = deque(maxlen=CLOSED_KEPT)
        self.next_number = 1
        self.past: dict[str, tuple[Past, ...]] = {}
        """By unit, the latest last."""
        self.starts: deque[RepairStart] = deque(maxlen=STARTS_KEPT)
        """Automatic repairs of about the last hour."""
        self.hits: dict[str, tuple[Hit, ...]] = {}
        """By card: the latest fault of each of a few tenants' programs."""
        self.totals: dict[str, CauseTotals] = {}
        self.copies: dict[str, CopyRate] = {}
        """By unit."""
        self.repairs = Buckets()
        """From the first bad sign until service."""
        self.intervals = Buckets()
        """Between two incidents of one unit."""
        # indexes
        self.of_unit: dict[str, int] = {}
        """Unit -> the open incident that covers it."""
        self.bad_links: dict[str, tuple[int, ...]] = {}
        """Node -> the open incidents about links that keep cards of it out of service."""
        self.cards: Counter[tuple[str, str]] = Counter()
        """How many cards there are of each (pool, model)."""
        self.out: Counter[tuple[str, str]] = Counter()
        """How many of them incidents have taken out of service."""
        self.under_repair: Counter[tuple[str, str]] = Counter()


def within(steps: tuple[Step, ...], step: Step) -> tuple[Step, ...]:
    """A story with one more step, within its bound."""
    told = (*steps, step)
    if len(told) <= STEPS_MAX:
        return told
    return (*told[:STEPS_FIRST], *told[STEPS_FIRST - STEPS_MAX :])


# --------------------
# What has happened to the health of cards.


class IncidentOpened(Fact, frozen=True, tag="ill"):
    """Cards were taken out of service. Incidents that are about some of them go on as part of this one."""

    number: int
    cause: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    node_id: str
    units: tuple[str, ...]
    reason: str
    pool: str = ""
    model: str = ""
    absorbs: tuple[int, ...] = ()
    by: str = ""
    suspect: str = ""
    """The unit that the sign was about, where more goes out of service for it; empty: all."""


class IncidentMoved(Fact, frozen=True, tag="ill>"):
    """An incident has come into a state, or something of note has happened in the one that it is in."""

    number: int
    state: Standing
    text: str
    due_ms: int = 0
    order: int = 0
    """Of what the node's agent is told to do; 0: nothing."""
    action: Remedy = Remedy.NONE
    remedy: Remedy = Remedy.NONE
    """What is to be done next from now on."""
    well: bool = False
    units: tuple[str, ...] = ()
    """All that it covers from now on, where that changes."""
    absorbs: tuple[int, ...] = ()


class IncidentClosed(Fact, frozen=True, tag="ill-"):
    """The cards are in service, or gone for good."""

    number: int
    outcome: str
    by: str = ""
    overrules: bool = False
    """What the agent says of its devices counts no more, until it says something else."""


class CopiesMeasured(Fact, frozen=True, tag="copies"):
    """Cards that were tested copy within their own memory so fast."""

    node_id: str
    model: str
    copies: tuple[tuple[str, int], ...]
    """(unit, megabytes a second)."""


class LeaseTold(Fact, frozen=True, tag="told"):
    """The holder of a lease is told what has happened to a card that it uses."""

    lease_id: str
    text: str
    hit: str = ""
    """The card on which a fault of the lease's own program was seen; empty: it is not about that."""
