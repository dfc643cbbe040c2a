"""A coordinator that starts on a machine whose clock is wrong: what its pool's time is, and what leases are charged."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from aliquot.common.duration import DurationMs
from aliquot.coordinator.settings.config import Settings
from aliquot.v1 import leases_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, eventually, running, settings_for, sqlite
from tests.manual_clock import ManualClock

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE
NOW_MS = 1_700_000_000_000
MINUTE_MS, HOUR_MS = 60_000, 3_600_000


def comparing(path: Path) -> Settings:
    return settings_for(sqlite(path), clock_skew_max=DurationMs(30_000))


async def held(path: Path, nodes: int = 1) -> str:
    """A lease on the first of these nodes, of a coordinator whose clock was right."""
    async with running(comparing(path), clock=ManualClock(NOW_MS)) as pool, told(pool, *[NOW_MS] * nodes):
        lease = await pool.allocate("1", wait_until=ACTIVE, node_ids=["n0"], detached=True)
        assert lease.state == types_pb2.LEASE_STATE_ACTIVE
    return str(lease.lease_id)


@contextlib.asynccontextmanager
async def told(pool: Pool, *clocks_ms: int) -> AsyncIterator[None]:
    """Agents of the nodes n0, n1 … whose clocks show this."""
    several = [Agent(pool.address, f"n{number}") for number in range(len(clocks_ms))]
    for agent, clock_ms in zip(several, clocks_ms, strict=True):
        agent.clock_ms = clock_ms
    async with agents(*several):
        yield


def ahead_s(pool: Pool, clock: str, of: str) -> float:
    """As Prometheus reads it."""
    (family,) = (each for each in pool.coordinator.collect() if each.name == "aliquot_clock_ahead_seconds")
    return next(sample.value for sample in family.samples if sample.labels == {"clock": clock, "of": of})


async def charged_ms(pool: Pool, lease_id: str) -> int:
    """For how long, when it is given back now."""
    await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease_id))

    async def ended() -> types_pb2.Lease | None:
        lease = await pool.get(lease_id)
        return lease if lease.ended_ms else None

    lease = await eventually(ended, "it has ended")
    return int(lease.ended_ms - lease.granted_ms)


async def test_an_hour_that_no_agent_knows_of_is_charged_to_nobody(tmp_path: Path) -> None:
    lease_id = await held(tmp_path / "pool.db", 3)
    fast = ManualClock(NOW_MS + HOUR_MS)
    async with running(comparing(tmp_path / "pool.db"), clock=fast) as pool, told(pool, *[NOW_MS + 5_000] * 3):
        fast.advance(MINUTE_MS)  # longer than anybody's word is waited for
        assert ahead_s(pool, "machine", "agents") == HOUR_MS / 1000 - 5
        assert ahead_s(pool, "pool", "machine") == -HOUR_MS / 1000
        assert MINUTE_MS <= await charged_ms(pool, lease_id) < 2 * MINUTE_MS


async def test_an_hour_that_passed_for_the_agents_too_is_time(tmp_path: Path) -> None:
    lease_id = await held(tmp_path / "pool.db", 3)
    later = NOW_MS + HOUR_MS
    async with running(comparing(tmp_path / "pool.db"), clock=ManualClock(later)) as pool:
        async with told(pool, later - 5_000):
            assert ahead_s(pool, "pool", "machine") == -HOUR_MS / 1000, "one of three may be as wrong as this machine"
        async with told(pool, later - 5_000, later, NOW_MS):
            assert ahead_s(pool, "pool", "machine") == 0
            assert await charged_ms(pool, lease_id) >= HOUR_MS


async def test_a_machine_that_nobody_contradicts_is_believed_after_a_while(tmp_path: Path) -> None:
    lease_id = await held(tmp_path / "pool.db")
    clock = ManualClock(NOW_MS + HOUR_MS)
    async with running(comparing(tmp_path / "pool.db"), clock=clock) as pool, told(pool, 0):
        assert ahead_s(pool, "pool", "machine") == -HOUR_MS / 1000
        clock.advance(MINUTE_MS)
        assert await charged_ms(pool, lease_id) >= HOUR_MS
        assert ahead_s(pool, "pool", "machine") == 0


async def test_time_that_ran_ahead_before_is_made_good_slowly(tmp_path: Path) -> None:
    wrong = ManualClock(NOW_MS + HOUR_MS)
    async with running(comparing(tmp_path / "pool.db"), clock=wrong) as pool, told(pool, 0):
        lease = await pool.allocate("1", wait_until=ACTIVE, detached=True)
    clock = ManualClock(NOW_MS)
    async with running(comparing(tmp_path / "pool.db"), clock=clock) as pool, told(pool, NOW_MS):
        assert ahead_s(pool, "pool", "machine") == HOUR_MS / 1000
        clock.suspend(HOUR_MS)
        assert ahead_s(pool, "pool", "machine") == HOUR_MS / 2000
        assert await charged_ms(pool, lease.lease_id) == HOUR_MS // 2
        clock.suspend(2 * HOUR_MS)
        assert ahead_s(pool, "pool", "machine") == 0
