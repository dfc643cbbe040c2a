"""Resuming a watch after a break, and listing again when changes were missed. Shared by both twins; does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from aliquot.client._from_proto import event_of, fleet_change_of
from aliquot.client._methods import LEASES, POOL, Method
from aliquot.client._retrying import UNAUTHENTICATED, Context, is_passing, pause_s
from aliquot.client._values.events import Event, Resynced
from aliquot.client._values.leases import Lease
from aliquot.client.fleet import FleetChange
from aliquot.common.failures import RpcFailure
from aliquot.v1 import leases_pb2, pool_pb2


@dataclass(frozen=True, slots=True)
class WatchFilter:
    """Which changes to follow. Empty fields don't filter."""

    tenant: str = ""
    lease_ids: Sequence[str] = ()
    nodes: bool = False
    """Changes of nodes too."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Wait this long, then open the stream again."""

    after_s: float


@dataclass(frozen=True, slots=True)
class Relist:
    """List everything, tell the user, and continue from the list."""


class Cursor:
    """A stream that is opened again after a break."""

    def __init__(self, context: Context, method: Method[Any, Any]) -> None:
        self._context = context
        self.method = method
        self._failures = 0
        self._generation = context.token.generation

    def again(self, failure: RpcFailure | None, address: str) -> Reconnect:
        """When to open it again after it ended. Raises the typed error when trying again can't help."""
        endpoints = self._context.endpoints
        if failure is not None:
            leader = failure.metadata.get("leader", "")
            if failure.reason == "NOT_LEADER" and leader:
                self._context.follow(leader)
                failure = None  # the leader has not said when to come
            elif failure.code == UNAUTHENTICATED and self._context.token.renewed(self._generation):
                failure = None
            elif is_passing(failure):
                endpoints.advance(address)
            else:
                raise self._context.error_of(failure, self.method, 0.0)
        self._failures += 1
        return Reconnect(pause_s(self._context, self._failures, failure))

    def request(self) -> Message:
        """The message that resumes here."""
        raise NotImplementedError

    def ended(self, failure: RpcFailure | None, address: str) -> Reconnect | Relist:
        """What to do after the stream ended. Raises the typed error when trying again can't help."""
        return self.again(failure, address)

    def opening(self) -> None:
        """It is opened with the token of now."""
        self._generation = self._context.token.generation

    def heard(self) -> None:
        """It has brought something."""
        self._failures = 0


class WatchCursor(Cursor):
    """How far a watch has come."""

    def __init__(self, context: Context, which: WatchFilter, after_seq: int) -> None:
        super().__init__(context, LEASES["Watch"])
        self._which = which
        self.seq = after_seq

    def request(self) -> leases_pb2.WatchRequest:
        """The message that resumes here."""
        self.opening()
        return leases_pb2.WatchRequest(
            after_seq=self.seq,
            tenant=self._which.tenant,
            lease_ids=self._which.lease_ids,
            nodes=self._which.nodes,
            batches=True,
        )

    def take(self, message: leases_pb2.WatchEvent) -> Iterator[Event]:
        """The events in a message; none in a bookmark. Take them all: who stops resumes behind the last one taken."""
        self.heard()
        for each in (message, *message.more):
            self.seq = max(self.seq, each.seq)
            event = event_of(each)
            if event is not None:
                yield event

    def relisted(self, seq: int, leases: Iterable[Lease]) -> Resynced:
        """Continue after a list of everything up to `seq`. Returns the leases that this watch follows."""
        self.seq = seq
        ids = frozenset(self._which.lease_ids)
        return Resynced(seq, tuple(lease for lease in leases if not ids or lease.lease_id in ids))

    def ended(self, failure: RpcFailure | None, address: str) -> Reconnect | Relist:
        """See `Cursor`."""
        if failure is not None and failure.reason == "WATCH_COMPACTED":
            return Relist()
        return self.again(failure, address)


class FleetCursor(Cursor):
    """How far a watch of the fleet has come."""

    def __init__(self, context: Context, layout: int, version: int, *, guard: bool) -> None:
        super().__init__(context, POOL["WatchFleet"])
        self._layout = layout
        self._version = version
        self._guard = guard

    def request(self) -> pool_pb2.WatchFleetRequest:
        """The message that resumes here."""
        self.opening()
        return pool_pb2.WatchFleetRequest(layout=self._layout, version=self._version, guard=self._guard)

    def take(self, message: pool_pb2.FleetEvent) -> FleetChange | None:
        """The change in a message; None where it is but a sign of life. Of a guard those are all there is."""
        self.heard()
        if self._guard:
            return fleet_change_of(message)
        # A snapshot that breaks off in the middle is begun again: until its last part there is no version to resume at.
        self._layout, self._version = (message.layout, message.version) if message.version else (0, 0)
        told = message.resets or message.nodes or message.states or message.use
        return fleet_change_of(message) if told else None
