"""What a program needs to use a lease that is served: the file that `aliquot run --remote` and Kubernetes write."""

from __future__ import annotations

from typing import Final, Self

import msgspec

from aliquot.client._values.leases import Lease, LeaseState, Slice
from aliquot.common.ids import serving_credential

_GOING: Final = frozenset({LeaseState.GRANTED, LeaseState.ACTIVE, LeaseState.UNREACHABLE})
_SAID: Final = {LeaseState.RELEASING: "RELEASED", LeaseState.PREEMPTING: "PREEMPTED", LeaseState.QUEUED: "PREEMPTED"}


class TicketPart(msgspec.Struct, frozen=True):
    """One of the lease's slices."""

    slice_id: str
    endpoint: str
    """Empty: it is not served at the moment."""
    device_model: str
    share_milli: int
    memory_bytes: int
    used_bytes: int = 0
    """What it holds, as its agent last said; 0 until then."""
    busy_percent: int | None = None
    """What part of its device's time it uses; None: not known."""


class Ticket(msgspec.Struct, frozen=True):
    """Programs find the file by `ALIQUOT_REMOTE_TICKET`."""

    lease_id: str
    lease_epoch: int
    tenant: str
    credential: str
    parts: tuple[TicketPart, ...]
    ending: str = ""
    """Why it is ending or has ended: the coordinator's word, such as PREEMPTED; empty: it goes on."""
    detail: str = ""

    def __repr__(self) -> str:
        """Without the credential."""
        return f"Ticket({self.lease_id}, epoch {self.lease_epoch}, {len(self.parts)} parts, {self.ending or 'goes on'})"

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """For a lease as it is now, whose secret is known."""
        parts = tuple(
            TicketPart(
                part.slice_id,
                part.endpoint,
                part.device_model,
                part.share_milli,
                part.memory_bytes,
                _used_bytes(part, lease),
                part.observed_utilisation_percent,
            )
            for part in sorted(lease.slices, key=lambda each: (each.member, each.slice_id))
        )
        ending = ""
        if lease.state not in _GOING:
            reasons = (part.reason for part in lease.slices if part.reason)
            ending = lease.end_reason or next(reasons, "") or _SAID.get(lease.state, "ENDED")
        credential = serving_credential(lease.secret, lease.lease_id, lease.lease_epoch, lease.tenant)
        detail = lease.end_detail or lease.note
        return cls(lease.lease_id, lease.lease_epoch, lease.tenant, credential, parts, ending, detail)


def _used_bytes(part: Slice, lease: Lease) -> int:
    """What the driver counts, and what the serving process does: more where the card is simulated and the processor
    computes in its place, but a sum over all parts of a member.
    """
    alone = sum(each.member == part.member for each in lease.slices) == 1
    return max(part.observed_bytes or 0, part.served.memory_bytes if alone and part.served is not None else 0)
