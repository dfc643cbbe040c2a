"""Gives back leases whose pods have gone, also while nobody else does: capacity must not wait for a controller.

A lease with members on other nodes is left to who looks at all of its pods.
"""

from __future__ import annotations

import logging
from typing import Protocol

from aliquot.client import AsyncPool, LeaseNotFound, PoolError

log = logging.getLogger(__name__)

REASON = "its pod has gone"
TIMEOUT_S = 10.0


class Releaser(Protocol):
    """Gives leases back."""

    async def release(self, lease_id: str, node_id: str) -> None:
        """Give a lease back if it has nothing on other nodes. What fails is tried again later, by calling again."""


class PoolReleaser:
    """By the pool's coordinator."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool

    async def release(self, lease_id: str, node_id: str) -> None:
        """See `Releaser`."""
        try:
            lease = await self._pool.get(lease_id)
            if any(piece.node_id != node_id for piece in lease.slices):
                return
            await self._pool.release(lease_id, reason=REASON)
        except LeaseNotFound:
            return
        except PoolError as error:
            log.warning("lease %s, whose pod has gone, could not be released: %s", lease_id, error.message)
        else:
            log.info("released", extra={"lease_id": lease_id})


class NoReleaser:
    """Where no pool may be asked: whoever asked for the leases gives them back."""

    async def release(self, lease_id: str, node_id: str) -> None:
        """Nothing."""
