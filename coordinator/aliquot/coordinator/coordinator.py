"""One coordinator: its server and gate, its standby where others may lead, and the parts that work while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from aliquot.common.errors import AliquotError
from aliquot.common.gauges import Gauge, Metric, gauge, measured, process_metrics, program_metrics, scraped
from aliquot.common.limits import ADDRESSES_MAX
from aliquot.common.scraping import Answer, ScrapeServer
from aliquot.common.tls import in_authority
from aliquot.common.validity import Certificates
from aliquot.coordinator.core.books.enrolment import Generation
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.core.state import State
from aliquot.coordinator.errors import JournalUnavailable, NotLeader
from aliquot.coordinator.leading import STOP_GRACE_S, Leading
from aliquot.coordinator.means import Means
from aliquot.coordinator.own_tls import addresses_of, tls_for
from aliquot.coordinator.parts import load
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.rpc.gate import Gate
from aliquot.coordinator.settings import stores
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.journal.replay import replay

if TYPE_CHECKING:
    from aliquot.coordinator.writing.leadership.base import Leadership
    from aliquot.coordinator.writing.leadership.postgres import PostgresLeadership  # psycopg is an extra
    from aliquot.coordinator.writing.standby import Led, Standby  # where several may lead

log = logging.getLogger(__name__)

_MEET_S = 2.0


class Coordinator:
    """`start`, then `serve` until `stop`; made and run on one event loop. Metrics are collected on any thread."""

    def __init__(self, settings: Settings, *, journal: Journal | None = None, means: Means | None = None) -> None:
        """Raises ConfigError."""
        self._means = means or Means()
        self.settings = settings
        self.journal = journal or stores.make_journal(settings)
        self.address = ""
        self.metrics_address = ""
        self.view = View()
        self._certificates = Certificates(self._wall_ms, settings.tls.server_tls())
        self._backup_missing = stores.make_backup_watch(settings, self.journal, self._wall_ms)
        self.metrics = self._measuring()
        self.gate = Gate()
        self.server = self._means.server([self.gate])
        self.leading: Leading | None = None
        """The parts that work while this coordinator leads; None before, and after it led."""
        self._garbage_collector = self._means.garbage_collector()
        # Here too, so that what is wrong with them is said at the start and not at a takeover.
        access, clock = settings.access, self._means.clock(0)
        self._means.logins(access.oidc, access.pods, clock, self.metrics.duties.tell)
        self._tracing = stores.make_tracing(settings, self._means.version)
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._seat = stores.shared_leadership(settings, self.journal)
        self._leadership: Leadership = self._seat or stores.single_leadership(settings, self.journal)
        self.standby: Standby | None = None if self._seat is None else load("standby")(self._seat, self._refer_to)
        self._following: asyncio.Task[None] | None = None
        self._leads = False
        self._scrape: ScrapeServer | None = None
        self._gauges: list[Gauge] = [
            ("aliquot_leading", "1 while this coordinator leads", lambda: int(self.gate.is_open)),
            ("aliquot_event_loop_tasks", "Tasks of the event loop", lambda: len(asyncio.all_tasks(self._loop))),
        ]

    @property
    def role(self) -> str:
        """`leader` or `standby`."""
        return "leader" if self.gate.is_open else "standby"

    # -- beginning

    async def start(self) -> None:
        """Take the lead, replay the journal and serve. Where another coordinator leads, follow its journal instead, and
        give callers its address. Raises AliquotError.
        """
        self._garbage_collector.hold_off()
        self._garbage_collector.measure(self._paused)
        try:
            if self._seat is not None and self.standby is not None:
                await self._start_shared(self._seat, self.standby)
            else:
                await self._lead(self._leadership.acquire(), self._replayed())
        except Exception:
            await self._end()
            raise
        self._garbage_collector.settle()

    async def _start_shared(self, seat: PostgresLeadership, standby: Standby) -> None:
        """Serve at once, follow the journal, and lead if nobody else does."""
        await asyncio.to_thread(standby.prepare)  # before listening: our own certificate follows from the pool's secret
        self._listen()
        seat.addresses = addresses_of(self.settings, self.address)
        await self.server.serve(leading=False)
        led = await asyncio.to_thread(standby.step)
        if led is None or not await self._led(seat, led):
            self._following = asyncio.create_task(self._follow(seat))

    async def _follow(self, seat: PostgresLeadership) -> None:
        """Until this coordinator leads. What ended an earlier leadership of its own is over when this begins."""
        try:
            if self.leading is not None:
                await self._step_down(seat, self.leading)
            while self.standby is not None and not self._stop.is_set():
                led = await asyncio.to_thread(self.standby.wait)
                if led is not None and not self._stop.is_set() and await self._led(seat, led):
                    self._garbage_collector.settle()
                    return
        except BaseException:
            self._stop.set()
            raise

    async def _led(self, seat: PostgresLeadership, led: Led) -> bool:
        """Lead with what was taken over; False where the database goes away, or another leads, before we do."""
        try:
            await self._lead(led.leader_epoch, led.state)
        except (JournalUnavailable, NotLeader) as error:
            log.warning("leading did not begin: %s", error)
            if self.leading is not None:
                await self._step_down(seat, self.leading)
            return False
        return True

    async def _step_down(self, seat: PostgresLeadership, leading: Leading) -> None:
        """From a leader become a standby, at the same address and with a state read anew: what was in memory may be
        ahead of the journal.
        """
        self.gate.close()
        standby: Standby = load("standby")(seat, self._refer_to)
        standby.generations = self.view.books.generations  # until it has followed: our certificate is of these
        self.leading, self.standby = None, standby  # first: that its parts end now is no failure
        await leading.step_down(NotLeader(seat.why_lost, hint="connect again: another coordinator may lead"))
        await asyncio.to_thread(seat.stop_renewing)
        await asyncio.to_thread(self.journal.close)
        self.view = View()
        self.metrics = self._measuring()
        self._garbage_collector.hold_off()

    def _ended(self) -> None:
        """What leads has come to an end. One of several coordinators follows then, unless something is broken."""
        leading = self.leading
        if self._seat is None or (leading is not None and not isinstance(leading.failure, NotLeader)):
            self._stop.set()
        elif self._leads:
            self._leads = False
            self._following = asyncio.create_task(self._follow(self._seat))

    def _measuring(self) -> Metrics:
        metrics = Metrics(self.view, self._wall_ms)
        metrics.duties.watch("certificate", self._certificates.look)
        if self._backup_missing is not None:
            metrics.duties.watch("backup", self._backup_missing)
        return metrics

    def _paused(self, seconds: float) -> None:
        self.metrics.gc_pause.observe(seconds)  # whichever metrics are kept now

    def _refer_to(self, leader: str, nodes: int, away: AliquotError | None) -> None:
        """Who leads, and how many nodes there are; said by the thread that follows."""
        self._loop.call_soon_threadsafe(self.gate.refer_to, leader, nodes, away)

    async def _lead(self, leader_epoch: int, state: State) -> None:
        """From here on this coordinator is the one that decides."""
        self.leading = leading = Leading(
            self.settings,
            self.journal,
            state,
            leader_epoch,
            seat=self._seat,
            gate=self.gate,
            server=self.server,
            view=self.view,
            metrics=self.metrics,
            means=self._means,
            reload=self._replayed,
            reached_at=self._reached_at,
            ended=self._ended,
            others=() if self._tracing is None else (self._tracing,),
        )
        await leading.start()
        self.gate.open(leading.services, leading.door)
        if self._seat is not None:
            await self.server.set_leading(leading=True)
        else:
            self._listen()
            await self.server.serve(leading=True)
        await leading.keep_up()
        self._leads = True

    async def _reached_at(self) -> Sequence[str]:
        """Where the coordinators are reached: this one first, then the others of now."""
        own, seat = addresses_of(self.settings, self.address), self._seat
        if seat is None:
            return own
        with contextlib.suppress(JournalUnavailable, TimeoutError):
            async with asyncio.timeout(_MEET_S):
                await asyncio.to_thread(seat.meet)
        return tuple(dict.fromkeys([*own, *seat.everybody]))[:ADDRESSES_MAX]

    def _replayed(self) -> State:
        """All that is durable. Blocks. Raises JournalError."""
        clock = self._means.clock(0)
        began_ms = clock.monotonic_ms()
        replayed = replay(self.journal)
        self.journal.resume_after(replayed.state.seq, replayed.digest)
        log.info(
            "replayed %d facts after the snapshot of %d in %d ms: %d leases, %d nodes",
            replayed.facts,
            replayed.snapshot_seq,
            clock.monotonic_ms() - began_ms,
            len(replayed.state.leases),
            len(replayed.state.nodes),
        )
        return replayed.state

    def _listen(self) -> None:
        """Callers may connect, and metrics be scraped. Raises SecurityError, ListenError or ConfigError."""
        settings = self.settings
        tls = tls_for(settings, self.journal.pool_secret, self._generations, self._wall_ms)
        self.address = self.server.listen(settings.listen, tls)
        if settings.metrics_port >= 0:
            host, port, token_file = settings.metrics_host, settings.metrics_port, settings.metrics_token_file
            probes = {"/healthz": self._live, "/readyz": self._ready}
            self._scrape = scraped(host, port, self, token_file, others=self._may_scrape, probes=probes, tls=tls)
            self.metrics_address = f"{in_authority(host)}:{self._scrape.port}"

    def _wall_ms(self) -> int:
        """What this machine's clock shows now: it may have been set right since this process began."""
        return self._means.clock(0).now_ms()

    def _generations(self) -> tuple[Generation, ...]:
        """Of the pool's authority, as they are durable. On any thread."""
        if self.leading is None and self.standby is not None:
            return self.standby.generations
        return self.view.books.generations

    # -- what it says of itself, on other threads

    def collect(self) -> Iterator[Metric]:
        """All measurements of whatever part it has, within a few milliseconds."""
        metrics = self.metrics
        yield from metrics.collect()
        metrics.duties.look()
        yield from program_metrics(metrics.duties, self._certificates)
        yield from process_metrics()
        yield from measured(self._gauges)
        yield self._clocks()
        if (leading := self.leading) is not None:
            yield from leading.gauges.collect()

    def _clocks(self) -> Metric:
        """How far clocks are apart, as far as they are compared."""
        text = "How far a clock is ahead of another's: of this coordinator's machine, and of the pool's time itself"
        family = gauge("aliquot_clock_ahead_seconds", text, labels=("clock", "of"))
        if self._seat is not None:
            family.add_metric(("machine", "database"), self._seat.clock_ahead_ms / 1000)
        keeper = self.leading.timekeeper if self.leading is not None else None
        if keeper is not None:
            family.add_metric(("machine", "agents"), keeper.machine_ahead_of_agents_ms / 1000)
            family.add_metric(("pool", "machine"), keeper.ahead_of_machine_ms / 1000)
        return family

    def _may_scrape(self, token: str) -> bool:
        """Whether it is of a role that may, as far as this coordinator leads and so knows tokens. On any thread."""
        leading = self.leading
        return leading is not None and self.gate.is_open and leading.door.authenticator.may(token, Action.SCRAPE)

    def _live(self) -> Answer:
        leading = self.leading
        alive = leading is None or not self.gate.is_open or leading.sweep_timer.is_live()
        return Answer(200, "ok") if alive else Answer(503, "the event loop is stuck")

    def _ready(self) -> Answer:
        leading = self.leading
        if leading is None or not self.gate.is_open:
            away = f": {self.gate.away}" if self.gate.away is not None else ""
            return Answer(503, f"standby; the leader is {self.gate.leader or 'not known'}{away}")
        if leading.writer.granting:
            return Answer(200, "ok")
        return Answer(503, f"nothing is granted: {leading.writer.not_granting_reason}")

    # -- until the end

    async def serve(self) -> None:
        """Until `stop` is called, a part has failed, or another process has the journal of a coordinator that is alone.
        Then end in order; raises the failure, or NotLeader.
        """
        try:
            await self._stop.wait()
        finally:
            log.info("shutting down")
            await self._end()
        for failure in (
            self.leading.failure if self.leading is not None else None,
            self._following.exception() if self._following is not None else None,
        ):
            if failure is not None:
                raise failure

    def adopt(self, settings: Settings) -> None:
        """Go on under these, which differ from those of before only in what may change while it runs."""
        self.settings = settings
        if self.leading is not None:
            self.leading.adopt(settings)

    def stop(self) -> None:
        """End in order."""
        self._stop.set()
        if self.standby is not None:
            self.standby.stop()

    async def _end(self) -> None:
        if self.standby is not None:
            self.standby.stop()
        if self._following is not None:
            await asyncio.gather(self._following, return_exceptions=True)
        if self.leading is not None:
            await self.leading.stop()
        else:
            await self.server.stop(STOP_GRACE_S)
        self._garbage_collector.stop_measuring()
        if self._scrape is not None:
            await asyncio.to_thread(self._scrape.close)
        self._leadership.release()
        if self._tracing is not None:  # last: a collector that is away keeps no other coordinator from leading
            await asyncio.to_thread(self._tracing.close)
