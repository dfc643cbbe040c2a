"""One simulated pool from a seed: coordinators, nodes, launchers, a network, faults, and the auditor that watches it.

A run has three parts: it starts up; then requests come and faults happen; then faults stop, nothing new is asked for,
and everything that was accepted must come to its end.
"""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from time import perf_counter, process_time

from tests.simulation.auditor import Auditor
from tests.simulation.faults import Fault, Injector, schedule
from tests.simulation.faults.office_faults import settle_accounts
from tests.simulation.sim.clocks import SimTime
from tests.simulation.sim.coordinators import Cluster
from tests.simulation.sim.defects import found_in_logs
from tests.simulation.sim.followers import Follower
from tests.simulation.sim.launchers import Launcher
from tests.simulation.sim.loop import US_PER_MS, US_PER_S, SimLoop, let_go
from tests.simulation.sim.machine import ProcessTable
from tests.simulation.sim.network import Network
from tests.simulation.sim.nodes import SimNode, devices_of
from tests.simulation.sim.people import TENANTS, People
from tests.simulation.sim.store import Store
from tests.simulation.sim.workload import Workload


@dataclass(frozen=True, slots=True)
class Config:
    """How large and how long. All times are simulated. As it stands: the pool of the figures in docs/measured.md."""

    nodes: int = 200
    launchers: int = 60
    coordinators: int = 2
    leases_per_launcher: int = 12
    think_s: float = 6.0
    busy_s: int = 480
    """Requests and faults."""
    settle_s: int = 300
    """At most so long until everything has come to its end."""
    whole_s: int = 600
    """A pool that has come to rest is watched until then: nothing may happen to it any more."""
    faults_per_s: float = 0.5
    policy: str = "binpack"
    snapshot_every_s: int = 45
    racks: int = 0
    """Nodes of a rack, which fail together; 0: there are no racks."""


CARELESS_FOR_US = 90 * US_PER_S
"""How long programs of one tenant take more than was granted, before it is another's turn."""
MIG_EVERY = 6
"""One node in so many has cards in MIG mode."""
SMALL = Config(
    nodes=12, launchers=5, busy_s=100, settle_s=300, whole_s=0, faults_per_s=0.3, think_s=4.5, leases_per_launcher=8
)
CROWDED = Config(
    nodes=4, launchers=8, busy_s=100, settle_s=400, whole_s=0, faults_per_s=0.25, think_s=3.0, leases_per_launcher=8
)
"""More is asked for than there is: queues, preemption and holds all the time."""
RACKS = Config(
    nodes=16, racks=4, launchers=5, busy_s=100, settle_s=300, whole_s=0, faults_per_s=0.2, think_s=4.5,
    leases_per_launcher=8,
)  # fmt: skip
"""Whole racks lose their power, get sick and get hot."""
SIZES = {"whole": Config(), "small": SMALL, "crowded": CROWDED, "racks": RACKS}
"""By the names under which the command line and the list of past failures know them."""


@dataclass(slots=True)
class Result:
    """What came of one seed."""

    seed: int
    violations: list[str]
    events: int
    steps: int
    lease_operations: int
    simulated_s: float
    took_s: float
    cpu_s: float
    digest: str
    faults: Counter[str] = field(default_factory=Counter)
    counts: dict[str, int] = field(default_factory=dict)
    schedule: list[Fault] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)


class World:
    """See the module's docstring."""

    def __init__(self, seed: int, config: Config, faults: list[Fault] | None = None) -> None:
        self.seed = seed
        self.config = config
        self.random = Random(seed)
        latency = self._fork("threads")
        self.loop = SimLoop(lambda: 200 + int(latency.random() ** 3 * 8_000))
        self.process = self.loop.spawn("world")
        self.table = ProcessTable()
        self.network = Network(self.loop, self._fork("network"), self.process)
        self.store = Store(hashlib.sha256(b"pool secret").digest())
        self.store.on_crash = self.loop.kill
        self.chances = Random(self._fork("patches").getrandbits(64))
        """Of everything that production code draws."""
        self.time = SimTime(self.loop, self.chances)
        self.cluster = Cluster(
            self.loop,
            self.network,
            self.store,
            self._fork("cluster"),
            chances=self.chances,
            entropy=self._fork("entropy").randbytes,
            time=self.time,
            world=self.process,
            policy=config.policy,
            hosts=config.coordinators,
        )
        machines = self._fork("machines")
        self.nodes = [
            SimNode(
                self.loop,
                Random(machines.getrandbits(64)),
                self.table,
                self.network,
                number=number,
                coordinators=self.cluster.addresses,
                devices=devices_of(number, machines),
            )
            for number in range(config.nodes)
        ]
        for node in self.nodes if config.racks else ():
            node.in_rack(f"rack-{node.number // config.racks}")
        for node in self.nodes[4::MIG_EVERY]:
            node.put_in_mig_mode(machines.choice((1, 1, 2)), machines)
        self.twins: dict[str, SimNode] = {}
        """Machines that claim to be a node that there is already, by their hosts."""
        self._node_by_id = {node.node_id: node for node in self.nodes}
        self.workload = Workload(self, self._fork("workload"))
        self.launchers: list[Launcher] = []
        self.people = People(self, self._fork("people"))
        self.followers = [
            Follower(self, number, self._fork(f"follower {number}"), person)
            for number, person in enumerate((None, *self.people.readers))
        ]
        self.issuing = False
        self.abuse = 0
        self.attached = 0
        self.attach_refused = 0
        self.auditor = Auditor(self)
        self.injector = Injector(self, self._fork("injector"))
        self.faults = schedule(self._fork("faults"), config) if faults is None else faults

    def _fork(self, name: str) -> Random:
        """A stream of randomness of its own, so that one part drawing more does not change the others."""
        return Random(hashlib.sha256(f"{self.seed}:{name}".encode()).digest())

    def add_node(self, node: SimNode) -> None:
        """One more machine, before the world starts."""
        self.nodes.append(node)
        self._node_by_id[node.node_id] = node

    def node(self, node_id: str) -> SimNode | None:
        """A node by its id."""
        return self._node_by_id.get(node_id)

    @property
    def careless(self) -> str:
        """The tenant whose programs take more than was granted now; all others heed their limits.

        One at a time, because devices of whoever was over a limit are polled ten times as often for a minute, on every
        node: were it all tenants, most of a run would be such polls, and the usual pace would hardly be tried.
        """
        turn = self.seed + self.loop.now_us // CARELESS_FOR_US
        return TENANTS[turn % len(TENANTS)]

    def now_s(self) -> float:
        """Simulated seconds since the start."""
        return self.loop.now_us / US_PER_S

    # -- running

    def run(self) -> Result:
        """All three parts. Stops at the first violation."""
        started, cpu_started = perf_counter(), process_time()
        gc.unfreeze()
        with let_go():
            gc.collect()
        gc.disable()  # what is garbage in cycles is little: a run of the whole pool stays below 700 MB
        try:
            with self.simulated():
                self._start()
                self._run()
                with let_go():
                    self.loop.abandon()
        finally:
            gc.freeze()  # else all of it would be looked through at once: the next run does, if there is one
            gc.enable()
        return self._result(perf_counter() - started, process_time() - cpu_started)

    @contextmanager
    def simulated(self) -> Iterator[None]:
        """For the length of a block, this world's loop runs, and defects that production code logs are its errors."""
        with found_in_logs(self.loop.errors), self.loop.running():
            yield

    def _start(self) -> None:
        self.auditor.attach()
        self.cluster.start()
        starts = self._fork("starts")
        for node in self.nodes:
            begins_us = starts.randrange(3 * US_PER_S)
            if node.early:
                self.loop.call_in(self.process, begins_us, node.start_agent)
                begins_us += US_PER_S
            self.loop.call_in(self.process, begins_us, self.people.let_join, node)
        for number in range(self.config.launchers):
            self.add_launcher(number)
        self.loop.call_in(self.process, 2 * US_PER_S, self.people.start)
        for follower in self.followers:
            self.loop.call_in(self.process, 2 * US_PER_S, follower.start)
        self.loop.call_in(self.process, 4 * US_PER_S, self._issue)
        self.loop.call_in(self.process, self.config.snapshot_every_s * US_PER_S, self._snapshot)
        for fault in self.faults:
            self.loop.call_in(self.process, fault.at_ms * US_PER_MS, self.injector.inject, fault)
        self.loop.call_in(self.process, 5 * US_PER_S, self._look)

    def add_launcher(self, number: int) -> None:
        """One more program that asks."""
        launcher = Launcher(self, number, self._fork(f"launcher {number}"))
        self.launchers.append(launcher)
        self.loop.call_in(self.process, US_PER_S, launcher.start)

    def _issue(self) -> None:
        self.issuing = True

    def _snapshot(self) -> None:
        self.cluster.take_snapshot()
        self.loop.call_in(self.process, self.config.snapshot_every_s * US_PER_S, self._snapshot)

    def _look(self) -> None:
        self.auditor.look()
        self.loop.call_in(self.process, 5 * US_PER_S, self._look)

    def _run(self) -> None:
        violations = self.auditor.violations
        busy_until_us = self.config.busy_s * US_PER_S
        broken = self.loop.run_until(busy_until_us, violations)
        self.issuing = False
        if not broken:
            self.injector.stop()
        give_up_us = busy_until_us + self.config.settle_s * US_PER_S
        while self.loop.now_us < give_up_us and not broken:
            broken = self.loop.run_until(min(self.loop.now_us + 2 * US_PER_S, give_up_us), violations)
            if self.loop.now_us >= self.config.whole_s * US_PER_S and self.auditor.unsettled() is None:
                break
        if not broken:
            self.auditor.all_until_ms = self.auditor.books.at_ms + 1
            settle_accounts(self, self.auditor.all_until_ms)
            broken = self.loop.run_until(self.loop.now_us + 5 * US_PER_S, violations)
        if not broken:
            self.auditor.final()
        for error in self.loop.errors:
            violations.append(f"an exception that nobody caught: {error}")

    def _result(self, took_s: float, cpu_s: float) -> Result:
        state = hashlib.sha256()
        for part in (
            self.store.last_digest,
            self.loop.steps,
            self.loop.moments,
            self.network.events,
            self.table.started,
            self.network.random.getstate(),
            [(a.key, a.outcome) for launcher in self.launchers for a in launcher.asked],
        ):
            state.update(repr(part).encode())
        auditor = self.auditor
        return Result(
            seed=self.seed,
            violations=auditor.violations,
            events=auditor.events(),
            steps=self.loop.steps,
            lease_operations=auditor.lease_operations,
            simulated_s=self.now_s(),
            took_s=took_s,
            cpu_s=cpu_s,
            digest=state.hexdigest(),
            faults=self.injector.injected,
            counts=auditor.counts(),
            schedule=self.faults,
            trace=auditor.trace(),
        )
