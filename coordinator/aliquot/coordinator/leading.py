"""The parts of a coordinator that leads, wired here and nowhere else.

All of them are made when it is constructed. What is durable flows one way: from the writer to the outbox, and from
there to the View, watchers, waiting callers and followers of leases and nodes, none of which knows the writer. The
parts that submit commands (agents' sessions, services, upkeep) are made after the writer, which they are given.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

import grpc

from aliquot.common.errors import AliquotError
from aliquot.coordinator.agents.certifying import Certifier
from aliquot.coordinator.agents.pool_identity import pool_id
from aliquot.coordinator.agents.proving import Prover
from aliquot.coordinator.agents.roster import WATCHED, Roster
from aliquot.coordinator.agents.service import agent_handler
from aliquot.coordinator.agents.sessions import Sessions
from aliquot.coordinator.agents.submitting import offer
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.mix import MixSummary
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.types import EndReason
from aliquot.coordinator.errors import JournalUnavailable, NotLeader
from aliquot.coordinator.gauges import LeadersGauges
from aliquot.coordinator.means import Means
from aliquot.coordinator.own_tls import is_shown
from aliquot.coordinator.parts import load
from aliquot.coordinator.reading.activity import Activity
from aliquot.coordinator.reading.fleet import Fleet
from aliquot.coordinator.reading.lease_log import LeaseLog
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.outbox import Follower, Outbox
from aliquot.coordinator.reading.owners import quota_metrics, unknown_slices
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.use_totals import UseTotals
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.rpc.access_service import AccessService
from aliquot.coordinator.rpc.admin_service import AdminService
from aliquot.coordinator.rpc.authentication import Authenticator
from aliquot.coordinator.rpc.caller import Caller
from aliquot.coordinator.rpc.capacity_service import CapacityService
from aliquot.coordinator.rpc.enrolment_service import EnrolmentService
from aliquot.coordinator.rpc.gate import Door, Gate, Services
from aliquot.coordinator.rpc.lasting import SWEEP_S
from aliquot.coordinator.rpc.lease_service import LeaseService
from aliquot.coordinator.rpc.pool_service import PoolService
from aliquot.coordinator.rpc.server import Serving
from aliquot.coordinator.rpc.watch_service import FleetService, WatchService
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.settings.stores import make_compaction
from aliquot.coordinator.upkeep.background import Background
from aliquot.coordinator.upkeep.balances import Balances
from aliquot.coordinator.upkeep.bookkeeping import close_books
from aliquot.coordinator.upkeep.collector import GarbageCollector
from aliquot.coordinator.upkeep.first_admin import ensure_admin
from aliquot.coordinator.upkeep.fragmentation import follow_fragmentation
from aliquot.coordinator.upkeep.keepalive import KeepAlive
from aliquot.coordinator.upkeep.price_learner import PriceLearner
from aliquot.coordinator.upkeep.sweep_timer import SweepTimer
from aliquot.coordinator.upkeep.timekeeping import Timekeeper
from aliquot.coordinator.upkeep.warming import compile_when_wanted
from aliquot.coordinator.wire.nodes import NodeWriter
from aliquot.coordinator.writing.commits import whole_state
from aliquot.coordinator.writing.interfaces import GrantingListener
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import (
    access_pb2_grpc,
    admin_pb2_grpc,
    capacity_pb2_grpc,
    enrolment_pb2_grpc,
    leases_pb2_grpc,
    pool_pb2_grpc,
)

if TYPE_CHECKING:
    from aliquot.coordinator.agents.authority import Generations, PoolAuthority
    from aliquot.coordinator.forecasting import Forecasting
    from aliquot.coordinator.writing.leadership.expiring import ExpiringLeadership  # psycopg is an extra

log = logging.getLogger(__name__)

STOP_GRACE_S = 1.0
_SEAT_LOOK_S = 0.05
_MEET_EVERY_S = 60.0


class Leading:
    """`start` it, open the gate to its `services`, then `keep_up`; at the end `stop` it. All on one event loop."""

    def __init__(
        self,
        settings: Settings,
        journal: Journal,
        state: State,
        leader_epoch: int,
        *,
        seat: ExpiringLeadership | None,
        gate: Gate,
        server: Serving,
        view: View,
        metrics: Metrics,
        garbage_collector: GarbageCollector,
        means: Means,
        reload: Callable[[], State],
        reached_at: Callable[[], Awaitable[Sequence[str]]],
        ended: Callable[[], None],
        others: Sequence[Follower] = (),
    ) -> None:
        """`state` is all that is durable; `reload` reads it again. `seat` is what must be kept to lead, where several
        could. `view` is still empty. `reached_at` says at which addresses others reach the coordinators, this one
        first. `ended` is called when it can't go on. `others` follow what is durable too.
        """
        clock = means.clock(0 if settings.clock_skew_max else state.now_ms)
        self.timekeeper: Timekeeper | None = None
        if settings.clock_skew_max:
            heard = (node for node in state.nodes.values() if node.state in WATCHED and not node.spec.agentless)
            clock = self.timekeeper = Timekeeper(
                clock,
                state.now_ms,
                skew_max_ms=settings.clock_skew_max,
                agents=sum(1 for _ in heard) if seat is None else 0,
                patience_ms=settings.agents.lost,
            )
        self._settings = settings
        self._journal = journal
        self._leader_epoch = leader_epoch
        self._seat = seat
        self._gate = gate
        self._server = server
        self._metrics = metrics
        self._garbage_collector = garbage_collector
        self._view = view
        self._clock = clock
        self._ended = ended
        self._entropy = means.entropy
        self._reached_at = reached_at
        self._background = Background(ended)
        self._pool_authority: PoolAuthority | None = None

        # Those who hear of what is durable, and begin with what is so already.
        view.apply(whole_state(state))
        telemetry = Telemetry()
        self.hub = WatchHub(ring_events=settings.limits.watch_events, seq=state.seq, at_ms=state.now_ms)
        self.waiters = Waiters()
        self.keepalive = KeepAlive(clock, view.leases.values())
        self.observed = ObservedUse(clock, view.leases.get, view.totals.memory_bytes_of)
        self.roster = Roster(view, clock, telemetry, settings.agents.sessions())
        if self.timekeeper is not None:
            self.roster.heard_clock = self.timekeeper.heard
        if seat is not None:
            self.roster.coordinators = lambda: seat.everybody
        self.fleet = Fleet(view, telemetry)
        self.activity = Activity(clock, view.leases.get, telemetry, view.totals, self.roster.last_heard_ms)
        use = UseTotals(view.leases.values())
        self._balances = Balances(view, clock)
        self.forecasting: Forecasting | None = load("forecasts")(view, clock) if settings.forecast else None
        own = (self.keepalive, metrics, self.observed, self.activity, self.roster, self.fleet, LeaseLog(), use)
        followers = (*own, *(self.forecasting.followers if self.forecasting is not None else ()), *others)

        self.writer = Writer(
            state=state,
            core=settings.core(),
            journal=journal,
            clock=clock,
            publisher=Outbox(view, self.hub, self.waiters, followers),
            metrics=metrics,
            listener=_HealthTeller(server, self.roster),
            reload=reload,
            thread=means.journal_thread(),
            perf_ns=means.perf_ns,
            config=settings.writer(),
        )

        # Those who have something to be decided.
        certifier = Certifier(self._authority, view, self.writer, clock)
        self.roster.certifier = certifier
        self.sessions = Sessions(
            writer=self.writer,
            view=view,
            clock=clock,
            telemetry=telemetry,
            observed=self.observed,
            activity=self.activity,
            metrics=metrics,
            roster=self.roster,
            pool_secret=journal.pool_secret,
            version=means.version,
            prover=Prover(
                view, pool_id(journal.pool_secret), unenrolled=settings.agents.unenrolled, entropy=means.entropy
            ),
            certifier=certifier,
        )
        self.sweep_timer = SweepTimer(
            clock,
            sweeps=[self.sessions.sweep, self._sweep_leases, self.writer.look_at_journal],
            paused=[self.roster.start_again, self.keepalive.start_again],
            pressure=self.roster.set_pressure,
        )
        self.gauges = LeadersGauges(
            writer=self.writer,
            roster=self.roster,
            hub=self.hub,
            fleet=self.fleet,
            sweep_timer=self.sweep_timer,
            use=use,
            more=(
                lambda: quota_metrics(view.books, clock.now_ms()),
                lambda: unknown_slices(telemetry),
                self._balances.collect,
                *(() if self.forecasting is None else (self.forecasting.collect,)),
            ),
        )
        metrics.denials.now_ms = clock.now_ms
        self.door = Door(
            Authenticator(view, clock, journal.pool_secret), metrics.denials, clock, settings.access.bounds()
        )
        view.callers.listener = self._callers_changed
        self.services = self._make_services(view, NodeWriter(view, telemetry, self.roster.last_heard_ms), means)
        self._writing = asyncio.create_task(self.writer.run(), name="writer")
        self._writing.add_done_callback(self._writing_ended)

    def _make_services(self, view: View, nodes: NodeWriter, means: Means) -> list[grpc.GenericRpcHandler]:
        leases = LeaseService(
            writer=self.writer,
            view=view,
            waiters=self.waiters,
            keepalive=self.keepalive,
            metrics=self._metrics,
            ids=means.ids(),
            pool_secret=self._journal.pool_secret,
            observed=self.observed,
            activity=self.activity,
            watch=WatchService(self.hub, view, nodes, self._metrics),
            rates=self.door.rates,
            journal=self._journal,
            forecasts=self.forecasting,
        )
        pool = PoolService(
            writer=self.writer,
            view=view,
            nodes=nodes,
            fleet=FleetService(self.fleet, self._metrics),
            forecasts=self.forecasting,
            metrics=self._metrics,
            version=means.version,
        )
        admin = AdminService(writer=self.writer, view=view, clock=self._clock, metrics=self._metrics)

        def authorities() -> bytes:
            return self._authority().pem if is_shown(self._settings) else b""

        access = AccessService(
            writer=self.writer,
            view=view,
            clock=self._clock,
            metrics=self._metrics,
            entropy=means.entropy,
            addresses=self._reached_at,
            coordinators=self.roster.coordinators,
            pool_id=pool_id(self._journal.pool_secret),
            authorities=authorities,
            authority=self._authority,
            logins=means.logins(self._settings.access.oidc, self._settings.access.pods, means.clock(0)),
        )
        enrolment = EnrolmentService(
            writer=self.writer,
            view=view,
            clock=self._clock,
            metrics=self._metrics,
            entropy=means.entropy,
            addresses=self._reached_at,
            authorities=authorities,
            authority=self._authority,
        )
        capacity = CapacityService(writer=self.writer, clock=self._clock, metrics=self._metrics)
        services = Services([agent_handler(self.sessions)])
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(leases, services)  # type: ignore[arg-type]
        pool_pb2_grpc.add_PoolServiceServicer_to_server(pool, services)  # type: ignore[arg-type]
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, services)  # type: ignore[arg-type]
        access_pb2_grpc.add_AccessServiceServicer_to_server(access, services)  # type: ignore[arg-type]
        capacity_pb2_grpc.add_CapacityServiceServicer_to_server(capacity, services)  # type: ignore[arg-type]
        enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server(enrolment, services)  # type: ignore[arg-type]
        return services.handlers

    def _authority(self) -> Generations:
        """The pool's own, as it is durable."""
        if self._pool_authority is None:
            from aliquot.coordinator.agents.authority import PoolAuthority  # noqa: PLC0415 - cryptography, where it is used

            self._pool_authority = PoolAuthority(self._journal.pool_secret, lambda: self._view.books.generations)
        return self._pool_authority.now()

    # -- from beginning to end

    async def start(self) -> None:
        """Make it durable that we lead. Raises NotLeader, and the errors of a journal that can't be written."""
        if self._seat is not None:
            self._background.run("seat", self._keep_seat(self._seat))
        await self.writer.submit(c.StartLeading(self._leader_epoch))
        settings = self._settings
        await ensure_admin(
            self.writer,
            self._view.callers,
            supplied=settings.access.admin_token_file,
            folder=settings.access_dir,
            entropy=self._entropy,
        )
        self.roster.start_again()  # that may have taken long, and agents could not be heard meanwhile

    async def keep_up(self) -> None:
        """From now on callers and agents can be heard: count their silence, and begin what is done by the clock."""
        self.keepalive.start_again()
        await self._server.set_granting(granting=True)
        settings, writer, run = self._settings, self.writer, self._background.run
        run("sweeps", self.sweep_timer.run())
        run("tokens that expire", self._end_expired())
        if self._seat is not None:
            run("other coordinators", self._meet())
        run("fragmentation", follow_fragmentation(self._engine, self._metrics))
        run("balances", self._balances.follow())
        telling = self.observed.run(writer.submit, lambda: self._settings.agents.use_told_every, self._note_busy)
        run("observed use", telling)
        run("looks at use", self.activity.run(writer.submit, lambda: self._settings.agents.use_looked_at_every))
        compaction = make_compaction(
            settings, self._journal, durable_seq=lambda: writer.durable_seq, prune=writer.prune
        )
        if compaction is not None:
            run("compaction", compaction.run())
        if settings.limits.ledger_days:
            run("closing the books", close_books(writer, self._clock, keep_days=settings.limits.ledger_days))
        if self.forecasting is not None:
            for name, task in self.forecasting.tasks(writer).items():
                run(name, task)
        if settings.policy == Price.name:
            prices = writer.state.prices if writer.state is not None else None
            known = prices.version if prices is not None else 0
            run("price learner", PriceLearner(self._arrivals, self._learn, version=known).run())
            devices, settle = self._view.totals.devices.__len__, self._garbage_collector.settle
            run("compiled scoring", compile_when_wanted(self._scoring_passes, devices, settle))

    def adopt(self, settings: Settings) -> None:
        """Go on under these, which differ from those of before only in what may change while it runs."""
        self._settings = settings
        self.writer.adopt(settings.core(), settings.writer())
        self.door.adopt(settings.access.bounds())

    async def stop(self) -> None:
        """Tell everybody, answer what is under way, and write what is decided."""
        await self._background.end()
        stopping = asyncio.create_task(self._server.stop(STOP_GRACE_S))
        await self.roster.goodbye()
        self.waiters.wake_all()
        await stopping
        await self._end_writing()

    async def step_down(self, why: AliquotError) -> None:
        """Tell everybody that this coordinator leads no longer; its server goes on, and refers them to who does."""
        await self._background.end()
        self.door.lasting.end_all(why)
        await self.roster.goodbye()
        self.waiters.wake_all()
        await self._end_writing()
        await self._server.set_leading(leading=False)
        await self._server.set_granting(granting=False)

    async def _end_writing(self) -> None:
        self.writer.close()
        await asyncio.gather(self._writing, return_exceptions=True)
        self.writer.stop_thread()

    @property
    def failure(self) -> BaseException | None:
        """Why it has ended, unless it was told to."""
        if self._writing.done() and not self._writing.cancelled() and (error := self._writing.exception()) is not None:
            return error
        return self._background.failure

    def _writing_ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and isinstance(writing.exception(), NotLeader):
            self._gate.close()
        self._ended()

    async def _keep_seat(self, seat: ExpiringLeadership) -> None:
        """Stop granting the moment the seat may be another's. The fence would refuse our commits, but not our reads."""
        while not seat.lost:  # noqa: ASYNC110
            await asyncio.sleep(_SEAT_LOOK_S)  # it expires as time passes, which sets no event
        log.error("leadership is lost: %s", seat.why_lost)
        self._gate.close()
        # Until it is known who leads by now, if anybody does: most often it is the database that is away.
        self._gate.refer_to("", len(self.roster), JournalUnavailable(seat.why_lost, hint="it is retried by itself"))
        self.writer.lose_leadership(NotLeader(seat.why_lost, hint="it goes on as a standby"))

    # -- callers

    def _callers_changed(self, principals: frozenset[str], token_ids: frozenset[str]) -> None:
        """Durably: from now on nobody is known by what was true before, and what it opened ends."""
        door = self.door
        door.authenticator.changed(principals, token_ids)
        tokens = self._view.callers.tokens

        def still(token_id: str) -> Caller | None:
            token = tokens.get(token_id)
            return None if token is None else door.authenticator.caller_of(token)

        door.lasting.changed(still, token_ids, principals)

    async def _meet(self) -> None:
        while True:
            await self._reached_at()
            await asyncio.sleep(_MEET_EVERY_S)

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.door.lasting.sweep(self._clock.now_ms())

    # -- what is done by the clock

    def _sweep_leases(self) -> None:
        self.keepalive.sweep(self._expire)

    def _expire(self, lease_id: str, ttl_ms: int) -> bool:
        return offer(self.writer, c.Release(lease_id, EndReason.EXPIRED, f"no keep-alive for {ttl_ms} ms"))

    def _note_busy(self, busy_permille: dict[str, int]) -> None:
        """Volatile like every measurement: what is decided by it is a fact."""
        if self.writer.planner is not None:
            self.writer.planner.measured(busy_permille)

    def _arrivals(self) -> MixSummary:
        """What the price learner learns from."""
        state = self.writer.state
        return MixSummary(0, (), ()) if state is None else state.arrivals.summary(state.inventory)

    def _engine(self) -> Engine | None:
        return self.writer.planner.engine if self.writer.planner is not None else None

    def _scoring_passes(self) -> int:
        engine = self._engine()
        return engine.scoring_passes if engine is not None else 0

    async def _learn(self, table: PriceTable) -> None:
        """Its result is a command like any other. One that can't be carried out now is made again later."""
        with contextlib.suppress(AliquotError):
            await self.writer.submit(c.LearnPrices(table))


class _HealthTeller(GrantingListener):
    """Tells health checks whether anything is granted, and has agents say everything again after a recovery."""

    def __init__(self, server: Serving, roster: Roster) -> None:
        self._server = server
        self._roster = roster
        self._tasks: set[asyncio.Task[None]] = set()

    def granting_changed(self, *, granting: bool) -> None:
        """See `GrantingListener.granting_changed`."""
        self._run(self._server.set_granting(granting=granting))

    def recovered(self) -> None:
        """See `GrantingListener.recovered`."""
        self._run(self._roster.ask_all("JOURNAL_RECOVERED"))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
