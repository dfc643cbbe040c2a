"""Gives back leases whose pods have gone, also while nobody else does: capacity must not wait for a controller.

The lease itself says whose it is, so a pod that came by another's assignment can't end it. The lease of a gang is left
to who looks at all of its pods.
"""

from __future__ import annotations

import logging
from typing import Protocol

from aliquot.client import AsyncPool, LeaseNotFound, PoolError
from aliquot.kube.core import names

log = logging.getLogger(__name__)

REASON = "its pod has gone"
TIMEOUT_S = 10.0


class Releaser(Protocol):
    """Gives leases back."""

    async def release(self, lease_id: str, pod_uid: str) -> None:
        """Give a lease back that is this pod's alone. What fails is tried again later, by calling again."""


class PoolReleaser:
    """By the pool's coordinator."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool

    async def release(self, lease_id: str, pod_uid: str) -> None:
        """See `Releaser`."""
        try:
            lease = await self._pool.get(lease_id)
            if lease.labels.get(names.LEASE_POD_UID) != pod_uid:
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

    async def release(self, lease_id: str, pod_uid: str) -> None:
        """Nothing."""
