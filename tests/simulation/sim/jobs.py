"""Jobs: the programs that launchers start on nodes, how they use and abuse what they were granted."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from aliquot.agent.local.peer import Peer
from aliquot.common.errors import AliquotError
from aliquot.v1 import local_pb2, types_pb2
from tests.simulation.sim.loop import US_PER_S
from tests.simulation.sim.machine import SimProc

if TYPE_CHECKING:
    from tests.simulation.sim.nodes import SimNode
    from tests.simulation.sim.world import World

MIB = 1 << 20
ABUSE = 0.2
"""How often a program of the careless tenant takes too much while all of them do so, each time that it changes what it
holds.
"""


class Job:
    """One member of a lease at work on its node."""

    def __init__(
        self, world: World, node: SimNode, asked: Any, member: int, pieces: Sequence[types_pb2.Slice], random: Random
    ) -> None:
        self.world, self.node, self.asked, self.member = world, node, asked, member
        self.pieces = list(pieces)
        self.random = random
        self.procs: list[SimProc] = []
        self.over = False
        self.relays = False
        """Its programs take too much from the start, and whenever the last one is gone there is another."""

    def relay(self) -> None:
        """Go on with a fresh program whenever the last one was ended."""
        if self.relays and not self.over:
            if not any(proc.alive for proc in self.procs):
                self.start()
            self.world.loop.call_in(self.node.os, US_PER_S // 5, self.relay)

    def start(self) -> None:
        """The program starts, and attaches through the agent's local service if the agent is there."""
        node = self.node
        if self.over or not node.powered or node.local is None or node.process is None or node.process.frozen:
            return
        proc = node.start()
        proc.stubborn = self.random.random() < 0.2
        self.procs.append(proc)
        self.world.loop.start(node.process, self._attach(proc, node.local), "attach")

    async def _attach(self, proc: SimProc, local: Any) -> None:
        """Runs in the agent: what the socket's handler would do."""
        request = local_pb2.AttachRequest(lease_id=self.asked.lease_id, secret=self.asked.secret, member=self.member)
        # From the moment it is registered it may be signalled, so it counts as the lease's from here on.
        proc.lease_id, proc.member = self.asked.lease_id, self.member
        try:
            await local.attach(Peer(proc.key, 1000, 1000), request)
        except (AliquotError, OSError):
            self.world.attach_refused += 1
            self.node.exit(proc)
            return
        self.world.attached += 1
        self.world.loop.call_in(
            self.node.os, int(self.random.random() * US_PER_S * (not self.relays)), self._work, proc
        )

    def _work(self, proc: SimProc) -> None:
        """Change how much is held; overrun, fork, die, now and then."""
        if not proc.alive or self.over:
            return
        random, node = self.random, self.node
        piece = self.pieces[random.randrange(len(self.pieces))]
        if piece.device_uuid not in node.devices:
            return
        dice = random.random()
        abuse = self.world.abuse
        careless = self.asked.request.tenant == self.world.careless
        if dice < ABUSE * abuse * careless or self.relays:  # more than was granted
            want = piece.memory_bytes + int(piece.memory_bytes * random.random() * 0.5) + 64 * MIB
        elif dice < 0.06:
            want = 0
        else:
            alive = [each for each in self.procs if each.alive]
            want = int(piece.memory_bytes // max(1, len(alive)) * random.random() * 0.97)
            if not careless:  # else what the others took while they were fewer is not heeded
                taken = sum(each.memory.get(piece.device_uuid, 0) for each in alive if each is not proc)
                want = max(0, min(want, piece.memory_bytes - taken))
        node.allocate(proc, piece.device_uuid, want)
        if dice > 0.93 and len(self.procs) < 4:
            child = node.start(parent=proc, leader=False)
            self.procs.append(child)
            self.world.loop.call_in(node.os, US_PER_S, self._work, child)
        elif dice > 0.915 * (1 if abuse else 2):
            node.exit(proc)
            return
        self.world.loop.call_in(node.os, int((2 + random.random() * 10) * US_PER_S), self._work, proc)

    def finish(self) -> None:
        """The work is done: the programs end by themselves, most of them."""
        self.over = True
        for proc in self.procs:
            if not proc.alive:
                continue
            if self.random.random() < 0.9:
                self.node.exit(proc)
            else:  # it hangs; should nobody end it, it does so itself some day
                self.world.loop.call_in(self.node.os, 60 * US_PER_S, self.node.exit, proc)
