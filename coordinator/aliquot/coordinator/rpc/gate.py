"""Lets calls in: to nobody while this coordinator does not lead, then to those who may make them.

The gate stands before all services of a server whose port is open all the time, so that nobody has to be told twice
where the coordinators are. While it is closed, launchers find the leader's address in the error's metadata, agents in
the trailers. While it is open, a call is let in by its token, before its message is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from aliquot.common import logging as logs
from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.books.roles import ever_may
from aliquot.coordinator.core.values.errors import RoleMissing
from aliquot.coordinator.errors import Overloaded, Unauthenticated
from aliquot.coordinator.reading.denials import Denials
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.rpc.authentication import Authenticator
from aliquot.coordinator.rpc.caller import NOBODY, Caller, caller, missing, set_caller
from aliquot.coordinator.rpc.lasting import LastingCalls
from aliquot.coordinator.rpc.permissions import ACTIONS, BY_THEMSELVES, KEEPING, LASTING
from aliquot.coordinator.rpc.rates import Buckets, CallerBounds
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.calls import Context, Handler, Methods, read_before_refusing, tolerant
from aliquot.coordinator.wire.errors import DETAILS_KEY, DOMAIN

LEADER_KEY = "leader"
REQUEST_ID = "x-request-id"
_REQUEST_ID_CHARS_MAX = 64
_PACKAGE = "/aliquot."
_RETRY_KNOWN_MS = 300
_RETRY_UNKNOWN_MS = 150
"""A takeover is short: callers come back soon."""
_AGENTS = "/aliquot.v1.AgentService/"
_REFUSED_AGENTS_PER_S = 2_000
"""What agents that ask for the leader may cost a standby, which has a takeover to do: many are told to come back later.
"""
_GUESSES = frozenset({"TOKEN_MISSING", "TOKEN_UNKNOWN", "INVITE_UNKNOWN"})
"""What strangers are refused for; a token that has ended is nobody's guess, and is always called by its name."""
_FAILURES, _FAILURES_PER_S = 600, 10
"""So many of an address, and then so many a second, are told why they are refused, and kept; and so many of its calls
that name no method or bring no message are answered at once.
"""
_STRANGERS_KEPT = 4_096
HELD_S, HELD_MAX = 0.01, 1_024
"""Who is told to come back later is told so long after the one before, so that a flood that waits for its answers is no
denser; beyond this number that are kept, at once.
"""
_HELD_BYTES = 64 << 10
"""So much of messages that are kept with them takes the room of one more."""
_PRINCIPALS_KEPT = 65_536


class Door(Follower):
    """Who may come in while the gate is open, and what becomes of those who are in."""

    def __init__(self, authenticator: Authenticator, denials: Denials, clock: Clock, bounds: CallerBounds) -> None:
        self.authenticator = authenticator
        self.denials = denials
        self.lasting = LastingCalls(bounds.streams_max)
        self.rates = Buckets(clock.monotonic_ms, bounds.requests_per_s, bounds.burst, _PRINCIPALS_KEPT)
        self._strangers = Buckets(clock.monotonic_ms, _FAILURES_PER_S, _FAILURES, _STRANGERS_KEPT)
        """By address."""
        self._held = 0

    async def hold(self, kept_bytes: int = 0) -> None:
        """Keep a refusal until those that are kept have been told theirs; one with a large message takes more room."""
        room = 1 + kept_bytes // _HELD_BYTES
        if self._held + room <= HELD_MAX:
            self._held += room
            try:
                await asyncio.sleep(HELD_S * self._held)
            finally:
                self._held -= room

    async def in_turn(self, peer: str, kept_bytes: int) -> bool:
        """See `rpc_errors.turn_away`."""
        if not self._worthless(peer):
            return False
        await self.hold(kept_bytes)
        return True

    def _worthless(self, peer: str) -> int:
        """Count a call that came to nothing. Answers with 0, or in how many milliseconds its address may come back."""
        return self._strangers.take(peer.rpartition(":")[0])

    def callers_changed(self, principals: frozenset[str], token_ids: frozenset[str]) -> None:
        """Durably: from now on nobody is known by what was true before, and what it opened ends."""
        self.authenticator.changed(principals, token_ids)
        self.lasting.changed(self.authenticator.caller_with, token_ids, principals)

    def adopt(self, bounds: CallerBounds) -> None:
        """Hold callers to these from now on."""
        self.lasting.streams_max = bounds.streams_max
        self.rates.adopt(bounds.requests_per_s, bounds.burst)

    def admit(self, call: grpc.HandlerCallDetails) -> Caller:
        """The caller, if it may make this call anywhere, and now. Raises Unauthenticated, RoleMissing, Overloaded."""
        if call.method in BY_THEMSELVES:
            return NOBODY
        who = self.authenticator.find(call.invocation_metadata)
        if call.method not in KEEPING and (early_ms := self.rates.take(who.principal)):
            raise Overloaded(
                f"{who.principal} calls more often than one caller may (`access.requests_per_s`)",
                retry_after_ms=early_ms,
            )
        return _may_call(who, call.method)

    def admit_again(self, method: str) -> None:
        """Look once more, now that a message is there: a caller may take its time between opening a call and sending
        what it is about, and its token may have ended or its roles have changed meanwhile. Raises as `admit`.
        """
        who = caller()
        now = self.authenticator.as_of_now(who)
        if now is not who:
            set_caller(_may_call(now, method))

    def refused(self, principal: str, peer: str, method: str, error: AliquotError) -> AliquotError:
        """Note a refusal. Answers with what to say: strangers who come again and again are told to come back later."""
        if error.reason in _GUESSES and (early_ms := self._worthless(peer)):
            self.denials.by_reason[Overloaded.reason] += 1
            said = f"too many calls from this address were refused, the last one because {error.message}"
            return Overloaded(said, retry_after_ms=early_ms)
        self.denials.note(principal, peer, method, error.reason, error.message)
        return error

    def wrap(self, method: str, handler: Handler) -> Handler:
        """A method as it is called behind the door."""
        handler = tolerant(handler, partial(self.admit_again, method))
        return self.lasting.wrap(handler, counted=method not in KEEPING) if method in LASTING else handler


class Gate(grpc.GenericRpcHandler):
    """Answers all calls of the contract while it is closed; lets those who may make them through while it is open."""

    def __init__(self) -> None:
        self._methods = Methods((), _as_it_is)
        self._door: Door | None = None
        self.leader = ""
        """The address to name; empty while nobody is known to lead."""
        self.away: AliquotError | None = None
        """Why nobody is known to lead, where there is more to say: the database is away, or clocks are apart."""
        self._nodes = 0
        self._calls = 0
        self._refusal: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._refuse)
        self._agents: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self._refuse_agent)

    @property
    def is_open(self) -> bool:
        """Whether calls reach the services."""
        return self._door is not None

    def refer_to(self, leader: str, nodes: int, away: AliquotError | None = None) -> None:
        """Name this leader from now on, or why nobody is known. The agents of all `nodes` may ask at the same time."""
        self.leader, self._nodes, self.away = leader, nodes, away

    def open(self, services: Sequence[grpc.GenericRpcHandler], door: Door) -> None:
        """This coordinator leads: let calls through to these from now on."""
        self._methods, self._door = Methods(services, door.wrap), door

    def close(self) -> None:
        """This coordinator does not lead, or no longer; what served while it led is let go."""
        self._methods, self._door = Methods((), _as_it_is), None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        """See `grpc.GenericRpcHandler`. gRPC asks in the task that answers the call, which so knows its caller."""
        method = handler_call_details.method
        door = self._door
        if door is not None:
            rpc_errors.in_turn.set(door.in_turn)
        if not method.startswith(_PACKAGE):
            return None
        if door is None:
            return self._agents if method.startswith(_AGENTS) else self._refusal
        handler = self._methods.find(handler_call_details)
        if handler is None:
            return None
        try:
            who = door.admit(handler_call_details)
        except AliquotError as error:
            return self._denial(door, handler_call_details, error)
        set_caller(who)
        self._calls += 1
        logs.about(_facts(handler_call_details, who, self._calls))
        return handler

    @staticmethod
    def _denial(door: Door, call: grpc.HandlerCallDetails, error: AliquotError) -> grpc.RpcMethodHandler[bytes, bytes]:
        principal = error.principal if isinstance(error, RoleMissing) else ""
        method = call.method

        async def deny(_: object, context: Context) -> None:
            said = door.refused(principal, context.peer(), method.rpartition("/")[2], error)
            await read_before_refusing(context)
            if said is not error:
                await door.hold()
            await rpc_errors.abort(context, said)

        return grpc.stream_stream_rpc_method_handler(deny)

    async def _refuse(self, _: object, context: Context) -> None:
        await self._abort(context, _RETRY_KNOWN_MS if self.leader else _RETRY_UNKNOWN_MS)

    async def _refuse_agent(self, _: object, context: Context) -> None:
        await read_before_refusing(context)
        await self._abort(context, max(_RETRY_KNOWN_MS, 1000 * self._nodes // _REFUSED_AGENTS_PER_S))

    async def _abort(self, context: Context, retry_ms: int) -> None:
        leader = self.leader
        if self.away is not None:
            await rpc_errors.abort(context, self.away)
        message = f"the coordinator at {leader} leads" if leader else "no coordinator leads at the moment"
        status = status_pb2.Status(code=grpc.StatusCode.UNAVAILABLE.value[0], message=message)
        info = error_details_pb2.ErrorInfo(reason="NOT_LEADER", domain=DOMAIN)
        if leader:
            info.metadata[LEADER_KEY] = leader
        status.details.add().Pack(info)
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(retry_ms)
        status.details.add().Pack(retry)
        trailers: list[tuple[str, str | bytes]] = [(DETAILS_KEY, status.SerializeToString())]
        if leader:
            trailers.append((LEADER_KEY, leader))
        await context.abort(grpc.StatusCode.UNAVAILABLE, message, tuple(trailers))


def _may_call(who: Caller, method: str) -> Caller:
    """The caller, if it may call this method for any scope."""
    actions = ACTIONS.get(method, ())
    for action in actions:
        if ever_may(who.grants, action):
            return who
    if actions:
        raise missing(who, actions[0])
    raise Unauthenticated("TOKEN_MISSING", f"{method} is open to nobody")


def _as_it_is(_: str, handler: Handler) -> Handler:
    return handler


class Services:
    """Takes what generated code adds to a server, for a gate to hand out."""

    def __init__(self, handlers: Sequence[grpc.GenericRpcHandler] = ()) -> None:
        self.handlers = list(handlers)

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As `grpc.aio.Server` has it."""
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """The same methods by name; the generic handlers know them."""


def _facts(call: grpc.HandlerCallDetails, who: Caller, number: int) -> dict[str, object]:
    """What is logged with all that this call does. Callers may number their calls themselves (`x-request-id`)."""
    stated: object = next((value for key, value in call.invocation_metadata or () if key == REQUEST_ID), None)
    own = isinstance(stated, str) and len(stated) <= _REQUEST_ID_CHARS_MAX
    facts: dict[str, object] = {
        "request_id": stated if own else number,
        "principal": who.principal,
        "method": call.method.rpartition("/")[2],
    }
    if who.lease_id:
        facts["lease_id"] = who.lease_id
    return facts
