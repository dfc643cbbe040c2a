"""What happens to agents, machines, devices and programs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from aliquot.agent.core.samples import RecoveryAction
from tests.simulation.faults.coordinator_faults import some_node
from tests.simulation.sim.loop import US_PER_MS, US_PER_S
from tests.simulation.sim.machine import SimDevice, SimProc

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.nodes import SimNode
    from tests.simulation.sim.world import World

Undo = Callable[[], None]
GIB = 1 << 30


def _crash(world: World, fault: Fault, random: Random) -> None:
    some_node(world, random).crash_agent(random.randint(100, 30_000) * US_PER_MS)


def _crash_in_save(world: World, fault: Fault, random: Random) -> None:
    node = some_node(world, random)
    node.disk.dies_in_next_save = node.crash_agent


def _crash_many(world: World, fault: Fault, random: Random) -> None:
    for node in world.nodes:
        if random.random() < 0.15:
            node.crash_agent(random.randint(100, 10_000) * US_PER_MS)


def _freeze(world: World, fault: Fault, random: Random) -> Undo | None:
    process = some_node(world, random).process
    if process is None or not process.alive or process.frozen:
        return None
    world.loop.freeze(process)
    return lambda: world.loop.thaw(process)


def _power(world: World, fault: Fault, random: Random) -> None:
    some_node(world, random).cut_power(fault.duration_ms * US_PER_MS)


def _some_rack(world: World, random: Random) -> list[SimNode]:
    """All nodes of one rack."""
    of = world.config.racks
    first = random.randrange(-(-len(world.nodes) // of)) * of
    return world.nodes[first : first + of]


def _rack_power(world: World, fault: Fault, random: Random) -> None:
    """A rack loses its power; its machines come back one by one."""
    for node in _some_rack(world, random):
        node.cut_power((fault.duration_ms + random.randrange(5_000)) * US_PER_MS)


def _rack_devices(field: str, value: Any, well: Any) -> Callable[[World, Fault, Random], Undo]:
    """All cards of a rack at once, as after a dip of the voltage or a fan that stopped."""

    def happen(world: World, fault: Fault, random: Random) -> Undo:
        devices = [device for node in _some_rack(world, random) for device in node.devices.values()]
        for device in devices:
            _put(device, field, value)

        def mend() -> None:
            for device in devices:
                _put(device, field, well)

        return mend

    return happen


def _put(device: SimDevice, field: str, value: Any) -> None:
    if field == "recovery":
        device.recovery = value
    else:
        device.sample[field] = value


def _power_in_save(world: World, fault: Fault, random: Random) -> None:
    """Not only the agent ends while it writes: what it has not synced is lost as well."""
    node = some_node(world, random)
    node.disk.dies_in_next_save = lambda: node.cut_power(fault.duration_ms * US_PER_MS)


def _disk_full(world: World, fault: Fault, random: Random) -> Undo:
    disk = some_node(world, random).disk
    disk.full = True

    def mend() -> None:
        disk.full = False

    return mend


def _record_damaged(world: World, fault: Fault, random: Random) -> None:
    node = some_node(world, random)
    if node.agent_alive:
        node.disk.damage_next_read += 1
        node.crash_agent()


def _state_lost(world: World, fault: Fault, random: Random) -> None:
    """Somebody empties the state folder of an agent: it knows nothing of what it held, nor of the leader it obeyed."""
    node = some_node(world, random)
    if node.agent_alive:
        node.disk.empty()
        node.crash_agent()


def _slow_threads(world: World, fault: Fault, random: Random) -> Undo | None:
    process = some_node(world, random).process
    if process is None:
        return None
    process.stalls_us = random.randint(50, 4_000) * US_PER_MS

    def mend() -> None:
        process.stalls_us = 0

    return mend


def _wall_step(world: World, fault: Fault, random: Random) -> None:
    node = some_node(world, random)
    node.clock.stepped_us += random.randint(-300, 300) * US_PER_S
    node.crash_agent()


# -- devices


def _some_device(world: World, random: Random) -> tuple[SimNode, SimDevice]:
    node = some_node(world, random)
    while node.cards:  # what may happen to them are faults of their own
        node = some_node(world, random)
    uuids = list(node.devices)
    return node, node.devices[uuids[random.randrange(len(uuids))]]


def _device(field: str, value: Any, well: Any) -> Callable[[World, Fault, Random], Undo]:
    def happen(world: World, fault: Fault, random: Random) -> Undo:
        _, device = _some_device(world, random)
        setattr(device, field, value)
        return lambda: setattr(device, field, well)

    return happen


def _lost(world: World, fault: Fault, random: Random) -> Undo:
    """It falls off the bus: what programs held there is gone, and they die of it."""
    node, device = _some_device(world, random)
    device.lost = True
    for proc in node.listed(device.info.uuid):
        node.exit(proc)

    def mend() -> None:
        device.lost = False

    return mend


def _xid(number: int) -> Callable[[World, Fault, Random], None]:
    def happen(world: World, fault: Fault, random: Random) -> None:
        node, device = _some_device(world, random)
        node.report_xid(device.info.uuid, number)

    return happen


def _cut_fails(world: World, fault: Fault, random: Random) -> Undo | None:
    """The driver of a node with cards in MIG mode fails half way, once or also when it is to put back what was."""
    cards = [card for node in world.nodes for card in node.cards.values()]
    if not cards:
        return None
    chosen = random.sample(cards, min(len(cards), 3))
    for card in chosen:
        card.failing = random.choice((1, 1, 2))

    def mend() -> None:
        for card in chosen:
            card.failing = 0

    return mend


def _foreign(world: World, fault: Fault, random: Random) -> Undo:
    node, device = _some_device(world, random)
    proc = node.start()
    node.allocate(proc, device.info.uuid, random.randint(1, 30) * GIB)
    return lambda: node.exit(proc)


def _hidden(world: World, fault: Fault, random: Random) -> Undo:
    _, device = _some_device(world, random)
    device.other_bytes = random.randint(1, 8) * GIB

    def mend() -> None:
        device.other_bytes = 0

    return mend


def _unplugged(world: World, fault: Fault, random: Random) -> Undo:
    node, device = _some_device(world, random)
    uuid = device.info.uuid
    node.unplugged.add(uuid)
    for proc in node.listed(uuid):
        node.exit(proc)
    return lambda: node.unplugged.discard(uuid)


# -- programs


def _some_proc(world: World, random: Random) -> SimProc | None:
    for _ in range(8):
        node = some_node(world, random)
        leased = [proc for proc in node.procs.values() if proc.lease_id]
        if leased:
            return leased[random.randrange(len(leased))]
    return None


def _pid_reused(world: World, fault: Fault, random: Random) -> None:
    """A program of a lease ends, and somebody else's gets its number; later, just before the agent signals one, another
    of the same lease does. It must never be signalled in the other's place.
    """
    proc = _some_proc(world, random)
    if proc is None:
        return
    node = proc.machine
    node.swaps += node.has_cgroups
    device = next(iter(proc.memory), None)
    node.exit(proc)
    if not node.free_number(proc.pid):
        return
    other = node.start(pid=proc.pid)
    if device is not None:
        node.allocate(other, device, GIB)
    world.loop.call_in(node.os, random.randint(5, 60) * US_PER_S, node.exit, other)


def _killed(world: World, fault: Fault, random: Random) -> None:
    proc = _some_proc(world, random)
    if proc is not None:
        proc.machine.exit(proc)


def _many_forks(world: World, fault: Fault, random: Random) -> None:
    proc = _some_proc(world, random)
    if proc is None:
        return
    node = proc.machine
    uuid = next(iter(proc.memory), None)
    for _ in range(random.randint(3, 12)):
        child = node.start(parent=proc, leader=random.random() < 0.3)
        if uuid is not None:
            node.allocate(child, uuid, random.randint(1, 256) << 20)
        world.loop.call_in(node.os, random.randint(1, 40) * US_PER_S, node.exit, child)


def _abuse(world: World, fault: Fault, random: Random) -> Undo:
    """The careless tenant takes much more than was granted, and some of its jobs do so again and again."""
    world.abuse += 1
    asked = [each for launcher in world.launchers for each in launcher.asked if each.request.tenant == world.careless]
    running = [job for each in asked for job in each.jobs if not job.over]
    relaying = random.sample(running, min(len(running), 4))
    for job in relaying:
        job.relays = True
        job.relay()

    def mend() -> None:
        world.abuse -= 1
        for job in relaying:
            job.relays = False

    return mend


def _stray(world: World, fault: Fault, random: Random) -> None:
    """A program of a lease takes memory of a device on which its lease has no slice."""
    proc = _some_proc(world, random)
    if proc is not None:
        others = [uuid for uuid in proc.machine.devices if uuid not in proc.memory]
        if others:
            proc.machine.allocate(proc, others[random.randrange(len(others))], random.randint(1, 4) * GIB)


ACTIONS: dict[str, Any] = {
    "agent.crash": _crash,
    "agent.crash_in_save": _crash_in_save,
    "agent.power_in_save": _power_in_save,
    "agent.crash_many": _crash_many,
    "agent.freeze": _freeze,
    "agent.power": _power,
    "agent.disk_full": _disk_full,
    "agent.record_damaged": _record_damaged,
    "agent.state_lost": _state_lost,
    "agent.slow_threads": _slow_threads,
    "agent.wall_step": _wall_step,
    "device.lost": _lost,
    "device.xid_fatal": _xid(79),
    "device.xid_program": _xid(31),
    "device.hung": _device("hung", True, False),
    "device.blind": _device("blind", True, False),
    "device.unlisted": _device("unlisted", True, False),
    "device.recovery": _device("recovery", RecoveryAction.RESET, RecoveryAction.NONE),
    "device.remap_failed": _device("remap_failed", True, False),
    "device.cut_fails": _cut_fails,
    "device.foreign": _foreign,
    "device.hidden_memory": _hidden,
    "device.unplugged": _unplugged,
    "rack.power": _rack_power,
    "rack.sick": _rack_devices("recovery", RecoveryAction.RESET, RecoveryAction.NONE),
    "rack.hot": _rack_devices("margin_c", 0, 30),
    "process.pid_reused": _pid_reused,
    "process.killed": _killed,
    "process.many_forks": _many_forks,
    "process.abuse": _abuse,
    "process.stray": _stray,
}
