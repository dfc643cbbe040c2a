"""A coordinator that leads in four assemblies, each whole when it is constructed, and each made from those before it.

    Following   who hears of what is durable, and begins with what is so already
    Deciding    the writer, and what of its work is volatile
    Hearing     the agents' sessions, and silence
    Answering   the services that callers reach

What is durable flows one way: from the writer to the outbox, and from there to those who follow, none of which knows
the writer. `leading.py` starts and ends them; no decision is made here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.common.tasks import Tasks
from aliquot.coordinator.agents.around import Around
from aliquot.coordinator.agents.certifying import Certifier
from aliquot.coordinator.agents.lease_secrets import pool_id
from aliquot.coordinator.agents.overtime import Overtime
from aliquot.coordinator.agents.proving import Prover
from aliquot.coordinator.agents.roster import Roster
from aliquot.coordinator.agents.sessions import Sessions, agent_handler
from aliquot.coordinator.agents.submitting import offer
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.mix import MixSummary
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.types import EndReason
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
from aliquot.coordinator.rpc.authentication import Authenticator
from aliquot.coordinator.rpc.gate import Door
from aliquot.coordinator.rpc.lease_service import LeaseService
from aliquot.coordinator.rpc.pool_service import PoolService
from aliquot.coordinator.rpc.server import Serving
from aliquot.coordinator.rpc.service import Introduction, LaterService, Led, handlers_of
from aliquot.coordinator.rpc.watch_service import FleetService, WatchService
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.upkeep.bookkeeping import Balances
from aliquot.coordinator.upkeep.keepalive import KeepAlive
from aliquot.coordinator.upkeep.sweep_timer import SweepTimer
from aliquot.coordinator.upkeep.timekeeping import Timekeeper
from aliquot.coordinator.wire.nodes import NodeWriter
from aliquot.coordinator.writing.interfaces import GrantingListener
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.writer import Writer

if TYPE_CHECKING:
    from aliquot.coordinator.agents.authority import Generations, PoolAuthority
    from aliquot.coordinator.forecasting import Forecasting
    from aliquot.coordinator.writing.leadership.postgres import PostgresLeadership  # psycopg is an extra


@dataclass(slots=True)
class Ground:
    """What a coordinator that leads stands on."""

    settings: Settings
    journal: Journal
    seat: PostgresLeadership | None
    """What must be kept to lead, where several could."""
    view: View
    """All that is durable is in it."""
    metrics: Metrics
    means: Means
    clock: Clock
    timekeeper: Timekeeper | None
    """Makes the clock, where others' are compared with it."""
    reached_at: Callable[[], Awaitable[Sequence[str]]]
    """At which addresses others reach the coordinators, this one first."""
    _authority: PoolAuthority | None = field(init=False, default=None)

    def authority(self) -> Generations:
        """The pool's own, as it is durable. Loaded when keys are used first: it brings cryptography."""
        if self._authority is None:
            from aliquot.coordinator.agents.authority import PoolAuthority  # noqa: PLC0415

            self._authority = PoolAuthority(self.journal.pool_secret, lambda: self.view.books.generations)
        return self._authority.now()

    def coordinators(self) -> Sequence[str]:
        """Where each of several was reached of late; nothing where there is only one."""
        return self.seat.everybody if self.seat is not None else ()

    def heard_clock(self, node_id: str, wall_ms: int) -> None:
        """A node's clock shows this, in milliseconds since 1970."""
        if self.timekeeper is not None:
            self.timekeeper.heard(node_id, wall_ms)


class Following:
    """Who hears of what is durable, and begins with what is so already."""

    def __init__(self, ground: Ground, state: State, others: Sequence[Follower]) -> None:
        settings, view, clock = ground.settings, ground.view, ground.clock
        self.telemetry = Telemetry()
        self.hub = WatchHub(ring_events=settings.limits.watch_events, seq=state.seq, at_ms=state.now_ms)
        self.waiters = Waiters()
        self.door = Door(
            Authenticator(view, clock, ground.journal.pool_secret),
            ground.metrics.denials,
            clock,
            settings.access.bounds(),
        )
        self.keepalive = KeepAlive(clock, view.leases.values())
        self.observed = ObservedUse(clock, view.leases.get, view.totals.memory_bytes_of, self.telemetry.device_message)
        self.roster = Roster(
            view,
            clock,
            self.telemetry,
            settings.agents.sessions(),
            authority=ground.authority,
            coordinators=ground.coordinators,
            heard_clock=ground.heard_clock,
        )
        self.fleet = Fleet(view, self.telemetry)
        self.activity = Activity(clock, view.leases.get, self.telemetry, view.totals, self.roster.last_heard_ms)
        self.use = UseTotals(view.leases.values())
        self.forecasting: Forecasting | None = None
        if settings.forecast:
            self.forecasting = load("forecasts")(view, clock, ground.metrics.duties.tell)
        own = (self.door, self.keepalive, ground.metrics, self.observed, self.activity, self.roster, self.fleet)
        more = self.forecasting.followers if self.forecasting is not None else ()
        self.outbox = Outbox(view, self.hub, self.waiters, (*own, LeaseLog(), self.use, *more, *others))


class Deciding:
    """The writer, and what of its work is volatile."""

    def __init__(
        self, ground: Ground, following: Following, state: State, server: Serving, reload: Callable[[], State]
    ) -> None:
        """`reload` reads what is durable again."""
        settings, means = ground.settings, ground.means
        self.writer = Writer(
            state=state,
            core=settings.core(),
            journal=ground.journal,
            clock=ground.clock,
            publisher=following.outbox,
            metrics=ground.metrics,
            listener=_HealthTeller(server, following.roster),
            reload=reload,
            thread=means.journal_thread(),
            perf_ns=means.perf_ns,
            config=settings.writer(),
        )

    def expire(self, lease_id: str, ttl_ms: int) -> bool:
        """Nobody keeps this lease alive any more. Whether the writer has heard it."""
        return offer(self.writer, c.Release(lease_id, EndReason.EXPIRED, f"no keep-alive for {ttl_ms} ms"))

    def arrivals(self) -> MixSummary:
        """What the price learner learns from."""
        state, engine = self.writer.state, self.engine()
        if state is None or engine is None or not engine.by_prices:
            return MixSummary(0, (), ())
        return state.arrivals.summary(state.inventory)

    def engine(self) -> Engine | None:
        """What places requests; None while the State is being read again."""
        return self.writer.decider.engine if self.writer.decider is not None else None

    def scoring_passes(self) -> int:
        """How often it has scored devices."""
        engine = self.engine()
        return engine.scoring_passes if engine is not None else 0

    async def learn(self, table: PriceTable) -> None:
        """Its result is a command like any other. One that can't be carried out now is made again later."""
        with contextlib.suppress(AliquotError):
            await self.writer.submit(c.LearnPrices(table))


class Hearing:
    """The agents' sessions, and silence: theirs, and that of launchers."""

    def __init__(self, ground: Ground, following: Following, deciding: Deciding) -> None:
        view, clock, means, writer = ground.view, ground.clock, ground.means, deciding.writer
        pool_secret = ground.journal.pool_secret
        self.sessions = Sessions(
            Around(
                writer=writer,
                view=view,
                clock=clock,
                telemetry=following.telemetry,
                observed=following.observed,
                activity=following.activity,
                metrics=ground.metrics,
                roster=following.roster,
                overtime=Overtime(clock, view, following.roster.get),
                prover=Prover(view, pool_id(pool_secret), means.entropy),
                certifier=Certifier(ground.authority, view, writer, clock),
                pool_secret=pool_secret,
                version=means.version,
            )
        )
        self.sweep_timer = SweepTimer(
            clock,
            sweeps=[
                self.sessions.sweep,
                lambda: following.keepalive.sweep(deciding.expire),
                writer.look_at_journal,
            ],
            paused=[following.roster.start_again, following.keepalive.start_again],
            pressure=following.roster.set_pressure,
        )


class Answering:
    """The services that callers reach, and what is said of everything when metrics are scraped."""

    def __init__(self, ground: Ground, following: Following, deciding: Deciding, hearing: Hearing) -> None:
        settings, view, means = ground.settings, ground.view, ground.means
        led = Led(
            writer=deciding.writer,
            view=view,
            clock=ground.clock,
            metrics=ground.metrics,
            journal=ground.journal,
            waiters=following.waiters,
            keepalive=following.keepalive,
            observed=following.observed,
            activity=following.activity,
            forecasts=following.forecasting,
            ids=means.ids(),
            entropy=means.entropy,
            version=means.version,
        )
        pool = Introduction(
            pool_id=pool_id(ground.journal.pool_secret),
            addresses=ground.reached_at,
            coordinators=ground.coordinators,
            authorities=lambda: ground.authority().pem if is_shown(settings) else b"",
            authority=ground.authority,
        )
        access, tell = settings.access, ground.metrics.duties.tell
        logins = means.logins(access.oidc, access.pods, means.clock(0), tell)
        nodes = NodeWriter(view, following.telemetry, following.roster.last_heard_ms)
        watch = WatchService(following.hub, view, nodes)
        fleet = FleetService(following.fleet)
        self.services: list[grpc.GenericRpcHandler] = [
            agent_handler(hearing.sessions),
            *handlers_of(LeaseService(led, watch, following.door.rates)),
            *handlers_of(PoolService(led, nodes, fleet)),
            LaterService("aliquot.v1.AdminService", led),
            LaterService("aliquot.v1.AccessService", led, pool, logins),
            LaterService("aliquot.v1.SupplyService", led),
            LaterService("aliquot.v1.EnrolmentService", led, pool),
        ]
        self.balances = Balances(view, ground.clock)
        self.gauges = LeadersGauges(
            writer=deciding.writer,
            roster=following.roster,
            hub=following.hub,
            fleet=following.fleet,
            sweep_timer=hearing.sweep_timer,
            use=following.use,
            more=(
                lambda: quota_metrics(view.books, ground.clock.now_ms()),
                lambda: unknown_slices(following.telemetry),
                self.balances.collect,
                following.observed.collect,
                *(() if following.forecasting is None else (following.forecasting.collect,)),
            ),
        )


class _HealthTeller(GrantingListener):
    """Tells health checks whether anything is granted, and has agents say everything again after a recovery."""

    def __init__(self, server: Serving, roster: Roster) -> None:
        self._server = server
        self._roster = roster
        self._tasks = Tasks()

    def granting_changed(self, *, granting: bool) -> None:
        """See `GrantingListener.granting_changed`."""
        self._tasks.run("tell health checks", self._server.set_granting(granting=granting))

    def recovered(self) -> None:
        """See `GrantingListener.recovered`."""
        self._tasks.run("ask all agents", self._roster.ask_all("JOURNAL_RECOVERED"))
