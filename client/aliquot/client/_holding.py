"""How getting a lease may end, and how long one step of it waits. Without I/O; `_async.granting` does it."""

from __future__ import annotations

from aliquot.client import _errors as errors
from aliquot.client._values.leases import Lease, LeaseState, WaitUntil
from aliquot.client._values.requests import Request
from aliquot.common.limits import DEFAULT_LEASE_TTL_S


def third_of_ttl_s(request: Request) -> float:
    """The longest step, by which no request expires while it waits."""
    return max(0.1, (request.ttl_s or DEFAULT_LEASE_TTL_S) / 3)


def too_late(lease: Lease, until: WaitUntil, wait_s: float | None) -> errors.NotGrantedInTime:
    """The error that says how far it came within this time."""
    waiting = lease.waiting
    why = f": {waiting.summary}" if waiting and waiting.summary else ""
    return errors.NotGrantedInTime(
        f"{lease.gpu} was {lease.state.lower()}, not {until.lower()}, after {wait_s:g} s{why}",
        hint="wait longer, ask for less, or see `aliquot why` for the smallest change that fits",
        explanation=waiting,
        metadata={"lease_id": lease.lease_id},
    )


def ended_error(lease: Lease) -> errors.LeaseLost:
    """The error that says how and why a lease ended."""
    said = f" ({lease.end_detail})" if lease.end_detail else ""
    how = "has ended" if lease.state is LeaseState.ENDED else "is ending"
    return errors.LeaseLost(
        f"lease {lease.lease_id} {how}: {lease.end_reason or 'no reason was given'}{said}",
        hint=ENDED_HINTS.get(lease.end_reason, ""),
        lease_id=lease.lease_id,
        end_reason=lease.end_reason,
        reason="LEASE_EXPIRED" if lease.end_reason == "EXPIRED" else "LEASE_ENDED",
    )


ENDED_HINTS = {
    "EXPIRED": "no keep-alive reached the coordinator within the TTL; ask again, with a longer ttl_s or detached=True",
    "PREEMPTED": "a request with a better claim needed the capacity; ask again to wait for your turn",
    "OVER_LIMIT": "its programs held more memory than it has, again and again; ask for what they need",
    "TIME_LIMIT": "it ran as long as its time_limit_s allowed; ask for a longer one",
    "NODE_LOST": "the node it ran on is gone; ask again to be placed elsewhere",
    "CANCELLED": "an administrator ended it",
    "DRAINED": "its node is being drained; ask again to be placed elsewhere",
}
"""What to do next, by a lease's `end_reason`."""
