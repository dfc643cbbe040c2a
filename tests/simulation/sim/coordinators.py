"""Coordinators: hosts on which the production `Coordinator` runs, one at a time leading, and who starts them again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from aliquot.common.duration import DurationMs
from aliquot.common.errors import AliquotError
from aliquot.common.ids import IdGenerator
from aliquot.coordinator.coordinator import Coordinator
from aliquot.coordinator.core.evolve.snapshot import to_snapshot
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.leading import Leading
from aliquot.coordinator.means import Means
from aliquot.coordinator.settings.config import LimitSettings, Settings
from aliquot.coordinator.upkeep.collector import GarbageCollector
from aliquot.coordinator.writing.journal.replay import replay
from tests.identity import access
from tests.simulation.sim.clocks import SimTime, WallClock
from tests.simulation.sim.loop import US_PER_S, Process, SimLoop, current
from tests.simulation.sim.network import Network
from tests.simulation.sim.server import SimServer
from tests.simulation.sim.store import SNAPSHOTS_KEPT, SimJournal, SimJournalThread, Store
from tests.simulation.sim.vouching import SimLogins


class SimSettings(Settings):
    """Waits of an hour are shortened to what a run of ten minutes can see the end of."""

    def core(self) -> CoreConfig:
        """What decisions depend on."""
        return msgspec.structs.replace(
            super().core(),
            preemption_period_ms=60_000,
            requeue_backoff_max_ms=15_000,
            cut_patience_ms=2_000,
            cut_rest_ms=15_000,
        )


TAKE_OVER_US = 4 * US_PER_S
"""A standby takes over after the leader has not been seen for so long."""


class NoCollector(GarbageCollector):
    """Garbage is the whole simulation's (`World.run`)."""

    def hold_off(self) -> None:
        """Nothing."""

    def settle(self) -> None:
        """Nothing."""

    def measure(self, report: Callable[[float], None]) -> None:
        """Nothing."""

    def stop_measuring(self) -> None:
        """Nothing."""


class CoordinatorHost:
    """One machine that may run a coordinator."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        store: Store,
        random: Random,
        host: str,
        *,
        policy: str,
        chances: Random,
        entropy: Callable[[int], bytes],
        time: SimTime,
    ) -> None:
        self.loop, self.network, self.store = loop, network, store
        self.random = random
        self.host = host
        self.clock = WallClock(loop)
        self._means = Means(
            clock=self.clock.make,
            perf_ns=time.perf_counter_ns,
            ids=lambda: IdGenerator(chances),
            entropy=entropy,
            journal_thread=lambda: SimJournalThread(loop, store, chances),
            server=SimServer,
            garbage_collector=NoCollector,
            logins=SimLogins,
            version="0",
        )
        self.process: Process | None = None
        self.coordinator: Coordinator | None = None
        self.serving = False
        self.leads = False
        self.starts = 0
        self.settings = SimSettings(
            listen=host,
            journal="memory:",
            metrics_port=-1,
            policy=policy,
            forecast=False,
            clock_skew_max=DurationMs(0),  # machines of the simulation have clocks that are wrong by minutes
            access=access(),
            limits=LimitSettings(
                retain_ended=DurationMs(60_000),
                retain_ended_max=5_000,
                ledger_entries_max=100,
                strict_tenants=False,  # tenants come and go in all pools, asked for before they are declared
            ),
        )
        self.on_started: Callable[[CoordinatorHost], None] = lambda host: None
        self.on_defect: Callable[[str], None] = lambda text: None

    @property
    def leading(self) -> Leading | None:
        """The parts of a coordinator that leads here."""
        return None if self.coordinator is None else self.coordinator.leading

    @property
    def alive(self) -> bool:
        """Whether a process is there (frozen or not)."""
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Start a coordinator that takes the lead."""
        if self.alive:
            return
        self.starts += 1
        self.process = self.loop.spawn(f"coordinator on {self.host}")
        self.process.host = self
        self.process.on_exit.append(self._gone)
        self.loop.start(self.process, self._run(), "coordinator")

    def _gone(self) -> None:
        self.serving = False
        self.coordinator = None
        self.network.servers.pop(self.host, None)

    async def _run(self) -> None:
        process = current()
        journal = SimJournal(self.store, self.random, process)
        coordinator = Coordinator(self.settings, journal=journal, means=self._means)
        try:
            await coordinator.start()
            self.coordinator = coordinator
            self.serving = True
            self.on_started(self)
            await coordinator.serve()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except AliquotError:
            pass  # its own reason to end: another leads, or the journal can't be used
        except BaseException as error:  # noqa: BLE001 - whatever else ends a coordinator is a defect
            if process.alive:
                self.on_defect(f"coordinator on {self.host} ended: {error!r}")
        self.loop.call_in(process, 0, self.loop.kill, process)

    def crash(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.loop.kill(self.process)

    def terminate(self) -> None:
        """SIGTERM."""
        if self.coordinator is not None:
            self.loop.call_in(self.process, 0, self.coordinator.stop)  # type: ignore[arg-type]


class Cluster:
    """All coordinator hosts and what keeps one of them leading: an expiring leader row, as with PostgreSQL."""

    def __init__(
        self,
        loop: SimLoop,
        network: Network,
        store: Store,
        random: Random,
        *,
        chances: Random,
        entropy: Callable[[int], bytes],
        time: SimTime,
        world: Process,
        policy: str,
        hosts: int,
    ) -> None:
        self.loop, self.store, self.random, self.world = loop, store, random, world
        self.hosts = [
            CoordinatorHost(
                loop,
                network,
                store,
                random,
                f"coord-{chr(97 + number)}",
                policy=policy,
                chances=chances,
                entropy=entropy,
                time=time,
            )
            for number in range(hosts)
        ]
        self.leader = self.hosts[0]
        self.unseen_since_us = -1
        self.failovers = 0
        self.snapshots = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where agents and launchers try."""
        return tuple(host.host for host in self.hosts)

    def start(self) -> None:
        """The first leader, and the watch over it."""
        self.leader.start()
        self.loop.call_in(self.world, US_PER_S, self._watch)

    def _seen(self) -> bool:
        process = self.leader.process
        return process is not None and process.alive and not process.frozen

    def _watch(self) -> None:
        self.loop.call_in(self.world, US_PER_S // 2, self._watch)
        if self._seen():
            self.unseen_since_us = -1
            return
        if self.unseen_since_us < 0:
            self.unseen_since_us = self.loop.now_us
        if not self.leader.alive and self.random.random() < 0.3:
            self.leader.start()  # restarted where it was
        elif self.loop.now_us - self.unseen_since_us > TAKE_OVER_US:
            free = [host for host in self.hosts if not host.alive]
            if free:
                self.failovers += 1
                self.leader = free[self.random.randrange(len(free))]
                self.leader.start()
                self.unseen_since_us = -1

    def take_snapshot(self) -> None:
        """What the snapshotter does in a process of its own: replay what is durable, and write the books."""
        journal = SimJournal(self.store, self.random, self.world)
        replayed = replay(journal)
        encoded = msgspec.msgpack.encode(to_snapshot(replayed.state))
        self.store.snapshots.append((encoded, replayed.digest))
        del self.store.snapshots[:-SNAPSHOTS_KEPT]
        self.snapshots += 1
        leading = self.leader.leading
        if len(self.store.snapshots) > 1 and leading is not None and self.leader.serving:
            older = msgspec.msgpack.decode(self.store.snapshots[0][0] or encoded)["seq"]
            if self.store.snapshots[0][0]:
                self.loop.call_in(self.leader.process, 0, leading.writer.prune, older)  # type: ignore[arg-type]
