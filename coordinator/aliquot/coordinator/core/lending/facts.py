"""Which nodes have changed hands between projects. See `core.facts`."""

from __future__ import annotations

from aliquot.coordinator.core.fact import Fact
from aliquot.coordinator.core.tenancy.specs import Amount


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
