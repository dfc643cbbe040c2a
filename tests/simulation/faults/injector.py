"""Makes faults happen in a world, and mends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.faults import (
    coordinator_faults,
    node_faults,
    office_faults,
    people_faults,
    rules_faults,
    twin_faults,
)
from tests.simulation.faults.kinds import KINDS, Fault
from tests.simulation.sim.loop import US_PER_MS, US_PER_S

if TYPE_CHECKING:
    from tests.simulation.sim.world import World

Undo = Callable[[], None]
Action = Callable[["World", Fault, Random], Undo | None]

ACTIONS: dict[str, Action] = {
    **coordinator_faults.ACTIONS,
    **node_faults.ACTIONS,
    **people_faults.ACTIONS,
    **office_faults.ACTIONS,
    **rules_faults.ACTIONS,
    **twin_faults.ACTIONS,
}
assert set(ACTIONS) == set(KINDS), set(ACTIONS) ^ set(KINDS)


class Injector:
    """Keeps what has to be undone."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._undo: dict[int, Undo] = {}
        self._numbers = 0
        self.stopped = False
        self.injected: Counter[str] = Counter()
        self.log: list[str] = []

    def inject(self, fault: Fault) -> None:
        """It happens now."""
        if self.stopped:
            return
        self.injected[fault.kind] += 1
        self._world.auditor.note(f"FAULT {fault}")
        undo = ACTIONS[fault.kind](self._world, fault, Random(fault.seed))
        if undo is not None:
            self._numbers += 1
            self._undo[self._numbers] = undo
            self._world.loop.call_in(
                self._world.process, fault.duration_ms * US_PER_MS, self._mend, self._numbers, fault.kind
            )

    def _mend(self, number: int, kind: str) -> None:
        undo = self._undo.pop(number, None)
        if undo is not None:
            self._world.auditor.note(f"mended {kind}")
            undo()

    def stop(self) -> None:
        """No more faults: everything is mended, everybody is back."""
        self.stopped = True
        self._world.auditor.note("FAULTS STOP")
        for number in list(self._undo):
            self._mend(number, "the rest")
        world = self._world
        world.store.crash, world.store.full, world.store.failing, world.store.lying = None, False, 0, 0
        world.store.stall_us = 0
        for node in world.nodes:
            node.boot()
            for proc in list(node.procs.values()):
                if proc.child or not proc.lease_id:  # what got out of sight ends by itself some day
                    world.loop.call_in(node.os, 30 * US_PER_S, node.exit, proc)
            node.disk.full, node.disk.dies_in_next_save = False, None
            node.disk.damage_next_read = 0
            if node.process is not None and not node.process.alive:
                node.start_agent()
        people_faults.uncordon_all(world)
        people_faults.return_all(world)
