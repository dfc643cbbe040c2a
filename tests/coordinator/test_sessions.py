"""Agents' sessions: who is believed, what they are told, and what happens when they go silent and come back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import Any

import grpc
import pytest

from aliquot.common.limits import GIB
from aliquot.v1 import agent_pb2, agent_pb2_grpc, leases_pb2, pool_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, eventually, reason_of, running
from tests.coordinator.test_keepalive import START_MS, pass_time
from tests.manual_clock import ManualClock

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE
RUN, STOP = agent_pb2.DESIRED_STATE_RUN, agent_pb2.DESIRED_STATE_STOP


async def ready(pool: Pool, node_id: str = "n1") -> None:
    await eventually(lambda: _state(pool, node_id) == "READY", f"{node_id} is ready")


def _state(pool: Pool, node_id: str) -> str:
    node = pool.coordinator.view.nodes.get(node_id)
    return node.state.name if node is not None else ""


async def test_a_lease_becomes_active_when_its_agent_confirms_and_goes_when_it_is_gone() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            assert lease.state == types_pb2.LEASE_STATE_ACTIVE
            assert lease.slices[0].tier == types_pb2.TIER_WATCHDOG
            (wanted,) = agent.desired[-1].slices
            assert (wanted.state, wanted.share_milli, wanted.tenant) == (RUN, 500, "team")
            assert len(wanted.secret_sha256) == 32
            request = leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True)
            ended = (await pool.leases.Release(request)).lease
            assert ended.state == types_pb2.LEASE_STATE_ENDED
            await eventually(lambda: agent.settled == [wanted.slice_id], "the agent may forget it")
            assert not agent.reservations


async def test_the_agent_can_check_the_secret_that_the_launcher_got() -> None:
    import hashlib

    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            told = agent.desired[-1].slices[0].secret_sha256
            assert told == hashlib.sha256(lease.secret.encode()).digest()


async def test_a_registered_node_shows_what_its_agent_said() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1", name="gpu-01", uuids=("GPU-a", "GPU-b"))
        async with agents(agent):
            await ready(pool)
            reading = types_pb2.DeviceTelemetry(gpu_utilisation_percent=50, memory_used_bytes=3, temperature_c=-1)
            await agent.delta(agent_pb2.DeviceReport(uuid="GPU-b", telemetry=reading, foreign_bytes=GIB, healthy=True))
            await eventually(lambda: pool.coordinator.view.device("GPU-b").foreign_bytes == GIB, "foreign memory")
            node = await pool.node("gpu-01")
            assert (node.node_id, node.agent_version, node.driver_version) == ("n1", "test", "580.65")
            assert node.session_epoch == agent.welcome.session_epoch
            device = node.devices[1]
            assert device.telemetry == reading
            assert not node.devices[0].HasField("telemetry")
            assert device.foreign_bytes == GIB
            listed = await pool.nodes.ListDevices(pool_pb2.ListDevicesRequest(model="A100-80"))
            assert [each.uuid for each in listed.devices] == ["GPU-a", "GPU-b"]


async def test_jitter_within_the_deadband_is_not_journalled_and_health_always_is() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1", uuids=("GPU-a",))
        async with agents(agent):
            await ready(pool)
            view = pool.coordinator.view
            await agent.delta(agent_pb2.DeviceReport(uuid="GPU-a", foreign_bytes=GIB))
            await eventually(lambda: view.device("GPU-a").foreign_bytes == GIB, "a large change")
            before = view.seq
            for number in range(20):
                await agent.delta(agent_pb2.DeviceReport(uuid="GPU-a", foreign_bytes=GIB + number * 1024))
            await agent.delta(agent_pb2.DeviceReport(uuid="GPU-a", healthy=False, health_reason="XID 79"))
            await eventually(lambda: not view.device("GPU-a").healthy, "sick")
            assert view.seq == before + 1
            assert view.device("GPU-a").reason == "XID 79"


async def test_a_gap_makes_the_coordinator_ask_for_a_snapshot() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            await agent.heartbeat()
            agent.delta_seq += 5
            await agent.delta(agent_pb2.DeviceReport(uuid=agent.uuids[0], healthy=True))
            await eventually(lambda: "snapshot_request" in agent.received, "asked for a snapshot")
            asked = agent.received.count("snapshot_request")
            agent.delta_seq += 1
            await agent.heartbeat()
            await eventually(lambda: agent.received.count("snapshot_request") > asked, "a heartbeat shows a gap too")


async def test_a_second_agent_with_the_same_id_replaces_the_first() -> None:
    async with running() as pool:
        first, second = Agent(pool.address, "n1"), Agent(pool.address, "n1")
        async with agents(first):
            await ready(pool)
            async with agents(second):
                await eventually(lambda: first.ended is not None, "the first is told")
                assert first.ended is not None
                assert reason_of(first.ended) == "SESSION_REPLACED"
                assert "goodbye" in first.received
                assert second.welcome.session_epoch > first.welcome.session_epoch
                lease = await pool.allocate("1", wait_until=ACTIVE)
                assert lease.state == types_pb2.LEASE_STATE_ACTIVE
                assert lease.slices[0].slice_id in second.reservations


async def test_one_that_is_replaced_while_it_speaks_ends_once(caplog: pytest.LogCaptureFixture) -> None:
    async def speak(agent: Agent) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while agent.ended is None:
                await agent.heartbeat()

    async with running() as pool:
        for _ in range(10):
            first, second = Agent(pool.address, "n1"), Agent(pool.address, "n1")
            async with agents(first):
                speaking = asyncio.create_task(speak(first))
                async with agents(second):
                    await asyncio.wait([speaking], timeout=30.0)
                    assert first.ended is not None
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


async def test_another_machine_with_the_same_id_is_let_in_when_the_first_is_gone() -> None:
    async with running() as pool:
        first, copy = Agent(pool.address, "n1"), Agent(pool.address, "n1", uuids=("GPU-other",))
        first.boot_id, copy.boot_id = "boot-of-first", "boot-of-copy"
        async with agents(first):
            await ready(pool)
            lease = await pool.allocate("1", wait_until=ACTIVE)
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await copy.connect()
            assert reason_of(refusal.value) == "SESSION_REPLACED"
            assert "another machine is connected as node n1" in str(refusal.value.details())
            assert first.ended is None
            again = await pool.leases.Get(leases_pb2.GetRequest(lease_id=lease.lease_id))
            assert again.state == types_pb2.LEASE_STATE_ACTIVE
        async with agents(copy):
            told = await eventually(lambda: copy.ended, "it is refused even when it comes first")
            assert reason_of(told) == "NODE_IN_USE"
            assert "none of its devices" in str(told.details())
        restarted = Agent(pool.address, "n1")
        restarted.boot_id = "boot-after"
        restarted.reservations.update(first.reservations)
        async with agents(restarted):
            await ready(pool)
            again = await pool.leases.Get(leases_pb2.GetRequest(lease_id=lease.lease_id))
            assert again.state == types_pb2.LEASE_STATE_ACTIVE


async def test_an_agent_that_was_asked_to_speak_less_is_not_taken_for_gone_sooner() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        first, copy = Agent(pool.address, "n1"), Agent(pool.address, "n1", uuids=("GPU-other",))
        first.boot_id, copy.boot_id = "boot-of-first", "boot-of-copy"
        async with agents(first):
            await ready(pool)
            pool.leading.roster.set_pressure(4)
            await pass_time(pool, clock, 16)  # a heartbeat is due every 20 s
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await copy.connect()
            assert reason_of(refusal.value) == "SESSION_REPLACED"
            assert first.ended is None
        await copy.close()


async def test_names_and_devices_belong_to_one_agent() -> None:
    async with running() as pool:
        first = Agent(pool.address, "n1", name="same", uuids=("GPU-1",))
        async with agents(first):
            await ready(pool)
            for rival, reason in (
                (Agent(pool.address, "n2", name="same", uuids=("GPU-2",)), "NODE_NAME_TAKEN"),
                (Agent(pool.address, "n3", name="other", uuids=("GPU-1",)), "DEVICE_CLAIMED"),
            ):
                async with agents(rival):
                    ended = await eventually(
                        lambda rival=rival: rival.ended,  # type: ignore[misc]
                        "it is refused",
                    )
                    assert reason_of(ended) == reason
            assert _state(pool, "n1") == "READY"
            assert set(pool.coordinator.view.nodes) == {"n1"}


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"hello": agent_pb2.Hello(protocol_min=7, protocol_max=9, node_id="n")}, "PROTOCOL_VERSION"),
        ({"hello": agent_pb2.Hello(protocol_min=1, protocol_max=1)}, "INVALID_FIELD"),
        ({"heartbeat": agent_pb2.Heartbeat(seq=1)}, "INVALID_FIELD"),
    ],
)
async def test_a_wrong_greeting_ends_the_session(message: dict[str, Any], reason: str) -> None:
    async with running() as pool:
        call = agent_pb2_grpc.AgentServiceStub(pool.channel).Session()
        await call.write(agent_pb2.AgentMessage(**message))
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert reason_of(refusal.value) == reason


async def test_bytes_that_are_no_message_end_the_session_only() -> None:
    async with running() as pool:
        call: Any = pool.channel.stream_stream("/aliquot.v1.AgentService/Session")()
        await call.write(b"\xff\xff\xff")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        await pool.declare(1)


async def test_silence_makes_a_node_suspect_then_lost_and_its_slices_wait_for_it() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE, detached=True)
            await pass_time(pool, clock, 16)
            await eventually(lambda: _state(pool, "n1") == "SUSPECT", "suspect")
            await agent.heartbeat()
            await ready(pool)
            await pass_time(pool, clock, 31)
            await eventually(lambda: _state(pool, "n1") == "LOST", "lost")
            assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_UNREACHABLE
            await eventually(lambda: agent.ended, "its session is closed")
            await agent.disconnect()
            await agent.connect()
            await ready(pool)
            assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_ACTIVE


async def test_a_broken_connection_is_silence_and_no_more() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE, detached=True)
            epoch = agent.welcome.session_epoch
            await agent.disconnect()
            await eventually(lambda: len(pool.leading.roster) == 0, "the session has ended")
            assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_ACTIVE
            await pass_time(pool, clock, 16)
            await eventually(lambda: _state(pool, "n1") == "SUSPECT", "suspect")
            await agent.connect()
            await ready(pool)
            assert agent.welcome.session_epoch > epoch
            full = await eventually(lambda: [each for each in agent.desired[1:] if each.full], "a full desired state")
            assert [piece.slice_id for piece in full[-1].slices] == [lease.slices[0].slice_id]


async def test_an_agent_that_is_refused_each_time_does_not_speak_for_its_node() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        async with agents(Agent(pool.address, "n1")):
            lease = await pool.allocate("1", wait_until=ACTIVE, detached=True)
        for _ in range(5):
            async with agents(other := Agent(pool.address, "n1", uuids=("GPU-other",))):
                assert reason_of(await eventually(partial(getattr, other, "ended"), "it is refused")) == "NODE_IN_USE"
            await eventually(lambda: len(pool.leading.roster) == 0, "its session has ended")
            await pass_time(pool, clock, 8)
        await eventually(lambda: _state(pool, "n1") == "LOST", "lost")
        assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_UNREACHABLE
        await pool.nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id="n1", force=True))
        async with agents(Agent(pool.address, "n1", uuids=("GPU-other",))):
            await ready(pool)


async def test_a_pause_of_the_coordinator_makes_no_node_suspect() -> None:
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            clock.advance(600_000)
            pool.leading.sweep_timer.beat()
            await pass_time(pool, clock, 10)
            assert _state(pool, "n1") == "READY"


async def test_confirmations_of_an_old_session_are_not_believed() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            agent.confirms = False
            lease = await pool.allocate("0.5")
            await eventually(lambda: any(each.slices for each in agent.desired), "told to run it")
            report = agent_pb2.SliceReport(
                slice_id=lease.slices[0].slice_id,
                lease_epoch=1,
                status=agent_pb2.SLICE_STATUS_ACTIVE,
                tier=types_pb2.TIER_WATCHDOG,
            )
            await agent.report(report, session_epoch=agent.welcome.session_epoch - 1)
            await eventually(
                lambda: pool.coordinator.metrics.agent_messages["stale_reports"] == 1, "heard, not believed"
            )
            assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_GRANTED
            await agent.report(report)
            await eventually(lambda: _lease_state(pool, lease.lease_id) == 3, "the right epoch is believed")


async def test_a_snapshot_of_an_old_session_is_not_believed() -> None:
    """Something on the way repeats what an agent said before it had its slice: the slice is not gone for that."""
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            before = agent.snapshot(1).snapshot
            before.session_epoch = agent.welcome.session_epoch - 1
            del before.slices[:]
            await agent.send(snapshot=before)
            await eventually(lambda: pool.coordinator.metrics.agent_messages["stale_snapshots"] == 1, "heard")
            assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_ACTIVE


async def test_a_stale_agent_is_told_to_stop_what_has_ended() -> None:
    """It was away while its lease ended elsewhere in the books: it still holds the slice, and must let it go."""
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE, detached=True)
            slice_id = lease.slices[0].slice_id
            held = agent.reservations[slice_id]
            await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True))
            await eventually(lambda: slice_id in agent.settled, "settled")
            agent.settled.clear()
            await agent.disconnect()
            agent.reservations[slice_id] = held  # a restored disk brings it back
            await agent.connect()
            await eventually(lambda: slice_id in agent.settled, "stopped and settled again")
            stops = [piece.state for each in agent.desired for piece in each.slices if piece.slice_id == slice_id]
            assert stops[-1] == STOP


@pytest.mark.parametrize("written_off", [True, False])
async def test_what_was_written_off_and_forgotten_is_stopped_when_its_node_returns(written_off: bool) -> None:
    """Nobody will ever know it again. What this coordinator never knew stays quarantined: its journal may be a copy."""
    clock = ManualClock(START_MS)
    async with running(clock=clock) as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE, detached=True)
            slice_id = lease.slices[0].slice_id
            await agent.disconnect()
            await pass_time(pool, clock, 47)
            await eventually(lambda: _state(pool, "n1") == "LOST", "lost")
            await pool.nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id="n1", force=True))
            clock.advance(600_000)
            await pass_time(pool, clock, 10)
            await eventually(lambda: lease.lease_id not in pool.coordinator.view.leases, "forgotten")
            if not written_off:
                held = agent.reservations.pop(slice_id)
                slice_id = held.slice_id = "l-0000000000000.1.0"
                held.lease_id = "l-0000000000000"
                agent.reservations[slice_id] = held
            agent.desired.clear()
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await agent.connect()
            assert reason_of(refusal.value) == "NOT_ENROLLED", "its key was forgotten with it"
            agent.joined = False
            await agent.connect()
            await ready(pool)
            await eventually(lambda: any(each.full for each in agent.desired), "a full desired state")
            if written_off:
                await eventually(lambda: slice_id in agent.settled, "stopped and settled")
                assert not agent.reservations
                (stop,) = [piece for each in agent.desired for piece in each.slices]
                assert (stop.state, stop.reason, stop.grace_ms) == (STOP, "WRITTEN_OFF", 30_000)
            else:
                later = await pool.allocate("0.25", wait_until=ACTIVE)
                assert {piece.lease_id for each in agent.desired for piece in each.slices} == {later.lease_id}
                assert slice_id in agent.reservations


async def test_a_refusing_agent_sends_the_lease_elsewhere() -> None:
    async with running() as pool:
        bad, good = Agent(pool.address, "bad"), Agent(pool.address, "good")
        bad.confirms = False
        async with agents(bad):
            await ready(pool, "bad")
            lease = await pool.allocate("0.5")
            async with agents(good):
                await ready(pool, "good")
                failed = agent_pb2.SliceReport(
                    slice_id=lease.slices[0].slice_id,
                    lease_epoch=1,
                    status=agent_pb2.SLICE_STATUS_FAILED,
                    reason="NO_CGROUP",
                    detail="no cgroup",
                )
                await bad.report(failed)
                await eventually(lambda: _lease_state(pool, lease.lease_id) == 3, "active on the good node")
                seen = await pool.get(lease.lease_id)
                assert (seen.slices[-1].node_id, seen.requeues, seen.lease_epoch > 1) == ("good", 1, True)
                await eventually(lambda: lease.slices[0].slice_id in bad.settled, "the failed one is settled")


async def test_shutdown_says_goodbye() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            pool.coordinator.stop()
            await eventually(lambda: agent.ended, "the session ends")
            assert agent.ended is not None
            assert reason_of(agent.ended) == "SHUTTING_DOWN"
            assert agent.received[-1] == "goodbye"


async def test_agents_are_asked_to_speak_less_under_pressure() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            assert agent.welcome.intervals.heartbeat_ms == 5_000
            pool.leading.roster.set_pressure(2)
            await eventually(lambda: "intervals" in agent.received, "new intervals")


async def test_many_agents_come_and_go() -> None:
    async with running() as pool:
        several = [Agent(pool.address, f"n{number}") for number in range(50)]
        async with agents(*several):
            await eventually(lambda: len(pool.leading.roster) == 50, "all connected")
            leases = await asyncio.gather(*(pool.allocate("1", wait_until=ACTIVE) for _ in range(50)))
            assert len({lease.slices[0].node_id for lease in leases}) == 50
        await eventually(lambda: len(pool.leading.roster) == 0, "all gone")


def _lease_state(pool: Pool, lease_id: str) -> int:
    return int(pool.coordinator.view.leases[lease_id].state)
