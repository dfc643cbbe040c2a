"""What slices really use, as agents measure it: shown to who looks, kept nowhere."""

from __future__ import annotations

from pathlib import Path

from aliquot.common.duration import DurationMs
from aliquot.common.limits import GIB
from aliquot.coordinator.settings.config import AgentSettings
from aliquot.v1 import agent_pb2, leases_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, eventually, running, settings_for, sqlite

GRANTED = leases_pb2.WAIT_UNTIL_GRANTED
ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE


class MeasuringAgent(Agent):
    """An agent whose snapshots say what its slices use."""

    uses: tuple[agent_pb2.SliceUse, ...] = ()

    async def measured(self, *uses: agent_pb2.SliceUse) -> None:
        """Tell what slices use now."""
        self.uses = uses
        await self.delta(agent_pb2.DeviceReport(uuid=self.uuids[0], slices=uses))

    def snapshot(self, seq: int) -> agent_pb2.AgentMessage:
        message = super().snapshot(seq)
        message.snapshot.uses.extend(self.uses)
        return message


async def slice_of(pool: Pool, lease_id: str) -> types_pb2.Slice:
    return (await pool.get(lease_id)).slices[0]


async def test_what_an_agent_measures_is_shown_to_who_looks_and_unknown_is_not_zero() -> None:
    async with running() as pool:
        agent = MeasuringAgent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            slice_id = lease.slices[0].slice_id
            assert not (await slice_of(pool, lease.lease_id)).HasField("observed_bytes")

            await agent.measured(agent_pb2.SliceUse(slice_id=slice_id, observed_bytes=3 * GIB, processes=1))
            seen = await eventually(lambda: _observed(pool, lease.lease_id), "the measurement arrives")
            assert seen.observed_bytes == 3 * GIB
            assert not seen.HasField("observed_utilisation_percent")
            assert seen.observed_ms >= lease.active_ms
            (listed,) = (await pool.leases.List(leases_pb2.ListRequest())).leases
            assert listed.slices[0].observed_bytes == 3 * GIB

            await agent.measured(agent_pb2.SliceUse(slice_id=slice_id, gpu_utilisation_percent=40, processes=1))
            await eventually(
                lambda: _is(pool, lease.lease_id, utilisation=40, memory_known=False),
                "memory that became N/A is unknown",
            )
            await pool.release(lease.lease_id)
            await eventually(lambda: _forgotten(pool, lease.lease_id), "what has ended uses nothing")


async def test_what_other_nodes_say_of_a_slice_is_not_believed() -> None:
    async with running() as pool:
        mine, other = MeasuringAgent(pool.address, "n1"), MeasuringAgent(pool.address, "n2")
        async with agents(mine, other):
            lease = await pool.allocate("0.5", wait_until=ACTIVE, node_ids=["n1"])
            slice_id = lease.slices[0].slice_id
            await other.measured(agent_pb2.SliceUse(slice_id=slice_id, observed_bytes=GIB))
            await other.delta(agent_pb2.DeviceReport(uuid=other.uuids[0], foreign_bytes=GIB))
            await eventually(lambda: pool.coordinator.view.device(other.uuids[0]).foreign_bytes == GIB, "it was heard")
            assert not (await slice_of(pool, lease.lease_id)).observed_ms


async def test_it_is_no_fact_and_comes_back_with_the_next_snapshot(tmp_path: Path) -> None:
    async with running(settings_for(sqlite(tmp_path / "pool.db"))) as pool:
        agent = MeasuringAgent(pool.address, "n1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=ACTIVE)
            before = pool.coordinator.view.seq
            await agent.measured(
                agent_pb2.SliceUse(slice_id=lease.slices[0].slice_id, observed_bytes=GIB, gpu_utilisation_percent=7)
            )
            await eventually(lambda: _observed(pool, lease.lease_id), "the measurement arrives")
            assert pool.coordinator.view.seq == before
    async with running(settings_for(sqlite(tmp_path / "pool.db"))) as pool:
        again = MeasuringAgent(pool.address, "n1")
        again.reservations, again.uses = agent.reservations, agent.uses
        assert not (await slice_of(pool, lease.lease_id)).observed_ms
        async with agents(again):
            seen = await eventually(lambda: _observed(pool, lease.lease_id), "the snapshot says it again")
            assert (seen.observed_bytes, seen.observed_utilisation_percent) == (GIB, 7)


async def _observed(pool: Pool, lease_id: str) -> types_pb2.Slice | None:
    piece = await slice_of(pool, lease_id)
    return piece if piece.observed_ms else None


async def _is(pool: Pool, lease_id: str, *, utilisation: int, memory_known: bool) -> bool:
    piece = await slice_of(pool, lease_id)
    return piece.observed_utilisation_percent == utilisation and piece.HasField("observed_bytes") is memory_known


async def _forgotten(pool: Pool, lease_id: str) -> bool:
    return not (await slice_of(pool, lease_id)).observed_ms


async def test_what_was_measured_before_a_slice_was_confirmed_counts_since_nothing_changes_about_an_idle_one() -> None:
    often = AgentSettings(use_looked_at_every=DurationMs(50), idle_window=DurationMs(100))
    async with running(settings_for(agents=often)) as pool:
        agent = MeasuringAgent(pool.address, "n1")
        agent.confirms = False
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=GRANTED)
            (desired,) = await eventually(lambda: _wanted(agent), "the agent is told")
            idle = agent_pb2.SliceUse(slice_id=desired.slice_id, observed_bytes=0, activity_percent=0)
            await agent.measured(idle)
            agent.confirms = True
            await agent.report(*agent.obey(agent.desired[-1]))

            async def held() -> types_pb2.Lease | None:
                now = await pool.get(lease.lease_id)
                return now if now.use.state == types_pb2.USE_STATE_HELD else None

            await eventually(held, "that it is held for nothing is seen")
            assert (await slice_of(pool, lease.lease_id)).HasField("observed_bytes")


async def _wanted(agent: Agent) -> list[agent_pb2.DesiredSlice] | None:
    return [each for desired in agent.desired for each in desired.slices] or None
