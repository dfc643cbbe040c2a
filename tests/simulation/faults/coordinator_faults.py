"""What happens to coordinators, their disks and the network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.sim.loop import US_PER_MS, US_PER_S
from tests.simulation.sim.store import CrashPoint

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.coordinators import CoordinatorHost
    from tests.simulation.sim.nodes import SimNode
    from tests.simulation.sim.world import World

Undo = Callable[[], None]
POLICIES = ("binpack", "spread")


def cut(world: World, pairs: list[tuple[str, str]]) -> Undo:
    """Cut these directions; undone together."""
    for source, target in pairs:
        world.network.block(source, target)

    def mend() -> None:
        for source, target in pairs:
            world.network.unblock(source, target)

    return mend


def some_node(world: World, random: Random) -> SimNode:
    """Any node; preferably one that holds something."""
    for _ in range(3):
        node = world.nodes[random.randrange(len(world.nodes))]
        if node.disk.slices:
            return node
    return world.nodes[random.randrange(len(world.nodes))]


def _cut_node(world: World, fault: Fault, random: Random) -> Undo:
    node = some_node(world, random).host
    return cut(world, [(node, "*"), ("*", node)])


def _cut_up(world: World, fault: Fault, random: Random) -> Undo:
    return cut(world, [(some_node(world, random).host, "*")])


def _cut_down(world: World, fault: Fault, random: Random) -> Undo:
    return cut(world, [("*", some_node(world, random).host)])


def _cut_leader(world: World, fault: Fault, random: Random) -> Undo:
    leader = world.cluster.leader.host
    return cut(world, [(leader, "*"), ("*", leader)])


def _cut_half(world: World, fault: Fault, random: Random) -> Undo:
    leader = world.cluster.leader.host
    hosts = [node.host for node in world.nodes if random.random() < 0.5]
    return cut(world, [pair for host in hosts for pair in ((host, leader), (leader, host))])


def _cut_launcher(world: World, fault: Fault, random: Random) -> Undo:
    launcher = world.launchers[random.randrange(len(world.launchers))].host
    return cut(world, [(launcher, "*"), ("*", launcher)])


def _slow(world: World, host: str, extra_us: int) -> Undo:
    slow = world.network.slow_us
    slow[host] = slow.get(host, 0) + extra_us

    def mend() -> None:
        slow[host] -= extra_us
        if not slow[host]:
            del slow[host]

    return mend


def _slow_node(world: World, fault: Fault, random: Random) -> Undo:
    return _slow(world, some_node(world, random).host, random.randint(20, 3_000) * US_PER_MS)


def _slow_leader(world: World, fault: Fault, random: Random) -> Undo:
    return _slow(world, world.cluster.leader.host, random.randint(20, 1_500) * US_PER_MS)


def _slow_launcher(world: World, fault: Fault, random: Random) -> Undo:
    launcher = world.launchers[random.randrange(len(world.launchers))]
    return _slow(world, launcher.host, random.randint(20, 6_000) * US_PER_MS)


def _reset_node(world: World, fault: Fault, random: Random) -> None:
    world.network.reset_some(some_node(world, random).host)


def _reset_leader(world: World, fault: Fault, random: Random) -> None:
    world.network.reset_some(world.cluster.leader.host)


def _permille(name: str, most: int) -> Callable[[World, Fault, Random], Undo]:
    def happen(world: World, fault: Fault, random: Random) -> Undo:
        by = random.randint(20, most)
        setattr(world.network, name, getattr(world.network, name) + by)
        return lambda: setattr(world.network, name, getattr(world.network, name) - by)

    return happen


def _half_open(world: World, fault: Fault, random: Random) -> Undo:
    """The agent dies behind a cut: the coordinator keeps a stream to nobody, and hears the end of it much later."""
    node = some_node(world, random)
    mend = cut(world, [(node.host, "*"), ("*", node.host)])
    node.crash_agent(again_after_us=random.randint(1, 8) * US_PER_S)
    return mend


def _flapping(world: World, fault: Fault, random: Random) -> Undo:
    host = some_node(world, random).host
    state: dict[str, Any] = {"mend": None, "over": False}

    def flap() -> None:
        if state["mend"] is not None:
            state["mend"]()
            state["mend"] = None
        elif not state["over"]:
            state["mend"] = cut(world, [(host, "*"), ("*", host)])
        if not state["over"]:
            world.loop.call_in(world.process, random.randint(50, 4_000) * US_PER_MS, flap)

    def mend() -> None:
        state["over"] = True
        if state["mend"] is not None:
            state["mend"]()
            state["mend"] = None

    flap()
    return mend


def _replayed(*, up: bool) -> Callable[[World, Fault, Random], None]:
    """Old messages come again on new streams, a few at a time."""

    def happen(world: World, fault: Fault, random: Random) -> None:
        for _ in range(8):
            world.network.replay(random, up=up)

    return happen


def _last_words(world: World, fault: Fault, random: Random) -> Undo:
    """What an agent says is lost; it restarts slowly and without its records; then its earlier words come after all."""
    node = some_node(world, random)
    mend_link = cut(world, [(node.host, "*")])

    def speak(times: int) -> None:
        world.network.replay(random, up=True, client=node.host)
        world.network.replay_snapshot(node.host)
        if times:
            world.loop.call_in(world.process, 50 * US_PER_MS, speak, times - 1)

    def slow_down() -> None:
        node.disk.damage_next_read = 0
        if node.process is not None:
            node.process.stalls_us = 1_500 * US_PER_MS

    def speed_up() -> None:
        if node.process is not None:
            node.process.stalls_us = 0

    def mend() -> None:
        world.network.reset_some(node.host)
        mend_link()
        if node.agent_alive:
            node.disk.damage_next_read = len(node.disk.slices)
            node.crash_agent(again_after_us=100 * US_PER_MS)
            world.loop.call_in(world.process, 400 * US_PER_MS, slow_down)
            world.loop.call_in(world.process, 8 * US_PER_S, speed_up)
            speak(100)

    return mend


# -- coordinators


def _crash(world: World, fault: Fault, random: Random) -> None:
    world.cluster.leader.crash()


def _crash_at(point: CrashPoint) -> Callable[[World, Fault, Random], None]:
    def happen(world: World, fault: Fault, random: Random) -> None:
        world.store.crash = point

    return happen


def _crash_again(world: World, fault: Fault, random: Random) -> None:
    """It dies, and whoever leads then dies again, perhaps while it starts."""

    def crash() -> None:
        world.cluster.leader.crash()

    crash()
    for delay_ms in (random.randint(300, 1500), random.randint(2_000, 6_000)):
        world.loop.call_in(world.process, delay_ms * US_PER_MS, crash)


def _terminate(world: World, fault: Fault, random: Random) -> None:
    world.cluster.leader.terminate()


def _settings(world: World, fault: Fault, random: Random) -> None:
    """It stops, and whoever leads next has other settings: what was decided before must stay as it was."""
    for host in world.cluster.hosts:
        limits = replace(host.settings.limits, ledger_entries_max=random.choice((50, 400)))
        host.settings = replace(host.settings, policy=random.choice(POLICIES), limits=limits)
    world.cluster.leader.terminate()


def _freeze(world: World, fault: Fault, random: Random) -> Undo | None:
    process = world.cluster.leader.process
    if process is None or not process.alive or process.frozen:
        return None
    world.loop.freeze(process)
    return lambda: world.loop.thaw(process)


def _usurped(world: World, fault: Fault, random: Random) -> None:
    """Another coordinator takes the lead from one that is alive and well, and does not know it yet."""
    free = [host for host in world.cluster.hosts if not host.alive]
    if free:
        world.cluster.leader = free[random.randrange(len(free))]
        world.cluster.leader.start()


def _wall(sign: int) -> Callable[[World, Fault, Random], None]:
    def happen(world: World, fault: Fault, random: Random) -> None:
        host: CoordinatorHost = world.cluster.leader
        for each in world.cluster.hosts:
            each.clock.stepped_us += sign * random.randint(1, 120) * US_PER_S
        host.crash()

    return happen


def _asleep(world: World, fault: Fault, random: Random) -> Undo | None:
    host = world.cluster.leader
    process = host.process
    if process is None or not process.alive or process.frozen:
        return None
    world.loop.freeze(process)

    def wake() -> None:
        host.clock.asleep_us += fault.duration_ms * US_PER_MS
        world.loop.thaw(process)

    return wake


def _busy(world: World, fault: Fault, random: Random) -> Undo:
    """The machine is overloaded: turns of the writer end early."""
    time, before = world.time, world.time.step_ns
    time.step_ns = random.choice((1_000_000, 4_000_000, 12_000_000))

    def mend() -> None:
        time.step_ns = min(before, 8_000)

    return mend


# -- the journal's disk


def _slow_disk(world: World, fault: Fault, random: Random) -> Undo:
    by = random.randint(20, 400) * US_PER_MS
    world.store.stall_us += by

    def mend() -> None:
        world.store.stall_us = max(0, world.store.stall_us - by)

    return mend


def _stall(world: World, fault: Fault, random: Random) -> Undo:
    by = fault.duration_ms * US_PER_MS
    world.store.stall_us += by

    def mend() -> None:
        world.store.stall_us = max(0, world.store.stall_us - by)

    return mend


def _full(world: World, fault: Fault, random: Random) -> Undo:
    world.store.full = True

    def mend() -> None:
        world.store.full = False

    return mend


def _error(world: World, fault: Fault, random: Random) -> None:
    world.store.failing += random.randint(1, 3)


def _unknown_outcome(world: World, fault: Fault, random: Random) -> None:
    world.store.lying += 1


def _snapshot_damaged(world: World, fault: Fault, random: Random) -> None:
    """Only the newest of two: with both damaged, there is nothing left to start from."""
    snapshots = world.store.snapshots
    if len(snapshots) > 1 and snapshots[-2][0]:
        snapshots[-1] = (b"", snapshots[-1][1])


def _snapshot_now(world: World, fault: Fault, random: Random) -> None:
    world.cluster.take_snapshot()


ACTIONS: dict[str, Any] = {
    "net.cut_node": _cut_node,
    "net.cut_up": _cut_up,
    "net.cut_down": _cut_down,
    "net.cut_leader": _cut_leader,
    "net.cut_half": _cut_half,
    "net.cut_launcher": _cut_launcher,
    "net.slow_node": _slow_node,
    "net.slow_leader": _slow_leader,
    "net.slow_launcher": _slow_launcher,
    "net.reset_node": _reset_node,
    "net.reset_leader": _reset_leader,
    "net.lossy_calls": _permille("lossy_permille", 300),
    "net.twice": _permille("twice_permille", 200),
    "net.half_open": _half_open,
    "net.flapping": _flapping,
    "net.replayed_orders": _replayed(up=False),
    "net.replayed_reports": _replayed(up=True),
    "net.last_words": _last_words,
    "coordinator.crash": _crash,
    "coordinator.crash_before_write": _crash_at(CrashPoint.BEFORE_WRITE),
    "coordinator.crash_after_write": _crash_at(CrashPoint.AFTER_WRITE),
    "coordinator.crash_torn": _crash_at(CrashPoint.TORN),
    "coordinator.crash_after_sync": _crash_at(CrashPoint.AFTER_SYNC),
    "coordinator.crash_again": _crash_again,
    "coordinator.terminate": _terminate,
    "coordinator.settings": _settings,
    "coordinator.freeze": _freeze,
    "coordinator.freeze_long": _freeze,
    "coordinator.usurped": _usurped,
    "coordinator.wall_back": _wall(-1),
    "coordinator.wall_forward": _wall(1),
    "coordinator.asleep": _asleep,
    "coordinator.busy": _busy,
    "disk.slow": _slow_disk,
    "disk.stall": _stall,
    "disk.full": _full,
    "disk.error": _error,
    "disk.unknown_outcome": _unknown_outcome,
    "disk.snapshot_damaged": _snapshot_damaged,
    "disk.snapshot_now": _snapshot_now,
}
