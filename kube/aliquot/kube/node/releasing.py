"""Gives back leases whose pods have gone, also while nobody else does: capacity must not wait for a controller.

The lease itself says whose it is, so a pod that came by another's assignment can't end it. The lease of a gang is left
to who looks at all of its pods.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from aliquot.client import AsyncPool, LeaseNotFound, PoolError
from aliquot.kube.core import names

log = logging.getLogger(__name__)

Release = Callable[[str, str], Awaitable[None]]
"""Gives a lease back, by its id and its pod's uid."""

REASON = "its pod has gone"
TIMEOUT_S = 10.0


async def release(pool: AsyncPool, lease_id: str, pod_uid: str) -> None:
    """Give a lease back that is this pod's alone. What fails is tried again later, by calling again."""
    try:
        lease = await pool.get(lease_id)
        if lease.labels.get(names.LEASE_POD_UID) != pod_uid:
            return
        await pool.release(lease_id, reason=REASON)
    except LeaseNotFound:
        return
    except PoolError as error:
        log.warning("lease %s, whose pod has gone, could not be released: %s", lease_id, error.message)
    else:
        log.info("released", extra={"lease_id": lease_id})
