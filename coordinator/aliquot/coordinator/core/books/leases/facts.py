"""What has happened to leases and their slices."""

from __future__ import annotations

import msgspec

from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import EndReason, RequestSpec, SlicePlan


class SliceGrant(msgspec.Struct, frozen=True, array_like=True):
    """A slice as it was granted: which gang member it serves, and where it is."""

    slice_id: str
    member: int
    plan: SlicePlan


class LeaseQueued(Fact, frozen=True, tag="queued"):
    """A request was accepted. `arrival` orders requests for ever, also across requeues."""

    lease_id: str
    arrival: int
    request: RequestSpec
    key: str = ""
    body_sha256: bytes = b""
    by: str = ""
    """The principal that asked for it."""
    entitled: bool = False
    """A guarantee of its owner covers it as it comes, and nobody of that owner waits before it."""
    at_once: bool = False
    """The next fact grants it: it stands in no line meanwhile, and nobody has to make room for it."""


class LeaseGranted(Fact, frozen=True, tag="granted"):
    """Capacity is held for a queued lease. `lease_epoch` rises by one with every grant."""

    lease_id: str
    lease_epoch: int
    slices: tuple[SliceGrant, ...]
    note: str = ""


class SliceActive(Fact, frozen=True, tag="active"):
    """The agent has set the slice's limit and read it back."""

    lease_id: str
    slice_id: str
    tier: int
    endpoint: str = ""
    """Where it is served; empty: programs attach on its node."""


class SliceFailed(Fact, frozen=True, tag="failed"):
    """The slice could not be set up, or was lost on its device; nothing is held for it any more."""

    lease_id: str
    slice_id: str
    reason: str
    detail: str = ""
    energy_mj: int | None = None


class SliceGone(Fact, frozen=True, tag="gone"):
    """Processes gone, limit cleared: the slice's capacity is free."""

    lease_id: str
    slice_id: str
    energy_mj: int | None = None
    """That its card drew for it, in millijoules; None: not measured."""


class SlicesAdopted(Fact, frozen=True, tag="adopted"):
    """A node came back and still holds these slices: they go on as they were before it was lost."""

    node_id: str
    slice_ids: tuple[str, ...]


class LeaseReleasing(Fact, frozen=True, tag="releasing"):
    """A lease is ending: its slices keep their capacity until each is gone. A queued lease has none and ends at once.

    With `requeue`, it goes back to its queue with its arrival when the last slice is gone.
    """

    lease_id: str
    reason: EndReason
    detail: str = ""
    deadline_ms: int = 0
    requeue: bool = False
    by: str = ""
    """The principal that ended it; empty: the pool itself did."""
    exit_code: int | None = None
    """Of the program that ran in it, where its launcher ends it and says so."""


class LeaseExtended(Fact, frozen=True, tag="extended"):
    """A lease has a longer time limit from now on, and keeps it when it goes back to its queue."""

    lease_id: str
    time_limit_ms: int
    reason: str = ""
    by: str = ""


class SlicesReleasing(Fact, frozen=True, tag="sreleasing"):
    """Single slices of a lease are ending, because a sibling failed: the lease itself goes back to its queue."""

    lease_id: str
    slice_ids: tuple[str, ...]
    reason: str


class LeaseRequeued(Fact, frozen=True, tag="requeued"):
    """A lease is back in its queue, at its old place, not to be tried before `not_before_ms`."""

    lease_id: str
    reason: str
    not_before_ms: int = 0
    avoid_device_uuids: tuple[str, ...] = ()
    moved: bool = False
    """It is granted elsewhere in the same group, because its place was wanted, or is no good any more."""

    @property
    def failed(self) -> bool:
        """Whether its grant did not come up: nothing else rests before it is tried again."""
        return self.not_before_ms > 0


class LeaseEnded(Fact, frozen=True, tag="ended"):
    """Nothing is held any more. The record stays for a while, for Get, List and the idempotency key."""

    lease_id: str
    reason: EndReason
    detail: str = ""
    by: str = ""
    """As above, of a lease that held nothing."""


class LeasesForgotten(Fact, frozen=True, tag="forgotten"):
    """Ended leases were forgotten: their records and idempotency keys are gone."""

    lease_ids: tuple[str, ...]
