"""The fleet as columns: what a watcher is shown is what the pool holds, however it came to see it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from aliquot.client import AsyncPool, PoolError
from aliquot.client.fleet import FleetChange
from aliquot.coordinator.reading import fleet as fleets
from aliquot.v1 import access_pb2, agent_pb2, pool_pb2, types_pb2
from tests.access.people import introduce
from tests.coordinator.pool import DEADLINE_S, Agent, Pool, agents, declared, running
from tests.fleet_columns import Fleet
from tests.identity import ADMIN_TOKEN


@contextlib.asynccontextmanager
async def sdk(pool: Pool, token: str = ADMIN_TOKEN) -> AsyncIterator[AsyncPool]:
    async with AsyncPool(pool.address, token=token, timeout_s=5.0, agent_sockets=()) as connected:
        yield connected


async def follow(connected: AsyncPool, fleet: Fleet, until: Callable[[Fleet], bool]) -> None:
    """Apply what comes until that is so."""
    changes = connected.watch_fleet(layout=fleet.layout, version=fleet.version)
    async with asyncio.timeout(DEADLINE_S), contextlib.aclosing(changes) as following:  # type: ignore[type-var]
        async for change in following:
            fleet.apply(pool_pb2.FleetEvent.FromString(change.event))
            if until(fleet):
                return


def there(count: int) -> Callable[[Fleet], bool]:
    return lambda fleet: sum(state != pool_pb2.FLEET_STATE_GONE for state in fleet.states) == count


async def whole(pool: Pool, connected: AsyncPool) -> dict[str, list[tuple[int, int, int]]]:
    """The same by the ordinary calls: per node (state, share, memory) of each device."""
    found = {}
    async for node in connected.nodes():
        state = pool_pb2.FLEET_STATE_READY if not node.cordoned else pool_pb2.FLEET_STATE_CLOSED
        found[node.name] = [
            (
                int(state),
                device.leased_share_milli * 100 // device.compute_milli,
                _percent(device.leased_memory_bytes, device.memory_total_bytes - device.memory_reserved_bytes),
            )
            for device in node.devices
        ]
    return found


def _percent(part: int, whole: int) -> int:
    return 100 if part >= whole else max(1, part * 100 // whole) if part else 0


def told(fleet: Fleet) -> dict[str, list[tuple[int, int, int]]]:
    return {
        node.name: [
            (fleet.states[number], fleet.shares[number], fleet.memory[number])
            for number in range(node.first, node.first + node.devices)
        ]
        for node in fleet.nodes.values()
    }


async def test_a_snapshot_then_what_changes() -> None:
    async with running() as pool, sdk(pool) as connected:
        await pool.declare(3, devices=4)
        lease = await pool.allocate("0.5,8Gi")
        fleet = Fleet()
        await follow(connected, fleet, there(12))
        assert told(fleet) == await whole(pool, connected)
        assert {tuple(node.models) for node in fleet.nodes.values()} == {("A100-80",)}
        first = fleet.version
        await pool.release(lease.lease_id)
        await pool.nodes.Cordon(pool_pb2.CordonRequest(node_id="node-1"))
        await follow(connected, fleet, lambda fleet: not any(fleet.shares) and 2 in fleet.states)
        assert told(fleet) == await whole(pool, connected)
        assert fleet.version > first


async def test_who_comes_later_resumes_or_begins_anew_with_the_same_result() -> None:
    async with running() as pool, sdk(pool) as connected:
        await pool.declare(2, devices=2)
        early = Fleet()
        await follow(connected, early, there(4))
        for number in range(10):
            await pool.allocate("0.125,1Gi")
            await pool.declare(1, devices=1, prefix=f"more-{number}")
        await pool.nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id="more-3-0"))
        late = Fleet()
        await follow(connected, late, there(13))
        await follow(connected, early, lambda fleet: fleet.version >= late.version)
        assert told(early) == told(late) == await whole(pool, connected)
        assert early.layout == late.layout
        assert "more-3-0" not in early.nodes


async def test_a_node_that_is_described_anew_gets_other_numbers() -> None:
    async with running() as pool, sdk(pool) as connected:
        await pool.declare(2, devices=2)
        fleet = Fleet()
        await follow(connected, fleet, there(4))
        await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("node-0", 3, "L4")]))
        await follow(connected, fleet, there(5))
        node = fleet.nodes["node-0"]
        assert (node.first, node.devices, tuple(node.models)) == (4, 3, ("L4",))
        assert list(fleet.states) == [0, 0, 1, 1, 1, 1, 1]
        renamed = declared("node-1", 2)
        renamed.name = "another"
        await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[renamed]))
        await follow(connected, fleet, lambda fleet: fleet.nodes["node-1"].name == "another")
        assert len(fleet) == 7


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_happens_all_who_watch_are_shown_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_SPARSE_AT", 6)
    monkeypatch.setattr(fleets, "KEPT_EVENTS", 3)
    chance = random.Random(seed)
    async with running() as pool, sdk(pool) as connected:
        await pool.declare(3, devices=2)
        resuming = Fleet()
        leases: list[str] = []
        for step in range(40):
            node = f"node-{chance.randrange(5)}"
            with contextlib.suppress(grpc.aio.AioRpcError):  # in use, or not there
                match chance.randrange(6):
                    case 0:
                        spec = declared(node, chance.randint(1, 3), chance.choice(["L4", "A100-80"]))
                        await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[spec]))
                    case 1:
                        await pool.nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id=node))
                    case 2:
                        await pool.nodes.Cordon(pool_pb2.CordonRequest(node_id=node))
                    case 3:
                        await pool.nodes.Uncordon(pool_pb2.UncordonRequest(node_id=node))
                    case 4 if leases:
                        await pool.release(leases.pop(chance.randrange(len(leases))))
                    case _:
                        lease = await pool.allocate("0.25,1Gi", no_queue=True)
                        leases.append(lease.lease_id)
            if step % 8 == 0:
                await follow(connected, resuming, lambda fleet: fleet.version > 0)
        await pool.declare(1, devices=1, prefix="last")
        fresh = Fleet()
        await follow(connected, fresh, lambda fleet: "last-0" in fleet.nodes)
        await follow(connected, resuming, lambda fleet: "last-0" in fleet.nodes)
        assert told(fresh) == told(resuming) == await whole(pool, connected)


async def test_an_empty_pool_has_a_picture_too() -> None:
    async with running() as pool, sdk(pool) as connected:
        fleet = Fleet()
        await follow(connected, fleet, lambda fleet: fleet.version > 0)
        assert (len(fleet), fleet.nodes) == (0, {})


async def test_numbers_of_the_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_SPARSE_AT", 4)
    async with running() as pool, sdk(pool) as connected:
        await pool.declare(1, devices=2)
        fleet = Fleet()
        await follow(connected, fleet, there(2))
        layout = fleet.layout
        for round_ in range(1, 7):
            spec = declared("node-0", 2 + round_ % 2)
            await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[spec]))
            await follow(connected, fleet, there(2 + round_ % 2))
        await pool.allocate("0.5,8Gi")
        await follow(connected, fleet, lambda fleet: fleet.layout != layout and any(fleet.shares))
        assert told(fleet) == await whole(pool, connected)
        assert len(fleet) < 9


async def test_a_large_pool_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "_PART_DEVICES", 8)
    async with running() as pool, sdk(pool) as connected:
        await pool.declare(10, devices=3)
        await pool.allocate("1")
        fleet, versions = Fleet(), []
        changes = connected.watch_fleet()
        async with contextlib.aclosing(changes) as following:  # type: ignore[type-var]
            async for change in following:
                fleet.apply(pool_pb2.FleetEvent.FromString(change.event))
                versions.append(change.version)
                if change.version:
                    break
        assert versions[:-1] == [0, 0, 0]
        assert told(fleet) == await whole(pool, connected)


async def test_how_busy_devices_are_is_told_in_steps() -> None:
    async with running() as pool, sdk(pool) as connected:
        agent = Agent(pool.address, "n1", uuids=("GPU-1", "GPU-2"))
        async with agents(agent):
            fleet = Fleet()
            await follow(connected, fleet, lambda fleet: list(fleet.states) == [pool_pb2.FLEET_STATE_READY] * 2)
            assert set(fleet.use) == {255}
            reading = types_pb2.DeviceTelemetry(gpu_utilisation_percent=97)
            await agent.delta(agent_pb2.DeviceReport(uuid="GPU-2", telemetry=reading))
            await follow(connected, fleet, lambda fleet: list(fleet.use) == [255, 97])


async def test_a_watch_ends_with_its_token_and_so_does_a_guard() -> None:
    async with running() as pool:
        people = await introduce(pool.channel)
        for guard in (False, True):
            async with sdk(pool, people["viewer"].token) as connected:
                changes = connected.watch_fleet(guard=guard)
                assert (await anext(changes)).resets != guard
                await people.admin.access.RevokeRole(
                    access_pb2.RevokeRoleRequest(
                        principal="viewer", grant=access_pb2.RoleGrant(role=access_pb2.VIEWER, scope="vision")
                    )
                )
                with pytest.raises(PoolError, match="needs viewer"):
                    await exhaust(changes)
            await people.admin.access.GrantRole(
                access_pb2.GrantRoleRequest(
                    principal="viewer", grant=access_pb2.RoleGrant(role=access_pb2.VIEWER, scope="vision")
                )
            )


async def exhaust(changes: AsyncIterator[FleetChange]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        async for _ in changes:
            pass


async def test_watchers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "WATCHERS_MAX", 2)
    async with running() as pool, sdk(pool) as connected:
        watches = [pool.nodes.WatchFleet(pool_pb2.WatchFleetRequest()) for _ in range(2)]
        for watch in watches:
            await watch.read()
        refused = pool.nodes.WatchFleet(pool_pb2.WatchFleetRequest())
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await refused.read()
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for watch in watches:
            watch.cancel()
        fleet = Fleet()
        await follow(connected, fleet, lambda fleet: fleet.version > 0)
