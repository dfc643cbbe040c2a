"""What `Pool.lease` returns: the lease itself, asked for at once."""

from __future__ import annotations

from collections.abc import Callable

from aliquot.client._sync.held import HeldLease

Leasing = HeldLease


def start(obtain: Callable[[], HeldLease]) -> HeldLease:
    """Ask for it."""
    return obtain()
