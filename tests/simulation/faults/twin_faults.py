"""Two machines that claim to be the same node: one was made from the image of the other, or has the key of another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from aliquot.agent.disk.membership import Membership
from aliquot.v1 import pool_pb2, types_pb2
from tests.simulation.faults.coordinator_faults import some_node
from tests.simulation.faults.people_faults import POOL, administer, run_for
from tests.simulation.sim.loop import US_PER_MS
from tests.simulation.sim.nodes import SimNode, devices_of

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.world import World

Undo = Callable[[], None]
OTHER_NUMBERS = 500_000
"""Its GPUs are not those of any node."""


def _twin(world: World, fault: Fault, random: Random) -> Undo | None:
    node = some_node(world, random)
    return _appear(world, random, node, "twin", node.member)


def _impostor(world: World, fault: Fault, random: Random) -> Undo | None:
    """Somebody has the key of one node, and claims to be another, which is off."""
    joined = [node for node in world.nodes if node.member is not None]
    if len(joined) < 2:
        return None
    node, other = random.sample(joined, 2)
    assert other.member is not None
    node.cut_power(fault.duration_ms * US_PER_MS)
    return _appear(world, random, node, "impostor", msgspec.structs.replace(other.member, node_id=node.node_id))


def _appear(world: World, random: Random, node: SimNode, kind: str, member: Membership | None) -> Undo | None:
    """Another machine claims to be this node."""
    host = f"{node.host}+{kind}"
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
    twin.host, twin.member = host, member
    twin.disk.copy_identity(node.disk)
    world.twins[host] = twin
    world.auditor.nodes.attach(twin)
    twin.start_agent()

    def mend() -> None:
        twin.removed = True
        twin.cut_power(0)
        del world.twins[host]
        world.auditor.nodes.leave(twin)
        run_for(world, _forget(world, node, set(twin.devices)), "admin: forget the copy")

    return mend


async def _forget(world: World, node: SimNode, uuids: set[str]) -> None:
    """Where the copy was let in while the node was away, the node is refused for as long as the copy's slices are held.
    An administrator reads why, and writes off what the copy held.
    """
    while True:
        known = await world.people.call(POOL + "GetNode", pool_pb2.GetNodeRequest(node_id=node.node_id))
        if known is not None:
            if uuids.isdisjoint(device.uuid for device in types_pb2.Node.FromString(known).devices):
                return
            await administer(world, "RemoveNode", pool_pb2.RemoveNodeRequest(node_id=node.node_id, force=True))
            world.people.let_join(node)
        await asyncio.sleep(5.0)


ACTIONS: dict[str, Any] = {"node.twin": _twin, "node.impostor": _impostor}
