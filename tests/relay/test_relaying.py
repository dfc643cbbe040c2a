"""Agents behind relays: served, fenced, followed and told as those that come by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import urllib.error
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from aliquot.coordinator.settings.config import RelaySettings
from aliquot.v1 import agent_pb2, agent_pb2_grpc, leases_pb2, types_pb2
from tests.coordinator import pool as pools
from tests.coordinator.pool import Agent, Pool, agents, eventually, reason_of, retry_after_ms, settings_for
from tests.failover.agents import Agent as SteadyAgent
from tests.relay.relays import Relay, get, relaying, start

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE
HEALTH = health_pb2.HealthCheckResponse


@contextlib.asynccontextmanager
async def pool_and_relay(*flags: str) -> AsyncIterator[tuple[Pool, Relay]]:
    """A coordinator in this process, and a relay before it that reaches it."""
    async with contextlib.AsyncExitStack() as stack:
        pool = await stack.enter_async_context(pools.running(settings_for(relays=RelaySettings(enabled=True))))
        relay = await stack.enter_async_context(relaying("--coordinator", pool.address, *flags))
        await eventually(relay.connected, "the relay has connected")
        yield pool, relay


@contextlib.asynccontextmanager
async def at_work(*several: SteadyAgent) -> AsyncIterator[None]:
    """Agents that connect again whatever happens."""
    tasks = [asyncio.create_task(agent.run()) for agent in several]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def states(pool: Pool) -> list[str]:
    return [node.state.name for node in pool.coordinator.view.nodes.values()]


async def test_an_agent_behind_a_relay_is_told_and_believed_like_any_other() -> None:
    async with pool_and_relay() as (pool, relay):
        agent = Agent(relay.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            assert lease.slices[0].tier == types_pb2.TIER_WATCHDOG
            assert lease.slices[0].slice_id in agent.reservations
            agent.delta_seq += 5
            await agent.heartbeat()
            await eventually(lambda: "snapshot_request" in agent.received, "a gap is noticed")
            request = leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True)
            assert (await pool.leases.Release(request)).lease.state == types_pb2.LEASE_STATE_ENDED
            await eventually(lambda: not agent.reservations, "the agent may forget it")
            assert await relay.value("aliquot_relay_agents") == 1
        await eventually(lambda: len(pool.leading.roster) == 0, "the coordinator sees that it left")
        await eventually(lambda: pool.leading.relays.streams == 0, "and so does what carries it")


async def test_one_node_directly_and_through_a_relay_is_one_session_at_a_time() -> None:
    async with pool_and_relay() as (pool, relay):
        for first, second in ((pool.address, relay.address), (relay.address, pool.address)):
            older, newer = Agent(first, "n1"), Agent(second, "n1")
            async with agents(older):
                lease = await pool.allocate("1", wait_until=ACTIVE)
                async with agents(newer):
                    await eventually(lambda: older.ended, "the older one is told")  # noqa: B023
                    assert older.ended is not None
                    assert reason_of(older.ended) == "SESSION_REPLACED"
                    assert older.received[-1] == "goodbye"
                    assert newer.welcome.session_epoch > older.welcome.session_epoch
                    await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True))
                    await eventually(lambda: not newer.reservations, "it may forget it")  # noqa: B023


async def test_what_is_refused_is_refused_in_the_coordinators_words() -> None:
    async with pool_and_relay() as (_, relay), grpc.aio.insecure_channel(relay.address) as channel:
        call: Any = agent_pb2_grpc.AgentServiceStub(channel).Session()
        hello = agent_pb2.Hello(protocol_min=7, protocol_max=9, node_id="n")
        await call.write(agent_pb2.AgentMessage(hello=hello))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() == grpc.StatusCode.FAILED_PRECONDITION
        assert reason_of(refusal.value) == "PROTOCOL_VERSION"
        raw: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
        await raw.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await raw.read()
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.timeout(240)
async def test_hundreds_of_agents_go_on_when_a_relay_process_is_killed() -> None:
    count = 300
    async with pool_and_relay("--processes", "2") as (pool, relay):
        several = [SteadyAgent([relay.address], number, devices=1) for number in range(count)]
        async with at_work(*several):
            await eventually(lambda: states(pool).count("READY") == count, "all are ready")
            assert pool.leading.relays.streams == count
            leases = await asyncio.gather(
                *(pool.allocate("1", wait_until=ACTIVE, wait_timeout_ms=60_000, detached=True) for _ in range(count))
            )
            assert len({lease.slices[0].device_uuid for lease in leases}) == count
            epochs = {node_id: node.session_epoch for node_id, node in pool.coordinator.view.nodes.items()}
            os.kill(relay.pids[0], signal.SIGKILL)

            def back() -> bool:
                nodes = pool.coordinator.view.nodes
                moved = sum(node.session_epoch != epochs[node_id] for node_id, node in nodes.items())
                return moved > 0 and len(pool.leading.roster) == states(pool).count("READY") == count

            await eventually(back, "those of the killed process are back")
            await eventually(lambda: len(pool.leading.relays) == 2, "the process was started again")
            for lease in leases:
                seen = await pool.get(lease.lease_id)
                assert (seen.state, seen.lease_epoch) == (types_pb2.LEASE_STATE_ACTIVE, lease.lease_epoch)
            held = [slice_id for agent in several for slice_id in agent.reservations]
            assert sorted(held) == sorted(lease.slices[0].slice_id for lease in leases)
            assert not [found for agent in several for found in agent.overcommitted]


async def test_a_relay_that_is_stopped_sends_its_agents_elsewhere() -> None:
    async with pool_and_relay() as (pool, first), relaying("--coordinator", pool.address) as second:
        several = [SteadyAgent([first.address, second.address], number) for number in range(10)]
        async with at_work(*several):
            await eventually(lambda: states(pool).count("READY") == 10, "all are ready")
            watched = Agent(first.address, "watched")
            async with agents(watched):
                first.process.terminate()
                await eventually(lambda: watched.ended, "it is told")
                assert watched.received[-1] == "goodbye"
                assert watched.ended is not None
                assert (reason_of(watched.ended), retry_after_ms(watched.ended)) == ("SHUTTING_DOWN", 100)
            async with asyncio.timeout(30):
                assert await first.process.wait() == 0
            await eventually(lambda: len(pool.leading.roster) == 10, "they are at the other")
            assert await second.value("aliquot_relay_agents") == 10


async def test_processes_of_a_relay_end_with_the_one_that_started_them() -> None:
    async with relaying("--coordinator", "127.0.0.1:1", "--processes", "2") as relay:
        relay.process.kill()
        await relay.process.wait()

        def gone() -> bool:
            return not any(Path(f"/proc/{pid}").exists() for pid in relay.pids)

        await eventually(gone, "they have ended by themselves")


async def test_a_coordinator_that_stops_says_goodbye_through_the_relay() -> None:
    async with pool_and_relay() as (pool, relay):
        agent = Agent(relay.address, "n1")
        async with agents(agent):
            await eventually(lambda: states(pool) == ["READY"], "it is ready")
            pool.coordinator.stop()
            await eventually(lambda: agent.ended, "its session ends")
            assert agent.received[-1] == "goodbye"
            assert agent.ended is not None
            assert reason_of(agent.ended) == "SHUTTING_DOWN"


async def refused(address: str) -> grpc.aio.AioRpcError:
    """How a new agent is refused there."""
    agent = Agent(address, "late")
    try:
        await agent.connect()
    except grpc.aio.AioRpcError as error:
        return error
    finally:
        await agent.close()
    raise AssertionError("it was not refused")


async def test_agents_beyond_the_bound_are_told_when_to_come_back() -> None:
    async with pool_and_relay("--agents-max", "2") as (pool, relay):
        first, second = Agent(relay.address, "n1"), Agent(relay.address, "n2")
        async with agents(first, second):
            error = await refused(relay.address)
            assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert reason_of(error) == "OVERLOADED"
            assert retry_after_ms(error) >= 1000
            assert len(pool.leading.roster) == 2
            assert await relay.value("aliquot_relay_shed") == 1


async def test_a_relay_without_a_coordinator_says_so_everywhere() -> None:
    async with relaying("--coordinator", "127.0.0.1:1") as relay:
        error = await refused(relay.address)
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        assert reason_of(error) == "NOT_LEADER"
        assert retry_after_ms(error) >= 300
        with pytest.raises(urllib.error.HTTPError) as unready:
            await asyncio.to_thread(get, f"http://{relay.metrics[0]}/readyz")
        assert "no coordinator" in unready.value.read().decode()
        unready.value.close()
        assert await asyncio.to_thread(get, f"http://{relay.metrics[0]}/healthz") == "ok\n"
        async with grpc.aio.insecure_channel(relay.address) as channel:
            health: Any = health_pb2_grpc.HealthStub(channel)
            for service, status in (("", HEALTH.SERVING), ("aliquot.v1.AgentService", HEALTH.NOT_SERVING)):
                assert (await health.Check(health_pb2.HealthCheckRequest(service=service))).status == status


async def test_a_coordinator_takes_no_relays_unless_it_is_told_to() -> None:
    async with pools.running() as pool, relaying("--coordinator", pool.address) as relay:
        assert reason_of(await refused(relay.address)) == "NOT_LEADER"
        async with grpc.aio.insecure_channel(pool.address) as channel:
            call: Any = channel.stream_stream("/aliquot.v1.RelayService/Carry")()
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
        assert refusal.value.code() == grpc.StatusCode.PERMISSION_DENIED
        assert reason_of(refusal.value) == "NOT_ALLOWED"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--processes", "0"], "1 to 64"),
        (["--processes", "2", "--listen", "unix:/tmp/relay.sock"], "host:port"),
        (["--coordinator", "coord.example.org:7070"], "--tls-coordinator-ca"),
        (["--listen", "0.0.0.0:0"], "a certificate and its key"),
        (["--tls-cert", "missing.pem"], "--tls-key"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(flags: list[str], said: str) -> None:
    answer = await start(*flags)
    assert isinstance(answer, str), answer
    assert said in answer
    assert "Traceback" not in answer
