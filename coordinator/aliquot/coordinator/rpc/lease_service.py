"""LeaseService: what launchers call. Thin: each method is a command or a look at the View, and a wait where one is
asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import AsyncGenerator, AsyncIterator

from aliquot.common import limits
from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.coordinator.agents.lease_secrets import lease_secret
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.deciding.answers.use import GetUse
from aliquot.coordinator.core.known.use_windows import Efficiency
from aliquot.coordinator.core.values.errors import no_lease
from aliquot.coordinator.errors import JournalUnavailable, Overloaded, ShuttingDown
from aliquot.coordinator.reading.tracing.story import Story, story_of
from aliquot.coordinator.reading.waiting import Condition, active, ended, granted
from aliquot.coordinator.rpc.asking import Asking
from aliquot.coordinator.rpc.caller import at_home, caller, missing
from aliquot.coordinator.rpc.keeping import Keeping
from aliquot.coordinator.rpc.rates import Buckets
from aliquot.coordinator.rpc.service import Led, Service
from aliquot.coordinator.rpc.watch_service import WatchService
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.calls import (
    check_count,
    check_size,
    in_turns,
    page_after,
    page_size,
    readable,
    stated_reason,
    streamed,
    this_call,
    unary,
)
from aliquot.coordinator.wire.hiding import Sees
from aliquot.coordinator.wire.leases import (
    add_measured,
    explanation_message,
    lease_message,
    notes_on_tiers,
    redacted,
    write_lease,
)
from aliquot.coordinator.wire.requests import read_request
from aliquot.coordinator.wire.use_report import report_message, timeline_message
from aliquot.v1 import leases_pb2 as pb
from aliquot.v1 import leases_pb2_grpc, types_pb2

_SCANNED_PER_PAGE = 20_000
"""A page ends after so many records, full or not, so that a narrow filter never blocks the event loop."""
_SLICES_PER_PAGE = 10_000
"""...and after so many slices, so that it stays a message of ordinary size."""
_STORIES_MAX = 8
_WAITING_BYTES_MAX = limits.MIB
"""Of a call that may wait: it is kept as long. A request with every list full has 0.6 MiB."""
_EXPLAINED_WITHIN_S = 2.0
"""A lease is shown without why it waits where that can't be said so soon."""
_ANSWERED_IN_S = 0.1
"""What is kept of a call's time for the answer to arrive."""
_EXIT_CODE_MAX = 255


class LeaseService(Service, leases_pb2_grpc.LeaseServiceServicer):
    """See the module's docstring."""

    def __init__(self, led: Led, watch: WatchService, rates: Buckets) -> None:
        super().__init__(led)
        self._journal = led.journal
        self._forecasts = led.forecasts
        self._waiters = led.waiters
        self._keepalive = led.keepalive
        self._observed = led.observed
        self._asking = Asking(led.writer, led.view, led.ids, led.keepalive)
        self._keeping = Keeping(led.view, led.keepalive, led.activity)
        self._watch = watch
        self._rates = rates
        self._one_story = asyncio.Lock()
        self._stories = 0

    # -- asking

    @unary
    async def Allocate(self, request: pb.AllocateRequest) -> pb.AllocateResponse:
        """Ask for a lease, and wait for it as far as asked."""
        check_size(request, _WAITING_BYTES_MAX)
        timeout_s = _timeout_s(request.wait_timeout_ms, limits.DEFAULT_WAIT_MS, "wait_timeout_ms")
        condition = _condition(request.wait_until)
        wish = self._asking.read(request)
        if condition is not None:
            self._waiters.check_room()
        outcome = await self._asking.outcome(self._asking.ask(wish))
        return await self._answer(outcome, condition, timeout_s)

    async def _answer(
        self, outcome: AllocateOutcome, condition: Condition | None, timeout_s: float
    ) -> pb.AllocateResponse:
        """The lease, once it is as its caller wants it."""
        lease = self._lease(outcome.lease_id)
        if outcome.replayed:
            caller().must_hold(lease, Action.KEEP_OTHERS)  # a colleague's: not even kept alive by whoever has its key
        if condition is not None and not condition(lease):
            with self._keepalive.holding(lease.lease_id):
                await self._waiters.wait(lease, condition, timeout_s)
            lease = self._lease(outcome.lease_id)
        response = pb.AllocateResponse(replayed=outcome.replayed)
        self._write_own(response.lease, lease, caller().sees)
        await self._explain_wait(lease, response.lease)
        return response

    @unary
    async def GrantOn(self, request: pb.GrantOnRequest) -> pb.AllocateResponse:
        """A lease exactly where somebody else has decided, or why not."""
        check_size(request, _WAITING_BYTES_MAX)
        timeout_s = _timeout_s(request.wait_timeout_ms, limits.DEFAULT_WAIT_MS, "wait_timeout_ms")
        condition = _condition(request.wait_until) or granted
        wish = self._asking.read(request)
        self._waiters.check_room()
        outcome = await self._asking.outcome(self._asking.ask(wish))
        return await self._answer(outcome, condition, timeout_s)

    @unary
    async def AllocateBatch(self, request: pb.AllocateBatchRequest) -> pb.AllocateBatchResponse:
        """Many at once, decided in order and answered together."""
        check_count(request.items, limits.MAX_BATCH_ITEMS, "items")
        check_count(request.grants, limits.MAX_BATCH_ITEMS - len(request.items), "grants")
        self._rates.charge(caller().principal, len(request.items) + len(request.grants) - 1)
        asked = [self._asking.try_ask(item) async for item in in_turns(request.items)]
        asked += [self._asking.try_ask(grant) async for grant in in_turns(request.grants)]
        response, who = pb.AllocateBatchResponse(), caller()
        sees = who.sees
        async for ask in in_turns(asked):
            result = response.results.add()
            try:
                if isinstance(ask, AliquotError):
                    raise ask
                outcome = await self._asking.outcome(ask)
                lease = self._lease(outcome.lease_id)
                if outcome.replayed:
                    who.must_hold(lease, Action.KEEP_OTHERS)
                self._write_own(result.lease, lease, sees)
            except AliquotError as error:
                self.refuse(error)
                result.error.CopyFrom(rpc_errors.status_of(error))
        return response

    def _seen_message(self, lease: Lease) -> types_pb2.Lease:
        """With what was measured of its slices, for callers that look at it."""
        return lease_message(lease, self._view, caller().sees, observed=self._observed)

    def _efficiency(self, lease_id: str) -> Efficiency | None:
        decider = self._writer.decider
        return decider.efficiency(lease_id) if decider is not None else None

    def _write_own(self, message: types_pb2.Lease, lease: Lease, sees: Sees | None) -> None:
        """With its secret, for the caller that asked for it or may hold it."""
        write_lease(message, lease, self._view, sees, secret=lease_secret(self._journal.pool_secret, lease.lease_id))

    @unary
    async def Explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        """A dry run, or why a lease is where it is."""
        if request.WhichOneof("subject") == "lease_id":
            lease = self._lease(request.lease_id)
            if not caller().may_see(lease):
                return pb.ExplainResponse(lease=redacted(lease, self._view))
            why = await self._why(lease.lease_id)
            seen = self._seen_message(self._lease(lease.lease_id))
            why.notes.extend(notes_on_tiers(seen.slices))
            return pb.ExplainResponse(explanation=why, lease=seen)
        read = read_request(at_home(request.request), self._view.node_id_of)
        caller().must(Action.ALLOCATE, read.spec.tenant)
        explained = await self._writer.query(Explain(read.spec))
        return pb.ExplainResponse(explanation=explanation_message(explained, self._view, caller().sees))

    async def _explain_wait(self, lease: Lease, message: types_pb2.Lease) -> None:
        """Add why it waits, if it does, unless questions can't be answered now, or not soon."""
        if lease.state is LeaseState.QUEUED:
            with contextlib.suppress(JournalUnavailable, Overloaded, ShuttingDown, TimeoutError):
                async with asyncio.timeout(_before_deadline_s(_EXPLAINED_WITHIN_S, _ANSWERED_IN_S)):
                    message.waiting.CopyFrom(await self._why(lease.lease_id))

    async def _why(self, lease_id: str) -> types_pb2.Explanation:
        explained = await self._writer.query(ExplainLease(lease_id))
        message = explanation_message(explained, self._view, caller().sees)
        if self._forecasts is not None:
            self._forecasts.tell_start(lease_id, message)
        return message

    # -- keeping

    @streamed
    async def KeepAlive(
        self, request_iterator: AsyncIterator[pb.KeepAliveRequest]
    ) -> AsyncGenerator[pb.KeepAliveResponse, None]:
        """One answer per message, in order."""
        with self._keeping.stream() as too_many:
            async for request in request_iterator:
                if too_many:  # after reading: see `read_before_refusing`
                    raise Overloaded(too_many, retry_after_ms=5_000)
                yield await self._keeping.keep(readable(request).lease_ids)

    @unary
    async def AcknowledgeShape(self, request: pb.AcknowledgeShapeRequest) -> types_pb2.Lease:
        """The launcher of an elastic lease has adapted; the lease as it is then."""
        caller().must_hold(self._lease(request.lease_id), Action.KEEP_OTHERS)
        await self._writer.submit(c.AcknowledgeShape(request.lease_id, request.shape))
        return lease_message(self._lease(request.lease_id), self._view, caller().sees)

    # -- ending

    @unary
    async def Release(self, request: pb.ReleaseRequest) -> pb.ReleaseResponse:
        """End a lease; one that has ended is answered as it is."""
        check_size(request, _WAITING_BYTES_MAX)
        timeout_s = _timeout_s(request.wait_timeout_ms, limits.DEFAULT_WAIT_GONE_MS, "wait_timeout_ms")
        detail = stated_reason(request.reason)
        who = caller()
        who.must_hold(self._lease(request.lease_id), Action.END_OTHERS)
        exit_code = request.exit_code if request.HasField("exit_code") else None
        if exit_code is not None and exit_code > _EXIT_CODE_MAX:
            raise InvalidFieldError("exit_code", f"{exit_code}; 0 to {_EXIT_CODE_MAX}")
        await self._writer.submit(c.Release(request.lease_id, detail=detail, by=who.principal, exit_code=exit_code))
        lease = self._lease(request.lease_id)
        if request.wait_gone and not lease.ended:
            await self._waiters.wait(lease, ended, timeout_s)
            lease = self._lease(request.lease_id)
        response = pb.ReleaseResponse()
        write_lease(response.lease, lease, self._view, who.sees)
        return response

    @unary
    async def ReleaseBatch(self, request: pb.ReleaseBatchRequest) -> pb.ReleaseBatchResponse:
        """Many at once."""
        check_count(request.lease_ids, limits.MAX_BATCH_ITEMS, "lease_ids")
        self._rates.charge(caller().principal, len(request.lease_ids) - 1)
        replies = [self._end(lease_id) async for lease_id in in_turns(request.lease_ids)]
        response, sees = pb.ReleaseBatchResponse(), caller().sees
        async for lease_id, reply in in_turns(zip(request.lease_ids, replies, strict=True)):
            result = response.results.add()
            try:
                if isinstance(reply, AliquotError):
                    raise reply
                await reply
                write_lease(result.lease, self._lease(lease_id), self._view, sees)
            except AliquotError as error:
                self.refuse(error)
                result.error.CopyFrom(rpc_errors.status_of(error))
        return response

    # -- looking

    @unary
    async def Get(self, request: pb.GetRequest) -> types_pb2.Lease:
        """One lease, and why it waits if it does."""
        lease = self._lease(request.lease_id)
        if not caller().may_see(lease):
            return redacted(lease, self._view)
        message = self._seen_message(lease)
        add_measured(message.use, lease, self._efficiency(lease.lease_id), self._observed)
        troubles = self._writer.troubles(lease.lease_id)
        message.set_aside.extend(str(trouble) for trouble in troubles if trouble.set_aside)
        if not troubles:  # explaining it would fail as well
            await self._explain_wait(lease, message)
        return message

    @unary
    async def GetTimeline(self, request: pb.GetTimelineRequest) -> pb.Timeline:
        """What has happened to a lease."""
        lease = self._lease(request.lease_id)
        if not caller().may_see(lease):
            raise missing(caller(), Action.READ_LEASES, "")  # whose it is, is none of its business
        if self._stories == _STORIES_MAX:
            raise Overloaded(f"{_STORIES_MAX} timelines are being read", retry_after_ms=1_000)
        # One at a time, and to its end even where nobody waits for it any more: a thread can't be stopped.
        sees = caller().sees
        return timeline_message(lease, await asyncio.shield(self._read_story(lease)), self._view, sees)

    async def _read_story(self, lease: Lease) -> Story:
        self._stories += 1
        try:
            async with self._one_story:
                return await asyncio.to_thread(story_of, self._journal, lease)
        finally:
            self._stories -= 1

    @unary
    async def List(self, request: pb.ListRequest) -> pb.ListResponse:
        """A page of leases, in order of arrival."""
        size = page_size(request.page_size, limits.DEFAULT_PAGE_SIZE, limits.MAX_PAGE_SIZE)
        after = page_after(request.page_token, "a")
        who = caller()
        if request.tenant:
            who.must(Action.READ_LEASES, request.tenant)
        sees = who.sees
        states = frozenset(request.states)
        ended_too = int(LeaseState.ENDED) in states
        response = pb.ListResponse(seq=self._view.seq)
        slices = 0
        leases = self._view.leases_after(after, tenant=request.tenant, live_only=not ended_too)
        for scanned, lease in enumerate(leases):
            if len(response.leases) == size or scanned == _SCANNED_PER_PAGE or slices > _SLICES_PER_PAGE:
                response.next_page_token = f"a{after}"
                break
            after = lease.arrival
            if (sees is None or sees(lease)) and _matches(lease, request, states):
                write_lease(response.leases.add(), lease, self._view, sees, observed=self._observed)
                slices += len(lease.slices)
        return response

    @unary
    async def GetUse(self, request: pb.GetUseRequest) -> pb.UseReport:
        """What leases make of what they hold, as far as the caller may see them."""
        who = caller()
        if request.tenant:
            who.must(Action.READ_LEASES, request.tenant)
        if request.lease_id:
            self._lease(request.lease_id)
        query = GetUse(request.tenant, request.lease_id, request.quiet_only, visible=who.may_see)
        return report_message(await self._writer.query(query), self._view, who.sees, self._observed)

    @unary
    async def ExemptLease(self, request: pb.ExemptLeaseRequest) -> types_pb2.Lease:
        """Idleness of a lease has no consequences for a while."""
        reason = stated_reason(request.reason)
        who = caller()
        who.must_hold(self._lease(request.lease_id), Action.END_OTHERS)
        await self._writer.submit(c.ExemptLease(request.lease_id, request.for_s * 1000, reason, who.principal))
        return lease_message(self._lease(request.lease_id), self._view, who.sees)

    @unary
    async def ExtendLease(self, request: pb.ExtendLeaseRequest) -> types_pb2.Lease:
        """A longer time limit."""
        reason = stated_reason(request.reason)
        if not 0 < request.time_limit_s <= limits.MAX_TIME_LIMIT_S:
            raise InvalidFieldError("time_limit_s", f"{request.time_limit_s}; 1 to {limits.MAX_TIME_LIMIT_S}")
        who = caller()
        who.must_hold(self._lease(request.lease_id), Action.KEEP_OTHERS)
        command = c.ExtendLease(request.lease_id, request.time_limit_s * 1000, reason, who.principal)
        await self._writer.submit(command)
        return lease_message(self._lease(request.lease_id), self._view, who.sees)

    @unary
    async def ConfirmNotice(self, request: pb.ConfirmNoticeRequest) -> pb.ConfirmNoticeResponse:
        """A warning has been delivered."""
        who = caller()
        who.must_hold(self._lease(request.lease_id), Action.END_OTHERS)
        await self._writer.submit(c.ConfirmNotice(request.lease_id, request.number, who.principal))
        return pb.ConfirmNoticeResponse()

    @streamed
    def Watch(self, request: pb.WatchRequest) -> AsyncGenerator[bytes, None]:  # type: ignore[override]
        """Changes as they become durable, encoded already."""
        return self._watch.watch(request)

    # -- below the calls

    def _lease(self, lease_id: str) -> Lease:
        lease = self._view.leases.get(lease_id)
        if lease is None:
            raise no_lease(lease_id)
        return lease

    def _end(self, lease_id: str) -> Future[None] | AliquotError:
        try:
            caller().must_hold(self._lease(lease_id), Action.END_OTHERS)
            return self._writer.submit(c.Release(lease_id, by=caller().principal))
        except AliquotError as error:
            return error


_CONDITIONS: dict[int, Condition] = {
    pb.WAIT_UNTIL_UNSPECIFIED: granted,
    pb.WAIT_UNTIL_GRANTED: granted,
    pb.WAIT_UNTIL_ACTIVE: active,
}


def _condition(wait_until: int) -> Condition | None:
    """Until when its caller waits; None: not at all."""
    if wait_until not in _CONDITIONS and wait_until != pb.WAIT_UNTIL_QUEUED:
        raise InvalidFieldError("wait_until", f"{wait_until} is not known")
    return _CONDITIONS.get(wait_until)


def _matches(lease: Lease, request: pb.ListRequest, states: frozenset[int]) -> bool:
    if states and int(lease.state) not in states:
        return False
    if request.queue and lease.request.queue != request.queue:
        return False
    return not request.node_id or any(piece.plan.node_id == request.node_id for piece in lease.slices)


def _timeout_s(asked_ms: int, default_ms: int, field: str) -> float:
    """How long to wait: as asked, but not beyond the call's own deadline."""
    if asked_ms > limits.MAX_WAIT_MS:
        raise InvalidFieldError(field, f"{asked_ms} ms; at most {limits.MAX_WAIT_MS} ms (an hour)")
    return _before_deadline_s((asked_ms or default_ms) / 1000, 2 * _ANSWERED_IN_S)


def _before_deadline_s(wanted_s: float, spare_s: float) -> float:
    left_s: float | None = this_call().context.time_remaining()  # the stub forgets that a call may have no deadline
    return wanted_s if left_s is None else max(0.0, min(wanted_s, left_s - spare_s))
