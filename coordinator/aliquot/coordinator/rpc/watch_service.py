"""Streams for those who look: durable changes (LeaseService.Watch), all devices as columns (PoolService.WatchFleet).

Both send a bookmark now and then when nothing happens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator

from aliquot.common import limits
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import varint
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.reading.fleet import Fleet
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.watch import Change, Watcher, WatchHub
from aliquot.coordinator.rpc.caller import caller
from aliquot.coordinator.wire.calls import check_size, readable
from aliquot.coordinator.wire.hiding import Sees, of_tenant
from aliquot.coordinator.wire.leases import lease_message
from aliquot.coordinator.wire.nodes import NodeWriter
from aliquot.v1 import leases_pb2, pool_pb2

BOOKMARK_EVERY_S = 10.0
_BATCH_BYTES = 64 * limits.KIB
"""In one message: some milliseconds to encode."""
_REQUEST_BYTES_MAX = 64 * limits.KIB
"""What is kept of each watcher as long as it watches: three times as much as the ids of 1,000 leases."""
_FLEET_REQUEST_BYTES_MAX = 1 * limits.KIB
_MORE_TAG = bytes([leases_pb2.WatchEvent.MORE_FIELD_NUMBER << 3 | 2])


class FleetService:
    """All devices as columns. Whoever may read the pool's state sees all of it: nothing in it is a tenant's."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    async def watch(self, request: pool_pb2.WatchFleetRequest) -> AsyncGenerator[bytes, None]:
        """`FleetEvent`s until the caller leaves, each encoded once, however many get it. Raises AliquotError."""
        request = readable(request)
        check_size(request, _FLEET_REQUEST_BYTES_MAX)
        if request.guard:
            while True:
                yield b""
                await asyncio.sleep(BOOKMARK_EVERY_S)
        following = self._fleet.follow(request.layout, request.version, BOOKMARK_EVERY_S)
        async with contextlib.aclosing(following) as events:
            async for event in events:
                yield event


class WatchService:
    """Durable changes."""

    def __init__(self, hub: WatchHub, view: View, nodes: NodeWriter) -> None:
        self._hub = hub
        self._view = view
        self._nodes = nodes

    async def watch(self, request: leases_pb2.WatchRequest) -> AsyncGenerator[bytes, None]:
        """`WatchEvent`s until the caller leaves or falls behind, each encoded once, however many get it.

        Raises AliquotError.
        """
        request = readable(request)
        check_size(request, _REQUEST_BYTES_MAX)
        if len(request.lease_ids) > limits.MAX_WATCHED_LEASES:
            raise InvalidFieldError(
                "lease_ids", f"{len(request.lease_ids)} leases; at most {limits.MAX_WATCHED_LEASES}"
            )
        who = caller()
        if request.tenant:
            who.must(Action.READ_LEASES, request.tenant)
        watcher = self._hub.watch(
            after_seq=request.after_seq,
            tenant=request.tenant,
            lease_ids=request.lease_ids,
            nodes=request.nodes,
            sees=None if who.sees_all else who.may_see,
        )
        whole = who.sees_all
        try:
            # At once, so that the caller knows where it stands before anything happens.
            yield self._encoded(Change(watcher.seq, self._hub.at_ms, None), whole=whole)
            while True:
                message = self._encoded(await watcher.next(BOOKMARK_EVERY_S), whole=whole)
                yield message + b"".join(self._more(watcher, whole=whole)) if request.batches else message
        finally:
            watcher.close()

    def _more(self, watcher: Watcher, *, whole: bool) -> Iterator[bytes]:
        """What else waits, each as one more of the field `more`."""
        size = 0
        while size < _BATCH_BYTES and (change := watcher.take()) is not None:
            event = self._encoded(change, whole=whole)
            size += len(event)
            yield b"%b%b%b" % (_MORE_TAG, varint(len(event)), event)

    def _encoded(self, change: Change, *, whole: bool) -> bytes:
        """For those who see all leases, or for those who see their tenants': once each, however many they are."""
        if whole:
            if not change.encoded:
                change.encoded = self._event(change, None).SerializeToString()
            return change.encoded
        if not change.encoded_for_tenants:
            record = change.record
            sees = of_tenant(record.request.tenant) if isinstance(record, Lease) else None
            change.encoded_for_tenants = self._event(change, sees).SerializeToString()
        return change.encoded_for_tenants

    def _event(self, change: Change, sees: Sees | None) -> leases_pb2.WatchEvent:
        event = leases_pb2.WatchEvent(seq=change.seq, at_ms=change.at_ms)
        record = change.record
        if record is None:
            event.bookmark.SetInParent()
        elif isinstance(record, Lease):
            event.lease.CopyFrom(lease_message(record, self._view, sees))
        else:
            event.node.CopyFrom(self._nodes.node_message(record, with_devices=False))
        return event
