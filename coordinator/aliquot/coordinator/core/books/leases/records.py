"""The life cycle of slices and leases: one transition table, and the records it moves.

States live on slices; a lease's state is derived from its slices, so the two can never disagree. Records are immutable:
a change makes a new one, so the outbox can publish references.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from aliquot.coordinator.core.books.tenancy.accounts import Owner
from aliquot.coordinator.core.books.tenancy.ranking import Part
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.books.use import NO_USE, LeaseUse
from aliquot.coordinator.core.values.errors import BrokenInvariant
from aliquot.coordinator.core.values.types import RequestSpec, SlicePlan


class SliceState(enum.IntEnum):
    """Numbers equal those of the contract."""

    GRANTED = 1
    ACTIVE = 2
    PREEMPTING = 3
    RELEASING = 4
    UNREACHABLE = 5
    GONE = 6
    FAILED = 7


class LeaseState(enum.IntEnum):
    """Numbers equal those of the contract."""

    QUEUED = 1
    GRANTED = 2
    ACTIVE = 3
    PREEMPTING = 4
    RELEASING = 5
    UNREACHABLE = 6
    ENDED = 7


class SliceEvent(enum.StrEnum):
    """What can happen to a slice."""

    CONFIRM = "confirm"
    FAIL = "fail"
    RELEASE = "release"
    PREEMPT = "preempt"
    REPRIEVE = "reprieve"
    GONE = "gone"
    LOSE = "lose"


TERMINAL = frozenset({SliceState.GONE, SliceState.FAILED})
"""Nothing is held in these; in every other state the slice's capacity is reserved."""

_G, _A, _P, _R = SliceState.GRANTED, SliceState.ACTIVE, SliceState.PREEMPTING, SliceState.RELEASING

TRANSITIONS: dict[tuple[SliceState, SliceEvent], SliceState] = {
    (_G, SliceEvent.CONFIRM): _A,
    (_G, SliceEvent.FAIL): SliceState.FAILED,
    (_G, SliceEvent.RELEASE): _R,
    (_G, SliceEvent.PREEMPT): _P,
    (_G, SliceEvent.LOSE): SliceState.UNREACHABLE,
    (_A, SliceEvent.CONFIRM): _A,  # the tier changed: repaired or downgraded
    (_A, SliceEvent.FAIL): SliceState.FAILED,
    (_A, SliceEvent.RELEASE): _R,
    (_A, SliceEvent.PREEMPT): _P,
    (_A, SliceEvent.LOSE): SliceState.UNREACHABLE,
    (_P, SliceEvent.FAIL): SliceState.FAILED,
    (_P, SliceEvent.GONE): SliceState.GONE,
    (_P, SliceEvent.RELEASE): _R,
    (_P, SliceEvent.REPRIEVE): _A,
    (_P, SliceEvent.LOSE): SliceState.UNREACHABLE,
    (_R, SliceEvent.FAIL): SliceState.FAILED,
    (_R, SliceEvent.GONE): SliceState.GONE,
    (_R, SliceEvent.LOSE): SliceState.UNREACHABLE,
}
"""(state, event) -> state. UNREACHABLE is absent: such a slice remembers the state it will resume, and events move that
one (`advance`). A pair that is not here is a defect of `decide`, not something to tolerate."""


class Slice(msgspec.Struct, frozen=True, gc=False):
    """A lease's part on one device."""

    slice_id: str
    lease_epoch: int
    member: int
    plan: SlicePlan
    state: SliceState
    since_ms: int
    tier: int = 0
    deadline_ms: int = 0
    reason: str = ""
    resume: SliceState | None = None
    """The state to go on in when an UNREACHABLE slice's node comes back and still holds it."""
    model: str = ""
    """Of its device, when it was granted: what it is charged as."""
    billing: bool = False
    """Whether it has been charged for at all: from its first confirmation, or from its grant where nobody confirms."""
    billed_from_ms: int = 0
    """Start of the interval that is being charged; 0: none is, because it has not begun or its node is lost."""
    shed: bool = False
    """Its lease is elastic, and goes on without it."""
    endpoint: str = ""
    """Where it is served, as its agent last confirmed; empty: programs attach on its node."""
    vendor: str = ""
    """Of its device, as its agent said, where the catalogue does not know the model; else empty: the model says it."""

    @property
    def kind(self) -> str:
        """What it counts as in quotas: see `catalog.kind_of`."""
        return f"{self.vendor}:{self.model}" if self.vendor else self.model

    @property
    def holds_capacity(self) -> bool:
        """Whether its part of the device is reserved for it."""
        return self.state not in TERMINAL

    @property
    def ending(self) -> bool:
        """Whether its processes have been told, or will be told on the node's return, to end."""
        state = self.resume if self.resume is not None else self.state
        return state in (SliceState.RELEASING, SliceState.PREEMPTING) or state in TERMINAL


def advance(
    piece: Slice,
    event: SliceEvent,
    at_ms: int,
    *,
    tier: int = 0,
    reason: str = "",
    deadline_ms: int = 0,
    endpoint: str = "",
) -> Slice:
    """The slice after `event`. Raises BrokenInvariant for a pair that the table does not have."""
    if piece.state is SliceState.UNREACHABLE:
        return _advance_unreachable(piece, event, at_ms, reason, deadline_ms)
    target = TRANSITIONS.get((piece.state, event))
    if target is None:
        raise BrokenInvariant(f"slice {piece.slice_id}: no transition from {piece.state.name} on {event.value}")
    return msgspec.structs.replace(
        piece,
        state=target,
        since_ms=at_ms if target is not piece.state else piece.since_ms,
        tier=tier or piece.tier,
        deadline_ms=deadline_ms or piece.deadline_ms,
        reason=reason or piece.reason,
        resume=piece.state if target is SliceState.UNREACHABLE else None,
        endpoint=endpoint or piece.endpoint,
    )


def _advance_unreachable(piece: Slice, event: SliceEvent, at_ms: int, reason: str, deadline_ms: int) -> Slice:
    """On a lost node nothing can be confirmed: only the state to resume changes, and is carried out on its return."""
    if event in (SliceEvent.GONE, SliceEvent.FAIL):
        target = SliceState.GONE if event is SliceEvent.GONE else SliceState.FAILED
        return msgspec.structs.replace(piece, state=target, since_ms=at_ms, resume=None, reason=reason or piece.reason)
    if event is SliceEvent.LOSE:
        return piece
    resume = TRANSITIONS.get((piece.resume or SliceState.ACTIVE, event))
    if resume is None:
        raise BrokenInvariant(f"slice {piece.slice_id}: cannot resume {piece.resume} after {event.value}")
    return msgspec.structs.replace(
        piece, resume=resume, reason=reason or piece.reason, deadline_ms=deadline_ms or piece.deadline_ms
    )


def readopt(piece: Slice, at_ms: int) -> Slice:
    """An UNREACHABLE slice whose node came back with it."""
    if piece.state is not SliceState.UNREACHABLE or piece.resume is None:
        raise BrokenInvariant(f"slice {piece.slice_id} is {piece.state.name}, not UNREACHABLE")
    return msgspec.structs.replace(piece, state=piece.resume, resume=None, since_ms=at_ms)


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A request's whole story: waiting, granted, ended. Kept for a while after its end."""

    lease_id: str
    arrival: int
    request: RequestSpec
    created_ms: int
    key: str = ""
    body_sha256: bytes = b""
    lease_epoch: int = 0
    slices: tuple[Slice, ...] = ()
    """All that hold capacity, whatever grant they come from, and this grant's terminal ones."""
    granted_ms: int = 0
    active_ms: int = 0
    """When the current grant became ACTIVE as a whole; 0 until then."""
    ended_ms: int = 0
    end_reason: str = ""
    """Set from the moment the lease is ending."""
    end_detail: str = ""
    requeue: bool = False
    """Ending means going back to the queue."""
    note: str = ""
    requeues: int = 0
    not_before_ms: int = 0
    avoid_device_uuids: tuple[str, ...] = ()
    seq: int = 0
    preemptions: int = 0
    """How often it was preempted; these are among `requeues`."""
    reclaims: int = 0
    """How often for a guarantee, and not for a higher priority; these are among `preemptions`."""
    preempted_at_ms: tuple[int, ...] = ()
    """The latest of those times: what bounds how often it may happen."""
    shape: int = 0
    """Rises with every grant, and with every change of an elastic lease's slices."""
    acknowledged_shape: int = 0
    """What its launcher knows of; a grant needs no acknowledgement, it is the answer."""
    slices_made: int = 0
    """How many slices this grant has had so far: numbers the next one."""
    resized_ms: int = 0
    """When an elastic lease last grew, or gave something back."""
    moves: int = 0
    """How often it was taken to another place; these are among `requeues`."""
    failures: int = 0
    """Grants in a row that did not come up; drains, moves and preemptions are none."""
    by: str = ""
    """The principal that asked for it."""
    ended_by: str = ""
    """The principal that ended it; empty: the pool itself did, or it has not ended."""
    warnings: tuple[str, ...] = ()
    """What has happened to cards that it used, and warnings of idleness, the latest last."""
    use: LeaseUse = NO_USE
    """What it does with what it holds."""
    requeued_ms: int = 0
    """When it last came back to its queue; 0: never, or before that was kept."""
    entitled: bool = False
    """A guarantee of its owner covered it when it came, and nobody of that owner waited before it."""
    exit_code: int | None = None
    """Of the program that ran in it; None: nobody has said, or it has not ended."""
    energy_mj: int | None = None
    """That cards drew for its slices that are over, in millijoules; None: not measured."""

    @property
    def state(self) -> LeaseState:
        """Derived from the slices; see the table in docs/architecture.md."""
        if self.ended_ms:
            return LeaseState.ENDED
        if self.end_reason:
            return LeaseState.PREEMPTING if self.requeue else LeaseState.RELEASING
        states = {piece.state for piece in self.slices if piece.lease_epoch == self.lease_epoch and not piece.shed}
        if not states:
            return LeaseState.QUEUED
        if self.active_ms:
            states.discard(SliceState.GRANTED)  # it grows: what it had runs on meanwhile
        for state, derived in _DERIVED:
            if state in states:
                return derived
        return LeaseState.ACTIVE

    @property
    def current(self) -> tuple[Slice, ...]:
        """The slices that make it up: of this grant, and not given back."""
        return tuple(piece for piece in self.slices if piece.lease_epoch == self.lease_epoch and not piece.shed)

    @property
    def ended(self) -> bool:
        """Whether nothing is held and nothing will happen any more."""
        return self.ended_ms != 0

    @property
    def ending(self) -> bool:
        """Whether its slices have been told to go, for good or back to the queue."""
        return self.end_reason != "" and not self.ended_ms

    @property
    def gives_back(self) -> bool:
        """Whether something that it holds will be freed before its launcher releases it."""
        return any(
            piece.state not in TERMINAL and (self.end_reason or piece.shed or piece.lease_epoch != self.lease_epoch)
            for piece in self.slices
        )

    @property
    def waiting(self) -> bool:
        """Whether it stands in its queue: no current grant, not ending. Leftovers of a failed grant may still go."""
        return not self.end_reason and not any(piece.lease_epoch == self.lease_epoch for piece in self.slices)

    @property
    def seniority(self) -> tuple[int, int]:
        """Smaller: its owner's guarantee covers it earlier."""
        return -self.request.priority, self.arrival

    @property
    def holding(self) -> tuple[Slice, ...]:
        """The slices, of any grant, whose capacity is reserved for this lease."""
        return tuple(piece for piece in self.slices if piece.state not in TERMINAL)

    def find(self, slice_id: str) -> Slice | None:
        """The slice of this id, if the lease still knows it."""
        for piece in self.slices:
            if piece.slice_id == slice_id:
                return piece
        return None


_DERIVED = (
    (SliceState.FAILED, LeaseState.RELEASING),
    (SliceState.GONE, LeaseState.RELEASING),
    (SliceState.RELEASING, LeaseState.RELEASING),
    (SliceState.UNREACHABLE, LeaseState.UNREACHABLE),
    (SliceState.PREEMPTING, LeaseState.PREEMPTING),
    (SliceState.GRANTED, LeaseState.GRANTED),
)
"""The first state that any current slice is in decides; all ACTIVE makes the lease ACTIVE."""


def slice_id_of(lease_id: str, lease_epoch: int, index: int) -> str:
    """The id of the index-th slice of a lease's grant: unique over regrants."""
    return f"{lease_id}.{lease_epoch}.{index}"


def lease_id_of(slice_id: str) -> str:
    """The lease a slice id belongs to; the whole text when it is not one of ours."""
    return slice_id.partition(".")[0]


# --------------------
# Which account a lease counts against, and with what: questions that deciding and counting share.


def queue_of(tenancy: Tenancy, lease: Lease) -> str:
    """The queue a lease waits in and counts against."""
    return tenancy.queue_of(lease.request.tenant, lease.request.queue)


def owner_of(lease: Lease) -> Owner:
    """The owner of a lease's slices."""
    return Owner(lease.lease_id, lease.request.tenant, lease.request.queue)


def parts_of(slices: Iterable[Slice]) -> list[Part]:
    """What slices hold, as accounts count it."""
    return [(piece.kind, piece.plan.share_milli, piece.plan.memory_bytes) for piece in slices]
