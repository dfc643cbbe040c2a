"""What a launcher's stream of keep-alives is answered: which leases go on, which are lost, what changes for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from aliquot.common import limits
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.reading.activity import Activity
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.rpc.caller import caller
from aliquot.coordinator.upkeep.keepalive import KeepAlive
from aliquot.coordinator.wire.calls import check_count
from aliquot.coordinator.wire.leases import lost_reason, preempting_deadline_ms, write_lease
from aliquot.v1 import leases_pb2

KEEPERS_MAX = 20_000
"""Streams of keep-alives: one a launcher."""
_KEPT_PER_TURN = 2_000
_NOTHING_KEPT_MS = 60_000
_RESIZED_PER_MESSAGE = 100


class Keeping:
    """See the module's docstring."""

    def __init__(self, view: View, keepalive: KeepAlive, activity: Activity) -> None:
        self._view = view
        self._keepalive = keepalive
        self._activity = activity
        self._streams = 0

    @contextmanager
    def stream(self) -> Iterator[str]:
        """Count the caller's stream while it is open. Gives why it is one too many; empty: it isn't."""
        self._streams += 1
        too_many = self._streams > KEEPERS_MAX
        try:
            yield f"{KEEPERS_MAX} launchers keep leases alive, which is the bound" if too_many else ""
        finally:
            self._streams -= 1

    async def keep(self, lease_ids: Sequence[str]) -> leases_pb2.KeepAliveResponse:
        """These of the caller's go on. Raises InvalidFieldError or RoleMissing."""
        check_count(lease_ids, limits.MAX_KEEPALIVE_IDS, "lease_ids")
        response = leases_pb2.KeepAliveResponse()
        who = caller()
        smallest_ms = 0
        for number, lease_id in enumerate(lease_ids):
            if number % _KEPT_PER_TURN == _KEPT_PER_TURN - 1:
                await asyncio.sleep(0)
            lease = self._view.leases.get(lease_id)
            reason = lost_reason(lease)
            if reason or lease is None:
                response.lost[lease_id] = reason
                continue
            who.must_hold(lease, Action.KEEP_OTHERS)
            response.kept += 1
            ttl_ms = self._keepalive.renew(lease_id)
            self._activity.kept(lease_id)
            if lease.use.warned > lease.use.told and len(response.warned) < _RESIZED_PER_MESSAGE:
                self._activity.answered(lease_id, lease.use.warned)
                text = lease.warnings[-1] if lease.warnings else ""
                response.warned.add(lease_id=lease_id, number=lease.use.warned, text=text, act_ms=lease.use.act_ms)
            if ttl_ms is not None and (not smallest_ms or ttl_ms < smallest_ms):
                smallest_ms = ttl_ms
            deadline_ms = preempting_deadline_ms(lease)
            if deadline_ms:
                response.preempting[lease_id] = deadline_ms
            elif lease.shape != lease.acknowledged_shape and len(response.resized) < _RESIZED_PER_MESSAGE:
                write_lease(response.resized.add(), lease, self._view, who.sees)
        response.renew_within_ms = smallest_ms or _NOTHING_KEPT_MS
        return response
