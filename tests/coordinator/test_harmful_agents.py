"""Agents that mean harm: what they send costs little, reaches no book unchecked, and ends their own session at most."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import count
from typing import Any

import grpc
import pytest

from aliquot.common import limits
from aliquot.common.limits import GIB
from aliquot.coordinator.wire import agents as wire
from aliquot.v1 import admin_pb2, admin_pb2_grpc, agent_pb2, leases_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, eventually, fields_of, reason_of, running
from tests.coordinator.test_sessions import ready
from tests.coordinator.test_watch import SMALL_WINDOW
from tests.identity import insecure_channel

HUGE = (1 << 64) - 1
ENDLESS = b"\xff" * 100_000


class Encoded:
    """A session of bytes, for a node that greets in messages."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def write(self, message: agent_pb2.AgentMessage) -> None:
        await self._call.write(message.SerializeToString())

    async def read(self) -> agent_pb2.CoordinatorMessage:
        return agent_pb2.CoordinatorMessage.FromString(await self._call.read())


async def greeted(channel: Any, speaker: Agent) -> tuple[Any, agent_pb2.Welcome]:
    """A session of bytes of a node that has joined."""
    await speaker.join(channel)
    call: Any = channel.stream_stream("/aliquot.v1.AgentService/Session")()
    answer = await speaker.shake_hands(Encoded(call))
    assert answer.HasField("welcome")
    return call, answer.welcome


async def session(pool: Pool, speaker: Agent | None = None) -> Any:
    """A raw session of node n1 that has been greeted and has registered."""
    speaker = speaker or Agent(pool.address, "n1")
    call, _ = await greeted(pool.channel, speaker)
    await call.write(speaker.snapshot(1).SerializeToString())
    await ready(pool)
    return call


async def refusal_of(call: Any) -> grpc.aio.AioRpcError:
    """What a session that is told off ends with."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it ended well")


def crowded(count: int) -> agent_pb2.AgentMessage:
    """A snapshot of so many devices with nothing in them."""
    devices = [types_pb2.Device()] * count
    return agent_pb2.AgentMessage(snapshot=agent_pb2.Snapshot(node=types_pb2.Node(node_id="n1", devices=devices)))


@pytest.mark.parametrize(
    "raw",
    [
        b"\x22\x05\x08" + ENDLESS,
        b"\x22\x0b\x08" + b"\xff" * 10,
        b"\x22" + ENDLESS,
        b"\x1a\xff",
        b"\x12\x02\x12\x05",
        crowded(110_000).SerializeToString(),
        agent_pb2.AgentMessage(hello=agent_pb2.Hello(agent_version="x" * 10_000)).SerializeToString(),
    ],
    ids=["endless varint", "eleven bytes", "endless length", "cut off", "cut off within", "crowd", "long hello"],
)
async def test_what_can_not_be_meant_ends_its_session_with_one_line(
    raw: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as pool:
        call = await session(pool)
        caplog.clear()
        await call.write(raw)
        refusal = await refusal_of(call)
        assert refusal.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert reason_of(refusal) == "INVALID_FIELD"
        (said,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert said.exc_info is None
        assert len(said.getMessage()) < 500


async def test_who_is_refused_while_it_is_written_to_hears_why(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as pool:
        for number in range(30):
            speaker = Agent(pool.address, f"n{number}")
            await speaker.join(pool.channel)
            hello = speaker.hello().SerializeToString()
            open_session: Any = pool.channel.stream_stream("/aliquot.v1.AgentService/Session")
            call = open_session(iter([hello, b"\xff\xff"]))
            assert (await refusal_of(call)).code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("seq", [0, 1, 127, 128, 1 << 40, HUGE])
@pytest.mark.parametrize("encode", [lambda raw: raw, lambda raw: raw + b"\xfa\x01\x01x"], ids=["plain", "with more"])
def test_a_heartbeat_is_read_as_it_is_meant(seq: int, encode: Callable[[bytes], bytes]) -> None:
    message = agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(seq=seq))
    raw = encode(message.SerializeToString())
    assert wire.heartbeat_seq(raw) in (seq, None)
    assert wire.decode(raw).heartbeat.seq == seq


async def test_numbers_that_no_device_has_are_cut_to_what_it_has(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("0.5", wait_until=leases_pb2.WAIT_UNTIL_ACTIVE)
            piece = lease.slices[0]
            reading = types_pb2.DeviceTelemetry(
                gpu_utilisation_percent=(1 << 32) - 1, memory_used_bytes=HUGE, unattributed_bytes=HUGE, sampled_ms=HUGE
            )
            use = agent_pb2.SliceUse(
                slice_id=piece.slice_id, observed_bytes=HUGE, gpu_utilisation_percent=(1 << 32) - 1
            )
            uuid = agent.uuids[0]
            await agent.delta(
                agent_pb2.DeviceReport(uuid=uuid, telemetry=reading, foreign_bytes=HUGE, slices=[use]),
                agent_pb2.DeviceReport(uuid="GPU-nobody", telemetry=reading, foreign_bytes=HUGE),
            )
            view = pool.coordinator.view
            await eventually(lambda: view.device(uuid).foreign_bytes == 80 * GIB, "all of the device, and no more")
            device = (await pool.node("n1")).devices[0]
            assert device.telemetry.memory_used_bytes == 80 * GIB
            assert device.telemetry.gpu_utilisation_percent == 100
            assert (await pool.get(lease.lease_id)).slices[0].observed_bytes <= 80 * GIB
            assert agent.ended is None
            await agent.delta(agent_pb2.DeviceReport(uuid=uuid, foreign_bytes=0))
            await eventually(lambda: view.device(uuid).foreign_bytes == 0, "and it goes on")
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_tiers_that_nobody_knows_are_not_believed() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        agent.confirms = False
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("0.5")
            (wanted,) = await eventually(lambda: [d.slices[0] for d in agent.desired if d.slices], "it is told")
            tier: Any = 0x7FFFFFFF
            await agent.report(
                agent_pb2.SliceReport(
                    slice_id=wanted.slice_id,
                    lease_epoch=wanted.lease_epoch,
                    status=agent_pb2.SLICE_STATUS_ACTIVE,
                    tier=tier,
                )
            )

            async def active() -> types_pb2.Lease | None:
                seen = await pool.get(lease.lease_id)
                return seen if seen.state == types_pb2.LEASE_STATE_ACTIVE else None

            seen = await eventually(active, "it is confirmed")
            assert seen.slices[0].tier == types_pb2.TIER_UNSPECIFIED


async def test_a_stranger_without_a_boot_id_replaces_nobody() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("1", wait_until=leases_pb2.WAIT_UNTIL_ACTIVE)
            stranger = Agent(pool.address, "n1", uuids=("GPU-other",))
            stranger.boot_id = ""
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stranger.connect()
            assert fields_of(refusal.value) == ["hello.boot_id"]
            await stranger.close()
            assert agent.ended is None
            assert (await pool.get(lease.lease_id)).state == types_pb2.LEASE_STATE_ACTIVE


async def test_no_more_nodes_than_the_bound_may_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_NODES", 2)
    async with running() as pool:
        await pool.declare(1)
        first, second = Agent(pool.address, "n1"), Agent(pool.address, "n2")
        async with agents(first):
            await ready(pool)
            async with agents(second):
                ended = await eventually(lambda: second.ended, "it is refused")
                assert reason_of(ended) == "OVERLOADED"
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await pool.declare(2)
            assert reason_of(refusal.value) == "OVERLOADED"
            await first.disconnect()
            await first.connect()
            await ready(pool)


@pytest.mark.parametrize(
    "path", ["/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"]
)
async def test_other_services_hear_no_traceback_either(path: str, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as pool:
        channel: Any = pool.channel
        sent = b"\xff\xff\xff"
        stream = path.endswith("Info")
        call = channel.stream_stream(path)(iter([sent])).read() if stream else channel.unary_unary(path)(sent)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert not caplog.records


async def test_an_agent_that_does_not_read_is_not_kept_for_what_it_makes_up() -> None:
    """It reports slices that nobody knows, and asks again and again for what it is not told."""
    async with (
        running() as pool,
        insecure_channel(pool.address, [("grpc.use_local_subchannel_pool", 1), *SMALL_WINDOW]) as own,
    ):
        speaker = Agent(pool.address, "n1")
        call, welcome = await greeted(own, speaker)
        epoch = welcome.session_epoch
        await call.write(speaker.snapshot(1).SerializeToString())
        await ready(pool)
        kept = pool.leading.roster.get("n1")
        assert kept is not None
        for number in range(40):
            reports = [
                agent_pb2.SliceReport(slice_id=f"l-{number}.1.{each}", status=agent_pb2.SLICE_STATUS_GONE)
                for each in range(1000)
            ]
            reports[0].slice_id = "x" * 10_000
            message = agent_pb2.SliceReports(session_epoch=epoch, reports=reports)
            await call.write(agent_pb2.AgentMessage(reports=message).SerializeToString())
            gap = agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(seq=999))
            await call.write(gap.SerializeToString())
            await call.write(speaker.snapshot(1).SerializeToString())
        heard = pool.coordinator.metrics.agent_messages
        await eventually(lambda: heard["reports"] == 40 and heard["snapshot"] == 41, "all has been heard")
        await pool.declare(1)  # what came before is durable
        assert kept.untold <= 10_000
        assert not kept.ended
        call.cancel()


async def test_an_agent_whose_devices_change_without_end_is_held_back() -> None:
    async with running() as pool:
        speaker = Agent(pool.address, "n1", uuids=tuple(f"GPU-n1-{number}" for number in range(256)))
        call = await session(pool, speaker)

        async def change_for_ever() -> None:
            for number in count():
                message = speaker.snapshot(1)
                for device in message.snapshot.node.devices:
                    device.healthy = bool(number % 2)
                await call.write(message.SerializeToString())

        changing = asyncio.create_task(change_for_ever())
        heard = pool.coordinator.metrics.agent_messages
        await eventually(lambda: heard["held_back"], "it is not read for a while")
        assert heard["snapshot"] < 20
        await pool.declare(1)
        lease = await pool.allocate("0.5")
        await pool.release(lease.lease_id)
        assert not changing.done()
        changing.cancel()
        call.cancel()


async def test_texts_of_agents_move_no_cursor() -> None:
    async with running() as pool:
        speaker = Agent(pool.address, "n1")
        speaker.confirms = False
        async with agents(speaker):
            await ready(pool)
            lease = await pool.allocate("0.5")
            (wanted,) = await eventually(lambda: [d.slices[0] for d in speaker.desired if d.slices], "it is told")
            await speaker.report(
                agent_pb2.SliceReport(
                    slice_id=wanted.slice_id,
                    lease_epoch=wanted.lease_epoch,
                    status=agent_pb2.SLICE_STATUS_ACTIVE,
                    tier=types_pb2.TIER_PRELOAD,
                    endpoint="tcp://\x1b[2Jhere",
                    tier_notes=["mig: \x1b[31mno\n"],
                )
            )
            await eventually(lambda: pool.coordinator.view.leases[lease.lease_id].state.name == "ACTIVE", "confirmed")
            (piece,) = (await pool.get(lease.lease_id)).slices
            assert (piece.endpoint, list(piece.tier_notes)) == ("tcp:// [2Jhere", ["mig:  [31mno "])


@pytest.mark.parametrize("node_id", ["", "n1\nERROR all is lost", "../n1", "x" * 254])
async def test_an_id_that_no_node_has_is_refused(node_id: str) -> None:
    async with running() as pool:
        agent = Agent(pool.address, node_id, name="n1")
        agent.joined = True  # as it says; nobody asks for its key
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await agent.connect()
        assert fields_of(refusal.value) == ["hello.node_id"]
        await agent.close()


@pytest.mark.parametrize(
    ("path", "tag"),
    [
        ("/aliquot.v1.PoolService/DeclareNodes", b"\x0a\x00"),
        ("/aliquot.v1.LeaseService/AllocateBatch", b"\x0a\x00"),
        ("/aliquot.v1.AdminService/Apply", b"\x0a\x00"),
        ("/aliquot.v1.AdminService/Apply", b"\x12\x00"),
    ],
)
async def test_a_call_with_more_parts_than_any_should_have_is_not_decoded(path: str, tag: bytes) -> None:
    async with running() as pool:
        channel: Any = pool.channel
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_unary(path)(tag * 2_000_000)
        assert refusal.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert "parts" in str(refusal.value.details())


async def test_as_many_tenants_as_may_be_declared_at_once_still_can_be() -> None:
    quota = admin_pb2.Quota(
        guaranteed=admin_pb2.Amount(share_milli=0), limit=admin_pb2.Amount(share_milli=1000), weight=1
    )
    tenants = [
        admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name=f"tenant-{number}", quota=quota, description="x" * 40))
        for number in range(10_000)
    ]
    async with running() as pool:
        admin = admin_pb2_grpc.AdminServiceStub(pool.channel)
        done = await admin.Apply(admin_pb2.ApplyRequest(tenants=tenants, dry_run=True))
        assert len(done.changed) == 10_000
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await admin.Apply(admin_pb2.ApplyRequest(tenants=[*tenants, tenants[0]], dry_run=True))
        assert fields_of(refusal.value) == ["items"]
