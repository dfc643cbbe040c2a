"""What leases make of what they hold, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.client._values.leases import Lease, LeaseUse, UseState

__all__ = ["LeaseUse", "UseReport", "UseRow", "UseState"]


@dataclass(frozen=True, slots=True)
class UseRow:
    """One lease that holds something."""

    lease: Lease
    """With `use`."""
    idle_ms: int
    """For how long it was seen to be quiet; 0: it is not."""
    wasted_milli_ms: int
    """GPU time in that spell: a GPU-hour is 3,600,000,000."""
    wasted_micro: int
    """Money at list price, in millionths."""
    borrowed_milli: int
    """Of its share, that others use now."""
    policy: str
    """What its queue says: notify, lend, suspend, release."""
    policy_after_ms: int


@dataclass(frozen=True, slots=True)
class UseReport:
    """Who holds what, and what for."""

    rows: tuple[UseRow, ...]
    """Those that waste most first; at most 1000."""
    left_out: int
    currency: str
