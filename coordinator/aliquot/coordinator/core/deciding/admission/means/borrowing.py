"""Borrow: an opportunistic request runs on the share of an idle lease until its owner wants it back."""

from __future__ import annotations

from aliquot.coordinator.core.commands.outcomes import Attempt
from aliquot.coordinator.core.deciding.admission.means.waiting import Waiting
from aliquot.coordinator.core.deciding.borrowing import borrow
from aliquot.coordinator.core.known.known import Known


def attempt(known: Known, waiting: Waiting) -> Attempt:
    """Looks at `borrowing.LENDERS_TRIED` lenders at most: each costs about a placement on one node."""
    if not waiting.demand.opportunistic or not known.lenders:
        return Attempt([])
    placement = borrow(known, waiting.lease, waiting.demand, waiting.now_ms)
    return waiting.grant(placement) if placement is not None else Attempt([])
