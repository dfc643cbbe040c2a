"""A line in the log for each thing of note that befalls a lease, at level debug: thousands come each second."""

from __future__ import annotations

import logging

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.outbox import Follower

log = logging.getLogger(__name__)


class LeaseLog(Follower):
    """Follows what is durable, so it says nothing that could be taken back."""

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """See `Follower`."""
        if new is None or not log.isEnabledFor(logging.DEBUG):
            return
        if old is None or old.state is not new.state:
            log.debug(
                "lease is %s",
                new.state.name,
                extra={
                    "lease_id": new.lease_id,
                    "tenant": new.request.tenant,
                    "principal": new.ended_by if new.ended else new.by,
                    "nodes": ",".join(sorted({piece.plan.node_id for piece in new.current})),
                    "reason": new.end_reason,
                },
            )
