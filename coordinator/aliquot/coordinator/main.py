"""The coordinator's program, and the only place where its parts are wired together.

    python -m aliquot.coordinator --listen 127.0.0.1:7070 --journal sqlite:PATH

When it answers it prints one line, `ready {"address": …, "metrics": …, "role": …}`; with a shared journal the role may
be `standby`: calls are answered with the leader's address then, until this one takes over. SIGTERM and SIGINT end it
without losing anything; so does a kill, which merely takes the replay of what the last snapshot does not hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc as python_gc
import json
import logging
import signal
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import grpc

from aliquot.common import logging as common_logging
from aliquot.common.clock import Clock, SystemClock
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.ids import IdGenerator
from aliquot.common.notify import notify, watchdog_s
from aliquot.coordinator.agents.relayed.service import RelayService
from aliquot.coordinator.agents.service import agent_handler
from aliquot.coordinator.agents.sessions import Sessions
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.facts import EndReason
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.placement.mix import MixSummary
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.state import State
from aliquot.coordinator.errors import NotLeader
from aliquot.coordinator.gauges import gauges_of
from aliquot.coordinator.program import allow_many_connections, event_loop_factory, version
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.outbox import Outbox
from aliquot.coordinator.reading.scrape import Answer, ScrapeServer
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.rpc.admin_service import AdminService
from aliquot.coordinator.rpc.gate import Gate, Services
from aliquot.coordinator.rpc.lease_service import LeaseService
from aliquot.coordinator.rpc.pool_service import PoolService
from aliquot.coordinator.rpc.server import Server
from aliquot.coordinator.rpc.watch_service import WatchService
from aliquot.coordinator.settings.arguments import parse_settings
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.settings.reloading import read_again
from aliquot.coordinator.settings.stores import make_compaction, make_journal, shared_leadership, single_leadership
from aliquot.coordinator.settings.user_policies import discover, require
from aliquot.coordinator.upkeep import gc
from aliquot.coordinator.upkeep.background import Background
from aliquot.coordinator.upkeep.bookkeeping import close_books
from aliquot.coordinator.upkeep.fragmentation import follow_fragmentation
from aliquot.coordinator.upkeep.keepalive import KeepAlive
from aliquot.coordinator.upkeep.price_learner import PriceLearner
from aliquot.coordinator.upkeep.pulse import Pulse
from aliquot.coordinator.upkeep.warming import compile_when_busy
from aliquot.coordinator.wire.nodes import NodeWriter
from aliquot.coordinator.writing.commits import whole_state
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.journal.replay import replay
from aliquot.coordinator.writing.leadership.base import Leadership
from aliquot.coordinator.writing.standby import Standby
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import admin_pb2_grpc, leases_pb2_grpc, pool_pb2_grpc

if TYPE_CHECKING:
    from aliquot.coordinator.writing.leadership.expiring import ExpiringLeadership  # psycopg is an extra

log = logging.getLogger(__name__)

_STOP_GRACE_S = 1.0
_SEAT_LOOK_S = 0.05
_SWITCH_INTERVAL_S = 0.000_5
"""How long the event loop may keep the journal thread waiting for the interpreter, a few times per commit."""


class Coordinator:
    """All parts, wired. `start`, then `serve` until `stop`; both on one event loop."""

    def __init__(self, settings: Settings, *, journal: Journal | None = None, clock: Clock | None = None) -> None:
        self.settings = settings
        self.journal = journal or make_journal(settings)
        self.address = ""
        self.metrics_address = ""
        self._shared = shared_leadership(settings, self.journal)
        self._leadership: Leadership = self._shared or single_leadership(settings, self.journal)
        self._clock = clock
        self._relay_rules = settings.relay_rules()
        self._stop = asyncio.Event()
        self.gate = Gate()
        self.standby: Standby | None = None
        self._scrape: ScrapeServer | None = None
        self._background = Background(self._stop.set)
        self._following: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Lead, replay, and answer; or, where others share the journal and one leads, follow, and name it to all who
        call. Raises AliquotError when that can't be.
        """
        python_gc.disable()
        self.view = View()
        self.metrics = Metrics(self.view)
        self._pauses = gc.PauseMeter(self.metrics.gc_pause.observe)
        self._pauses.install()
        if self._shared is not None:
            await self._start_shared(self._shared)
        else:
            leader_epoch = self._leadership.acquire()
            try:
                state = self._replayed()
            except BaseException:
                self._leadership.release()
                raise
            await self._lead(leader_epoch, state)
        gc.settle()

    @property
    def role(self) -> str:
        """`leader` or `standby`."""
        return "leader" if self.gate.is_open else "standby"

    async def _start_shared(self, leadership: ExpiringLeadership) -> None:
        """Answer at once, follow the journal, and lead if nobody does."""
        loop = asyncio.get_running_loop()
        self._listen()
        leadership.address = self.settings.advertise or self.address
        self._serve_metrics()
        self.server.leading = False
        await self.server.serve()

        def tell(address: str, nodes: int) -> None:
            loop.call_soon_threadsafe(self.gate.refer_to, address, nodes)

        self.standby = Standby(leadership, tell)
        await asyncio.to_thread(self.standby.prepare)
        led = await asyncio.to_thread(self.standby.step)
        if led is not None:
            await self._lead(led.leader_epoch, led.state)
        else:
            self._following = asyncio.create_task(self._follow(self.standby))

    async def _follow(self, standby: Standby) -> None:
        try:
            led = await asyncio.to_thread(standby.wait)
            if led is not None and not self._stop.is_set():
                await self._lead(led.leader_epoch, led.state)
                gc.settle()
        except BaseException:
            self._stop.set()
            raise

    async def _lead(self, leader_epoch: int, state: State) -> None:
        """From here on this coordinator is the one that decides."""
        settings = self.settings
        clock = self._clock or SystemClock(not_before_ms=state.now_ms)
        self.hub = WatchHub(ring_events=settings.limits.watch_events)
        self.waiters = Waiters()
        self.outbox = Outbox(self.view, self.hub, self.waiters)
        self.writer = Writer(
            state=state,
            core=settings.core(),
            journal=self.journal,
            clock=clock,
            publisher=self.outbox,
            meter=self.metrics,
            reload=self._replayed,
            config=settings.writer(),
        )
        self.keepalive = KeepAlive(clock, self._expire)
        self.outbox.follow_leases(self.keepalive)
        self.outbox.load(whole_state(state))
        self.outbox.follow_leases(self.metrics)
        self.outbox.on_node_moved.append(self.metrics.node_lent)
        self._writing = asyncio.create_task(self.writer.run())
        self._writing.add_done_callback(self._writing_ended)
        if self._shared is not None:
            self._background.run("seat", self._keep_seat(self._shared))
        await self.writer.submit(c.StartLeading(leader_epoch))

        telemetry = Telemetry()
        self.observed = observed = ObservedUse(clock, self.view.leases.get)
        self.outbox.follow_leases(observed)
        self.sessions = Sessions(
            writer=self.writer,
            view=self.view,
            clock=clock,
            telemetry=telemetry,
            observed=observed,
            metrics=self.metrics,
            pool_secret=self.journal.pool_secret,
            version=version(),
            config=settings.agents.sessions(),
            allowed=settings.agents.allowed(),
        )
        self.relays = RelayService(self.sessions, self._relay_rules, self.metrics, version())
        self.outbox.follow_leases(self.sessions)
        self.outbox.follow_nodes(self.sessions)
        self.pulse = Pulse(
            clock,
            sweeps=[self.sessions.sweep, self.keepalive.sweep, self.writer.look_at_journal],
            paused=[self.sessions.start_again, self.keepalive.start_again],
            pressure=self.sessions.set_pressure,
        )
        self.metrics.gauges += gauges_of(self.writer, self.sessions, self.relays, self.hub, self.pulse)
        self.metrics.watch = self.hub
        self._follow_health()
        self.gate.open(self._services(NodeWriter(self.view, telemetry, self.sessions.last_heard_ms)))
        if self._shared is not None:
            self.server.leading = True
            await self.server.show_services()
        else:
            self._listen()
            self._serve_metrics()
            await self.server.serve()
        # Until now no launcher could be heard, and the first commit may have taken long: TTLs count from here.
        self.keepalive.start_again()
        await self.server.set_granting(granting=True)
        self._background.run("pulse", self.pulse.run())
        self._background.run("fragmentation", follow_fragmentation(self._engine, self.metrics))
        telling = observed.run(self.writer.submit, lambda: self.settings.agents.use_told_every, self._note_busy)
        self._background.run("observed use", telling)
        compaction = make_compaction(
            settings,
            self.journal,
            durable_seq=lambda: self.writer.durable_seq,
            prune=self.writer.prune,
        )
        if compaction is not None:
            self._background.run("compaction", compaction.run())
        if settings.limits.ledger_days:
            closing = close_books(self.writer, clock, keep_days=settings.limits.ledger_days)
            self._background.run("closing the books", closing)
        if settings.policy == Price.name:
            known = state.prices.version if state.prices is not None else 0
            learner = PriceLearner(self._arrivals, self._learn, version=known)
            self._background.run("price learner", learner.run())
            self._background.run("compiled scoring", compile_when_busy(self._scoring_passes))

    def _note_busy(self, busy_permille: dict[str, int]) -> None:
        """Volatile like every measurement: what is decided by it is a fact."""
        if self.writer.planner is not None:
            self.writer.planner.measured(busy_permille)

    def _arrivals(self) -> MixSummary:
        """What the price learner learns from."""
        state = self.writer.state
        return MixSummary(0, (), 0) if state is None else state.arrivals.summary(state.inventory)

    def _engine(self) -> Engine | None:
        return self.writer.planner.engine if self.writer.planner is not None else None

    def _scoring_passes(self) -> int:
        engine = self._engine()
        return engine.scoring_passes if engine is not None else 0

    async def _learn(self, table: PriceTable) -> None:
        """Its result is a command like any other. One that can't be carried out now is made again later."""
        with contextlib.suppress(AliquotError):
            await self.writer.submit(c.LearnPrices(table))

    def _writing_ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and isinstance(writing.exception(), NotLeader):
            self.gate.close()
        self._stop.set()

    async def _keep_seat(self, leadership: ExpiringLeadership) -> None:
        """Stop granting the moment the seat may be another's. The fence would refuse our commits, but not our reads."""
        while not leadership.lost:  # noqa: ASYNC110
            await asyncio.sleep(_SEAT_LOOK_S)  # it is lost by the passing of time: nobody could set an event
        log.error("leadership is lost: %s", leadership.why_lost)
        self.gate.close()
        self.writer.lose_leadership(NotLeader(leadership.why_lost, hint="it starts again as a standby"))

    def _replayed(self) -> State:
        replayed = replay(self.journal)
        self.journal.resume_after(replayed.state.seq, replayed.digest)
        log.info(
            "replayed %d facts after the snapshot of %d in %d ms: %d leases, %d nodes",
            replayed.facts,
            replayed.snapshot_seq,
            replayed.took_ms,
            len(replayed.state.leases),
            len(replayed.state.nodes),
        )
        return replayed.state

    def _services(self, nodes: NodeWriter) -> list[grpc.GenericRpcHandler]:
        leases = LeaseService(
            writer=self.writer,
            view=self.view,
            waiters=self.waiters,
            keepalive=self.keepalive,
            metrics=self.metrics,
            ids=IdGenerator(),
            pool_secret=self.journal.pool_secret,
            observed=self.observed,
            watch=WatchService(self.hub, self.view, nodes, self.metrics),
        )
        pool = PoolService(writer=self.writer, view=self.view, nodes=nodes, metrics=self.metrics, version=version())
        services = Services([agent_handler(self.sessions), self.relays.handler()])
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(leases, services)  # type: ignore[arg-type]
        pool_pb2_grpc.add_PoolServiceServicer_to_server(pool, services)  # type: ignore[arg-type]
        admin = AdminService(writer=self.writer, metrics=self.metrics)
        admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, services)  # type: ignore[arg-type]
        return services.handlers

    def _listen(self) -> None:
        settings = self.settings
        self.server = Server([self.gate])
        self.address = self.server.listen(settings.listen, settings.tls.server_tls(), insecure=settings.insecure)

    def _serve_metrics(self) -> None:
        loop = asyncio.get_running_loop()
        self.metrics.gauges += [
            ("aliquot_leading", "1 while this coordinator leads", lambda: int(self.gate.is_open)),
            ("aliquot_event_loop_tasks", "Tasks of the event loop", lambda: len(asyncio.all_tasks(loop))),
        ]
        if self.settings.metrics_port >= 0:
            host = self.settings.metrics_host
            try:
                self._scrape = ScrapeServer(
                    host, self.settings.metrics_port, self.metrics, live=self._live, ready=self._ready
                )
            except OSError as error:
                raise ConfigError(
                    f"metrics can't be served on {host}:{self.settings.metrics_port}: {error.strerror}",
                    hint="choose another --metrics-port, or -1 for none",
                ) from error
            self.metrics_address = f"{host}:{self._scrape.port}"

    def _live(self) -> Answer:
        following = self._writing is None
        return Answer(200, "ok") if following or self.pulse.is_live() else Answer(503, "the event loop is stuck")

    def _ready(self) -> Answer:
        if not self.gate.is_open:
            return Answer(503, f"standby; the leader is {self.gate.leader or 'not known'}")
        if self.writer.granting:
            return Answer(200, "ok")
        return Answer(503, f"nothing is granted: {self.writer.not_granting_reason}")

    def _follow_health(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def say(granting: bool, reason: str) -> None:  # noqa: FBT001 - a callback
            del reason
            task = asyncio.create_task(self.server.set_granting(granting=granting))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def ask_all() -> None:
            task = asyncio.create_task(self.sessions.ask_all("JOURNAL_RECOVERED"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        self.writer.on_health.append(say)
        self.writer.on_reload.append(ask_all)

    def _expire(self, lease_id: str, ttl_ms: int) -> bool:
        command = c.Release(lease_id, EndReason.EXPIRED, f"no keep-alive for {ttl_ms} ms")
        try:
            self.writer.submit(command)
        except AliquotError:
            return False
        return True

    async def serve(self) -> None:
        """Until `stop` is called, leadership is lost or a part has failed. Then end in order; raises NotLeader, or the
        failure.
        """
        try:
            await self._stop.wait()
        finally:
            await self._shut_down()

    def adopt(self, settings: Settings) -> None:
        """Go on under these, which differ from those of before only in what may change while it runs."""
        self.settings = settings
        if self._writing is not None:
            self.writer.adopt(settings.core(), settings.writer())

    def stop(self) -> None:
        """End in order."""
        self._stop.set()

    async def _shut_down(self) -> None:
        log.info("shutting down")
        if self.standby is not None:
            self.standby.stop()
        if self._following is not None:
            await asyncio.gather(self._following, return_exceptions=True)
        await self._background.end()
        stopping = asyncio.create_task(self.server.stop(_STOP_GRACE_S))
        results: list[object] = []
        if self._writing is not None:
            await self.sessions.goodbye()
            await self.relays.goodbye()
            self.waiters.wake_all()
            await stopping
            self.writer.close()
            results += await asyncio.gather(self._writing, return_exceptions=True)
            self.writer.stop_thread()
        await stopping
        self._pauses.remove()
        if self._scrape is not None:
            await asyncio.to_thread(self._scrape.close)
        self._leadership.release()
        if self._following is not None:
            results.append(self._following.exception())
        for result in (*results, self._background.failure):
            if isinstance(result, BaseException):
                raise result


async def run(settings: Settings, read: Callable[[], Settings], journal: Journal | None = None) -> None:
    """Serve until a signal comes; SIGHUP has the settings read again."""
    coordinator = Coordinator(settings, journal=journal)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, coordinator.stop)

    def hang_up() -> None:
        coordinator.adopt(read_again(coordinator.settings, read))

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    await coordinator.start()
    ready = {"address": coordinator.address, "metrics": coordinator.metrics_address, "role": coordinator.role}
    sys.stdout.write(f"ready {json.dumps(ready)}\n")
    sys.stdout.flush()
    notify("READY=1", f"STATUS={coordinator.role} at {coordinator.address}")
    beating = asyncio.create_task(_beat())
    try:
        await coordinator.serve()
    finally:
        beating.cancel()


async def _beat() -> None:
    """Tell systemd that the event loop turns: a frozen leader's connections last until it is ended."""
    interval_s = watchdog_s()
    while interval_s is not None:
        notify("WATCHDOG=1")
        await asyncio.sleep(interval_s)


def main(argv: list[str] | None = None, *, wrap: Callable[[Journal], Journal] = lambda journal: journal) -> int:
    """The program. `wrap` puts something between it and its journal."""
    try:
        read = partial(parse_settings, argv, version())
        settings = read()
        common_logging.configure(settings.log_level, json=settings.log_json)
        discover()
        require(settings.policy)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        allow_many_connections()
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(run(settings, read, wrap(make_journal(settings))))
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    return 0
