"""A coordinator while it leads, from its first command to its last. Of what it consists: `assemblies`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from aliquot.common.errors import AliquotError
from aliquot.common.tasks import Tasks
from aliquot.coordinator.agents.roster import WATCHED
from aliquot.coordinator.assemblies import Answering, Deciding, Following, Ground, Hearing
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.state import State
from aliquot.coordinator.errors import JournalUnavailable, NotLeader
from aliquot.coordinator.means import Means
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.rpc.gate import Gate
from aliquot.coordinator.rpc.lasting import SWEEP_S
from aliquot.coordinator.rpc.server import Serving
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.settings.stores import make_compaction
from aliquot.coordinator.upkeep.bookkeeping import close_books
from aliquot.coordinator.upkeep.first_admin import ensure_admin
from aliquot.coordinator.upkeep.fragmentation import follow_fragmentation
from aliquot.coordinator.upkeep.price_learner import PriceLearner
from aliquot.coordinator.upkeep.timekeeping import Timekeeper
from aliquot.coordinator.upkeep.warming import compile_when_wanted
from aliquot.coordinator.writing.commits import whole_state
from aliquot.coordinator.writing.journal.base import Journal

if TYPE_CHECKING:
    from aliquot.coordinator.writing.leadership.postgres import PostgresLeadership  # psycopg is an extra

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
        seat: PostgresLeadership | None,
        gate: Gate,
        server: Serving,
        view: View,
        metrics: Metrics,
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
        self._leader_epoch = leader_epoch
        self._gate = gate
        self._server = server
        self._ended = ended
        self._background = Tasks(self._failed)
        self._failure: BaseException | None = None
        view.apply(whole_state(state))
        clock = means.clock(0 if settings.clock_skew_max else state.now_ms)
        self._machine_ms = clock.now_ms
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
        self._ground = ground = Ground(
            settings, journal, seat, view, metrics, means, clock, self.timekeeper, reached_at
        )
        following = Following(ground, state, others)
        self._deciding = Deciding(ground, following, state, server, reload)
        hearing = Hearing(ground, following, self._deciding)
        answering = Answering(ground, following, self._deciding, hearing)

        self.hub, self.waiters, self.door = following.hub, following.waiters, following.door
        self.keepalive, self.observed, self.activity = following.keepalive, following.observed, following.activity
        self.roster, self.fleet, self.forecasting = following.roster, following.fleet, following.forecasting
        self.writer = self._deciding.writer
        self.sessions, self.sweep_timer = hearing.sessions, hearing.sweep_timer
        self.services, self.gauges, self._balances = answering.services, answering.gauges, answering.balances
        self._writing = asyncio.create_task(self.writer.run(), name="writer")
        self._writing.add_done_callback(self._writing_ended)

    # -- from beginning to end

    async def start(self) -> None:
        """Make it durable that we lead. Raises NotLeader, and the errors of a journal that can't be written."""
        if (seat := self._ground.seat) is not None:
            self._background.run("seat", self._keep_seat(seat))
            await asyncio.to_thread(seat.compare, self._machine_ms)  # it may have been set since the seat was taken
        await self.writer.submit(c.StartLeading(self._leader_epoch))
        settings = self._ground.settings
        await ensure_admin(
            self.writer,
            self._ground.view.callers,
            supplied=settings.access.admin_token_file,
            folder=settings.access_dir,
            entropy=self._ground.means.entropy,
        )
        self.roster.start_again()  # that may have taken long, and agents could not be heard meanwhile

    async def keep_up(self) -> None:
        """From now on callers and agents can be heard: count their silence, and begin what is done by the clock."""
        self.keepalive.start_again()
        await self._server.set_granting(granting=True)
        settings, writer, run = self._ground.settings, self.writer, self._background.run
        run("sweeps", self.sweep_timer.run())
        run("tokens that expire", self._end_expired())
        if self._ground.seat is not None:
            run("other coordinators", self._meet())
        run("fragmentation", follow_fragmentation(self._deciding.engine, self._ground.metrics))
        run("balances", self._balances.follow())
        run("observed use", self.observed.run(writer.submit, lambda: self._ground.settings.agents.use_told_every))
        run("looks at use", self.activity.run(writer.submit, lambda: self._ground.settings.agents.use_looked_at_every))
        compaction = make_compaction(
            settings,
            self._ground.journal,
            durable_seq=lambda: writer.durable_seq,
            prune=writer.prune,
            tell=self._ground.metrics.duties.tell,
        )
        if compaction is not None:
            run("compaction", compaction.run())
        if settings.limits.ledger_days:
            run("closing the books", close_books(writer, self._ground.clock, keep_days=settings.limits.ledger_days))
        if self.forecasting is not None:
            for name, task in self.forecasting.tasks(writer).items():
                run(name, task)
        prices = writer.state.prices if writer.state is not None else None
        version = prices.version if prices is not None else 0
        run("price learner", PriceLearner(self._deciding.arrivals, self._deciding.learn, version=version).run())
        devices = self._ground.view.totals.devices.__len__
        run("compiled scoring", compile_when_wanted(self._deciding.scoring_passes, devices))

    def adopt(self, settings: Settings) -> None:
        """Go on under these, which differ from those of before only in what may change while it runs."""
        self._ground.settings = settings
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
        return self._failure

    def _failed(self, task: asyncio.Task[None], error: BaseException) -> None:
        """Each part handles by itself what can go wrong around it, so one that ends by an error has a defect. Without
        its sweeps a coordinator would keep leases of launchers that are long gone, without compaction fill its disk: it
        ends instead, loudly and in order, and is started again.
        """
        log.critical("%s failed, and this coordinator ends", task.get_name(), exc_info=error)
        self._failure = self._failure or error
        self._ended()

    def _writing_ended(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and isinstance(writing.exception(), NotLeader):
            self._gate.close()
        self._ended()

    async def _keep_seat(self, seat: PostgresLeadership) -> None:
        """Stop granting the moment the seat may be another's. The fence would refuse our commits, but not our reads."""
        while not seat.lost:  # noqa: ASYNC110
            await asyncio.sleep(_SEAT_LOOK_S)  # it expires as time passes, which sets no event
        log.error("leadership is lost: %s", seat.why_lost)
        self._gate.close()
        # Until it is known who leads by now, if anybody does: most often it is the database that is away.
        self._gate.refer_to("", len(self.roster), JournalUnavailable(seat.why_lost, hint="it is retried by itself"))
        self.writer.lose_leadership(NotLeader(seat.why_lost, hint="it goes on as a standby"))

    async def _meet(self) -> None:
        while True:
            await self._ground.reached_at()
            await asyncio.sleep(_MEET_EVERY_S)

    async def _end_expired(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self.door.lasting.sweep(self._ground.clock.now_ms())
