"""What launchers and administrators do at bad moments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any

import grpc

from aliquot.v1 import admin_pb2, leases_pb2, pool_pb2, types_pb2
from tests.identity import ADMIN_TOKEN
from tests.simulation.faults.coordinator_faults import some_node
from tests.simulation.sim.calls import CallFailed
from tests.simulation.sim.launchers import HOPELESS, Launcher
from tests.simulation.sim.loop import Process
from tests.simulation.sim.nodes import MODELS
from tests.simulation.sim.people import TENANTS

if TYPE_CHECKING:
    from tests.simulation.faults.kinds import Fault
    from tests.simulation.sim.world import World

Undo = Callable[[], None]
POOL = "/aliquot.v1.PoolService/"
ADMIN = "/aliquot.v1.AdminService/"
GIB = 1 << 30


class _Host:
    host = "admin"


def run_for(world: World, coroutine: Coroutine[Any, Any, Any], name: str) -> None:
    """Somebody does this, outside all hosts."""
    process = Process(name)
    process.host = _Host()
    world.loop.start(process, coroutine, name)


async def administer(
    world: World, method: str, request: Any, tries: int = 3, *, service: str = POOL
) -> grpc.StatusCode:
    """One call of an administrator; OK, or why not."""
    code = grpc.StatusCode.UNAVAILABLE
    for number in range(tries):
        addresses = [world.cluster.leader.host, *world.cluster.addresses]
        try:
            token = world.people.operator.token if service == POOL and not number else ADMIN_TOKEN
            await world.network.call(
                "admin", addresses[number % len(addresses)], service + method, request.SerializeToString(), 5.0, token
            )
        except CallFailed as failed:
            code = failed.code
            if code in HOPELESS:
                return code
        else:
            return grpc.StatusCode.OK
        await asyncio.sleep(1.0)
    return code


def uncordon_all(world: World) -> None:
    """After the faults: every node that an administrator closed is open again."""

    async def work() -> None:
        for node in world.nodes:
            await administer(world, "Uncordon", pool_pb2.UncordonRequest(node_id=node.node_id), tries=50)

    run_for(world, work(), "admin: uncordon all")


def return_all(world: World) -> None:
    """After the faults: whoever looks after the cards takes those back that are on probation, which would be for a day;
    requests that need all cards of a node would wait so long.
    """

    async def work() -> None:
        for _ in range(8):
            await asyncio.sleep(30.0)
            said = await world.people.call(POOL + "GetHealth", pool_pb2.GetHealthRequest())
            for incident in pool_pb2.Health.FromString(said or b"").open:
                if incident.state == types_pb2.STANDING_PROBATION:
                    for uuid in incident.uuids:
                        await administer(world, "ReturnDevice", pool_pb2.ReturnDeviceRequest(uuid=uuid, reason="rest"))

    run_for(world, work(), "admin: return all")


def _closed(method: str, request: Callable[[str], Any]) -> Callable[[World, Fault, Random], Undo]:
    def happen(world: World, fault: Fault, random: Random) -> Undo:
        node_id = some_node(world, random).node_id
        run_for(world, administer(world, method, request(node_id)), f"admin: {method}")
        return lambda: run_for(
            world, administer(world, "Uncordon", pool_pb2.UncordonRequest(node_id=node_id), 20), "admin: uncordon"
        )

    return happen


def _remove(world: World, fault: Fault, random: Random) -> None:
    """A node is cut off until it is lost, and written off; later it comes back after all."""
    node = some_node(world, random)
    world.network.block(node.host, "*")
    world.network.block("*", node.host)

    async def work() -> None:
        await asyncio.sleep(random.randint(35, 50))
        await administer(world, "RemoveNode", pool_pb2.RemoveNodeRequest(node_id=node.node_id, force=True))
        await asyncio.sleep(random.randint(1, 30))
        world.network.unblock(node.host, "*")
        world.network.unblock("*", node.host)
        world.people.let_join(node)  # its key was forgotten with it

    run_for(world, work(), "admin: remove")


def _declare(world: World, fault: Fault, random: Random) -> None:
    """Capacity without an agent, for bookkeeping only; removed again by who declared it."""
    name = f"declared-{fault.seed}"
    node = types_pb2.Node(node_id=name, name=name, agentless=True)
    for index in range(random.randint(1, 4)):
        node.devices.add(index=index, model="A100-40", memory_total_bytes=40 * GIB)

    async def work() -> None:
        await administer(world, "DeclareNodes", pool_pb2.DeclareNodesRequest(nodes=[node]))
        await asyncio.sleep(random.randint(10, 60))
        await administer(world, "Drain", pool_pb2.DrainRequest(node_id=name), 20)
        for _ in range(20):
            code = await administer(world, "RemoveNode", pool_pb2.RemoveNodeRequest(node_id=name), 20)
            if code in (grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND):
                return
            await asyncio.sleep(2.0)

    run_for(world, work(), "admin: declare")


def _label(world: World, fault: Fault, random: Random) -> None:
    """A node that an agent has registered is declared as well: only its labels and pool may change."""
    target = some_node(world, random)
    node = types_pb2.Node(
        node_id=target.node_id, name=f"host-{target.number:04d}", labels={"zone": random.choice("abc")}
    )
    run_for(world, administer(world, "DeclareNodes", pool_pb2.DeclareNodesRequest(nodes=[node])), "admin: label")


def declare_below(name: str, request: admin_pb2.ApplyRequest) -> None:
    """Below a tenant that is bound only declared ones are let in."""
    for each in TENANTS:
        if each.startswith(f"{name}/"):
            request.tenants.add(spec=admin_pb2.TenantSpec(name=each))


def _quota(world: World, fault: Fault, random: Random) -> Undo:
    """A tenant may hold less than it does, or is guaranteed more than it has; later there is no such limit any more."""
    name = random.choice(TENANTS)
    most = admin_pb2.Amount(share_milli=random.choice((0, 500, 2_000, 20_000)))
    sure = admin_pb2.Amount(share_milli=min(most.share_milli, random.choice((0, 1_000, 4_000))))

    if random.random() < 0.4:
        most.memory_bytes = random.choice((0, 40, 400)) * GIB
        sure.memory_bytes = min(most.memory_bytes, random.choice((0, 20, 100)) * GIB)
    quota = admin_pb2.Quota(limit=most, guaranteed=sure)
    if random.random() < 0.5:
        limit = admin_pb2.Amount(share_milli=random.choice((0, 500, 1_000)), memory_bytes=random.choice((20, 80)) * GIB)
        quota.models.add(model=random.choice(MODELS)[1], limit=limit)
    disruptions, within_s = random.choice((0, 1, 2)), random.choice((30, 120))
    action = random.choice(("", "stronger_tier", "refuse"))
    policy = admin_pb2.OnOverLimit(action=action, for_s=random.choice((5, 60)), after=random.choice((1, 1, 2)))
    forgives = random.random() < 0.3
    ceilings = random.choice((None, None, -5, 0)), random.choice((None, None, 0, 2))

    def apply(quota: admin_pb2.Quota) -> None:
        request = admin_pb2.ApplyRequest()
        declare_below(name, request)
        spec = admin_pb2.TenantSpec(name=name, quota=quota)
        if quota.HasField("limit"):
            spec.disruptions_max, spec.disruption_period_s = disruptions, within_s
            spec.on_over_limit.CopyFrom(policy)
            if ceilings[0] is not None:
                spec.priority_max = ceilings[0]
            if ceilings[1] is not None:
                spec.waiting_max = ceilings[1]
        elif forgives:
            forgiven = admin_pb2.ForgiveRequest(tenant=name)
            run_for(world, administer(world, "Forgive", forgiven, 20, service=ADMIN), "admin: forgive")
        request.tenants.add(spec=spec)
        run_for(world, administer(world, "Apply", request, 20, service=ADMIN), "admin: quota")

    apply(quota)
    return lambda: apply(admin_pb2.Quota())


# -- launchers


def _some_launcher(world: World, random: Random) -> Launcher | None:
    alive = [launcher for launcher in world.launchers if launcher.process.alive]
    return alive[random.randrange(len(alive))] if alive else None


def _vanish(world: World, fault: Fault, random: Random) -> None:
    launcher = _some_launcher(world, random)
    if launcher is not None:
        launcher.vanish()
        world.add_launcher(len(world.launchers))


def _freeze(world: World, fault: Fault, random: Random) -> Undo | None:
    launcher = _some_launcher(world, random)
    if launcher is None or launcher.process.frozen:
        return None
    process = launcher.process
    world.loop.freeze(process)
    return lambda: world.loop.thaw(process)


def _arrive(world: World, fault: Fault, random: Random) -> None:
    if len(world.launchers) < 4 * world.config.launchers:
        world.add_launcher(len(world.launchers))


def _burst(world: World, fault: Fault, random: Random) -> None:
    launcher = _some_launcher(world, random)
    if launcher is not None:
        for number in range(random.randint(10, 40)):
            launcher.ask_now(f"burst-{fault.seed}-{number}")


def _same_key(world: World, fault: Fault, random: Random) -> None:
    """The same request, with the same key, from several at once."""
    launcher = _some_launcher(world, random)
    if launcher is not None:
        for _ in range(random.randint(2, 5)):
            launcher.ask_now(f"same-{fault.seed}", copy_of=f"same-{fault.seed}")


def _changed_body(world: World, fault: Fault, random: Random) -> None:
    launcher = _some_launcher(world, random)
    if launcher is not None:
        launcher.ask_otherwise(f"changed-{fault.seed}")


def _some_lease(world: World, random: Random) -> str:
    for _ in range(8):
        launcher = _some_launcher(world, random)
        living = [asked.lease_id for asked in launcher.asked if asked.lease_id] if launcher is not None else []
        if living:
            return living[random.randrange(len(living))]
    return ""


async def _call(world: World, method: str, request: Any, random: Random) -> None:
    token = world.people.someone(random)
    for address in (world.cluster.leader.host, *world.cluster.addresses):
        try:
            await world.network.call(
                "admin", address, "/aliquot.v1.LeaseService/" + method, request.SerializeToString(), 5.0, token
            )
        except CallFailed:
            continue
        return


def _release_early(world: World, fault: Fault, random: Random) -> None:
    """Somebody else releases a lease, twice, whatever it is about."""
    lease_id = _some_lease(world, random)
    if lease_id:
        for _ in range(2):
            run_for(world, _call(world, "Release", leases_pb2.ReleaseRequest(lease_id=lease_id), random), "releases")


def _look(world: World, fault: Fault, random: Random) -> None:
    """Somebody reads: a list, a dry run, why a lease waits."""
    run_for(world, _call(world, "List", leases_pb2.ListRequest(page_size=random.choice((0, 7, 1000))), random), "lists")
    lease_id = _some_lease(world, random)
    if lease_id:
        run_for(world, _call(world, "Explain", leases_pb2.ExplainRequest(lease_id=lease_id), random), "explains")
    request = types_pb2.LeaseRequest(gpu="0.5,4Gi", tenant="dev")
    run_for(world, _call(world, "Explain", leases_pb2.ExplainRequest(request=request), random), "explains")


ACTIONS: dict[str, Any] = {
    "launcher.vanish": _vanish,
    "launcher.freeze": _freeze,
    "launcher.arrive": _arrive,
    "launcher.burst": _burst,
    "launcher.same_key": _same_key,
    "launcher.changed_body": _changed_body,
    "launcher.release_early": _release_early,
    "launcher.look": _look,
    "admin.cordon": _closed("Cordon", lambda node_id: pool_pb2.CordonRequest(node_id=node_id)),
    "admin.drain": _closed("Drain", lambda node_id: pool_pb2.DrainRequest(node_id=node_id)),
    "admin.remove": _remove,
    "admin.declare": _declare,
    "admin.label": _label,
    "admin.quota": _quota,
}
