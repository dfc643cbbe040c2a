"""What the auditor writes down of leases, slices, nodes, devices and holds."""

from __future__ import annotations

from dataclasses import dataclass, field

READY, RECONCILING, SUSPECT, LOST, DECLARED = 3, 2, 4, 5, 1
"""States of nodes, as the journal has them."""
DECLARED_FACTS = (
    "pool",
    "tenant",
    "queue",
    "pool-",
    "tenant-",
    "queue-",
    "rates",
    "credit",
    "budget",
    "observed",
    "closed",
    "folded",
    "correct",
    "prices",
    "lent",
    "cut",
    "cut!",
)
"""What people declare and post: no capacity moves by it."""
GRANTED, ACTIVE, PREEMPTING, RELEASING = "granted", "active", "preempting", "releasing"
"""States of slices, as the auditor has them."""


@dataclass(slots=True)
class Piece:
    """One slice that holds capacity."""

    slice_id: str
    lease_id: str
    epoch: int
    member: int
    node_id: str
    uuid: str
    share: int
    memory: int
    state: str = GRANTED
    unreachable: bool = False
    confirmed: bool = False
    charged_from_ms: int = -1
    """Start of the interval that is charged now; -1: none is."""
    charged: bool = False
    """It has been charged at all."""

    @property
    def ending(self) -> bool:
        """Whether it was told to go."""
        return self.state in (PREEMPTING, RELEASING)


@dataclass(slots=True)
class Story:
    """One lease, from its first fact to its last."""

    lease_id: str
    tenant: str
    key: str
    body: bytes
    members: int
    count: int
    ttl_ms: int
    arrival: int
    queued_ms: int
    epoch: int = 0
    pieces: dict[str, Piece] = field(default_factory=dict)
    current: bool = False
    """It has a grant now (perhaps one that is being given up)."""
    ending: str = ""
    requeue: bool = False
    ended: str = ""
    active: bool = False
    granted_ms: int = 0
    time_limit_ms: int = 0
    last_seq: int = 0


@dataclass(slots=True)
class Kept:
    """A hold: devices that are kept for somebody."""

    owner: str
    reservation: bool
    uuids: frozenset[str]
    start_ms: int
    victims: tuple[str, ...]


@dataclass(slots=True)
class Machine:
    """One node."""

    node_id: str
    devices: dict[str, int]
    """UUID -> leasable bytes."""
    agentless: bool
    registered: bool
    state: int = DECLARED
    cordoned: bool = False
    session: int = 0
    pieces: dict[str, Piece] = field(default_factory=dict)


@dataclass(slots=True)
class Card:
    """One device."""

    share: int = 0
    memory: int = 0
    foreign: int = 0
    healthy: bool = True
    pieces: int = 0
