"""Nodes that one tenant has lent to another, and how that changes what is guaranteed to both.

What is declared stays as it was declared; a loan moves a part of the lender's guarantee for as long as it lasts, so
that the sum of all promises never changes.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota
from aliquot.coordinator.core.values.fact import Fact

MOVES_KEPT = 1_000
"""Of the log of moves, the latest so many."""


class Loan(msgspec.Struct, frozen=True, array_like=True):
    """A node that serves another project than its own."""

    node_id: str
    label: str
    home: str
    borrower: str
    guaranteed: Amount
    """What of its home's guarantee went along."""
    since_ms: int


class NodeMove(msgspec.Struct, frozen=True, array_like=True):
    """An entry of the log."""

    at_ms: int
    node_id: str
    pool: str
    lender: str
    borrower: str
    home: str
    reason: str


def with_loans(tenant: str, quota: Quota, loans: Iterable[Loan]) -> Quota:
    """A tenant's quota as its loans leave it. Limits stay."""
    share, memory = quota.guaranteed.share_milli, quota.guaranteed.memory_bytes
    touched = False
    for loan in loans:
        sign = (loan.borrower == tenant) - (loan.home == tenant)
        if sign:
            touched = True
            share += sign * loan.guaranteed.share_milli
            memory += sign * loan.guaranteed.memory_bytes
    if not touched:
        return quota
    return msgspec.structs.replace(quota, guaranteed=Amount(max(0, share), max(0, memory)))


# --------------------
# Which nodes have changed hands between projects.


class NodeLent(Fact, frozen=True, tag="lent"):
    """A node serves another project from now on (its label is a `NodePut` of the same group), or its own again.

    `guaranteed` went along from the home's guarantee to the borrower's; a node that goes home takes it back.
    """

    node_id: str
    pool: str
    label: str
    lender: str
    borrower: str
    home: str
    guaranteed: Amount
    reason: str
