"""What the auditor writes down of leases, slices, nodes, devices and holds."""

from __future__ import annotations

from dataclasses import dataclass, field

READY, RECONCILING, SUSPECT, LOST, DECLARED = 3, 2, 4, 5, 1
"""States of nodes, as the journal has them."""
DECLARED_FACTS = ("folded", "prices", "demand")
"""What people declare and post, and what is learnt: no capacity moves by it."""
CALLERS_FACTS = ("role+", "role-", "token+", "token-", "acted", "invite+", "invited", "invite-", "enrol+", "enrol-")
"""Who may do what, and who did: no capacity moves by it either."""
GRANTED, ACTIVE, PREEMPTING, RELEASING = "granted", "active", "preempting", "releasing"
NOTICED = "noticed"
"""States of slices, as the auditor has them. NOTICED: an elastic lease gives it back, but it still runs."""


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
    model: str = ""
    shed: bool = False
    """Its lease is elastic, and goes on without it."""
    deadline_ms: int = 0
    """Of its notice."""
    lender: str = ""
    """The slice whose share it uses."""
    lender_memory: bool = False

    @property
    def own_share(self) -> int:
        """What it takes of its device by itself."""
        return 0 if self.lender else self.share

    @property
    def own_memory(self) -> int:
        """What it takes of its device by itself."""
        return 0 if self.lender_memory else self.memory

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
    grace_ms: int = 30_000
    last_seq: int = 0
    queue: str = ""
    """That it names; empty: its tenant's own."""
    movable: bool = False
    apart: bool = False
    """Each of its members is on a card of its own."""
    placed: bool = False
    """It was put on a place by whoever asked."""
    priority: int = 0
    preemptible: bool = False
    preempted_ms: list[int] = field(default_factory=list)
    min_run_ms: int = 0
    cpu_milli: int = 0
    host_memory: int = 0
    """Each of its members needs so much of its node."""
    max_per_node: int = 0
    share: int = 0
    memory: int = 0
    """Each of its slices is to have so much; 0: what goes with the other."""
    plain: bool = False
    """It is placed wherever a device of its models has room."""
    active_ms: int = 0
    """When all of its present grant was confirmed first; 0: not yet."""
    ended_ms: int = 0
    elastic: bool = False
    """Its launcher adapts to changes of its shape: it has said how few or how many members it can use, be that as many
    as it asks for."""
    least: int = 1
    most: int = 1
    """Members that an elastic lease keeps in any case, and can use at most; of others, both are `members`."""
    size: int = 0
    """Members that it goes on with."""
    resized_ms: int = 0
    changed_by: str = ""
    """The fact that changed its shape last."""
    unacknowledged: bool = False
    """Its launcher has not adapted to that yet."""


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
    pool: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    changed_ms: int = 0
    """When it came, was described or changed its state last."""
    cpu_milli: int = -1
    host_memory: int = -1
    """What it has for members; below zero: it does not say."""
    name: str = ""


@dataclass(slots=True)
class Card:
    """One device."""

    share: int = 0
    memory: int = 0
    foreign: int = 0
    healthy: bool = True
    pieces: int = 0


def above(tenant: str) -> list[str]:
    """A tenant, and those above it."""
    parts = tenant.split("/")
    return ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
