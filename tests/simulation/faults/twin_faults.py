"""Two machines that claim to be the same node: one was made from the image of the other."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.faults.coordinator_faults import some_node
from tests.simulation.sim.nodes import SimNode, devices_of

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.world import World

Undo = Callable[[], None]
OTHER_NUMBERS = 500_000
"""Its GPUs are not those of any node."""


def _twin(world: World, fault: Fault, random: Random) -> Undo | None:
    node = some_node(world, random)
    host = f"{node.host}+twin"
    if host in world.twins:
        return None
    twin = SimNode(
        world.loop,
        Random(random.getrandbits(64)),
        world.table,
        world.network,
        number=node.number,
        coordinators=world.cluster.addresses,
        devices=devices_of(OTHER_NUMBERS + node.number, random),
    )
    twin.host = host
    twin.disk.copy_identity(node.disk)
    world.twins[host] = twin
    world.auditor.nodes.attach(twin)
    twin.start_agent()

    def mend() -> None:
        twin.removed = True
        twin.cut_power(0)
        del world.twins[host]
        world.auditor.nodes.leave(twin)

    return mend


ACTIONS: dict[str, Any] = {"node.twin": _twin}
