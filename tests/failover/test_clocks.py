"""Machines whose clocks are wrong, or are set while a coordinator is at work: whose time the pool has, what leases are
charged, and what a coordinator shows to callers.
"""

from __future__ import annotations

import asyncio
import signal
import ssl
from pathlib import Path

import pytest

from aliquot.client import AsyncPool, WaitUntil
from tests.coordinator.pool import eventually
from tests.coordinator.process import serving
from tests.failover.cluster import Cluster, Replica, cluster, refusal
from tests.failover.test_takeover import declare

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(240)]

HOUR_S = 3_600
SET_BY = """
import pathlib, time
right, by_s = time.time_ns, pathlib.Path({file!r})
time.time_ns = lambda: right() + int(by_s.read_text()) * 10**9
"""
"""So many seconds from the right time, which a file says: the clock of the machine is set by writing it."""
MAIN = """
from aliquot.coordinator.main import main
raise SystemExit(main())
"""
SET_ONCE_COMPARED = """
from aliquot.coordinator.writing.leadership.postgres import PostgresLeadership
take = PostgresLeadership.take
def compared(seat, free):
    epoch = take(seat, free)
    if epoch is not None:
        by_s.write_text({by_s!r})
    return epoch
PostgresLeadership.take = compared
"""


class Machine:
    """Where a coordinator runs, with a clock to be set."""

    def __init__(self, folder: Path, by_s: int = 0) -> None:
        self._file = folder / "clock"
        self.program = SET_BY.format(file=str(self._file))
        self.set(by_s)

    def set(self, by_s: int) -> None:
        """So far from the right time."""
        part = self._file.with_suffix(".part")
        part.write_text(str(by_s))
        part.rename(self._file)


def joined(several: Cluster, program: str) -> Replica:
    """A coordinator of this program, beside those that are there."""
    replica = Replica(several.conninfo, "--log-level", "error", program=("-c", program + MAIN))
    several.replicas.append(replica)
    replica.start()
    return replica


async def refuses(replica: Replica, how: str) -> None:
    """Until it says that it does not lead, as its clock is so."""

    async def says() -> bool:
        said = await refusal(replica)
        return said is not None and f"{how} the database's" in said.message

    await eventually(says, f"it does not lead with a clock that is {how} the database's")


async def held(replica: Replica) -> str:
    async with AsyncPool([replica.address], tenant="team") as pool:
        return (await pool.allocate("0.25,1Gi", until=WaitUntil.GRANTED, detached=True)).lease_id


async def charged_ms(replica: Replica, lease_id: str) -> int:
    """For how long, when it is given back now."""
    async with AsyncPool([replica.address], tenant="team") as pool:
        await pool.release(lease_id)
        ended = await pool.get(lease_id)
    assert ended.ended_ms
    return ended.ended_ms - ended.granted_ms


async def replaced(several: Cluster, old: Replica) -> None:
    """The leader is killed, and stays away."""
    old.send(signal.SIGKILL)
    await asyncio.to_thread(old.ended)


@pytest.mark.parametrize(("by_s", "how"), [(HOUR_S, "ahead of"), (-HOUR_S, "behind")])
async def test_a_clock_that_is_set_once_it_was_compared_is_compared_again(
    database: str, tmp_path: Path, by_s: int, how: str
) -> None:
    """Between looking at the database's clock and beginning with its own, a machine's clock is stepped."""
    async with cluster(database, 1) as several:
        await declare(several)
        right = await several.leader()
        lease_id = await held(right)
        machine = Machine(tmp_path)
        wrong = joined(several, machine.program + SET_ONCE_COMPARED.format(by_s=str(by_s)))
        await asyncio.to_thread(wrong.wait_until_ready)
        await replaced(several, right)
        await refuses(wrong, how)
        right.start()
        await asyncio.to_thread(right.wait_until_ready)

        async def leads() -> bool:
            return several.row()[0] == right.address and await refusal(right) is None

        await eventually(leads, "the one whose clock is right leads")
        assert 0 <= await charged_ms(right, lease_id) < HOUR_S * 1000 / 2


@pytest.mark.parametrize(("by_s", "how"), [(HOUR_S, "ahead of"), (-HOUR_S, "behind")])
async def test_who_is_an_hour_off_leads_once_its_clock_is_set_right(
    database: str, tmp_path: Path, by_s: int, how: str
) -> None:
    async with cluster(database, 1) as several:
        await declare(several)
        right = await several.leader()
        lease_id = await held(right)
        machine = Machine(tmp_path, by_s)
        wrong = joined(several, machine.program)
        await asyncio.to_thread(wrong.wait_until_ready)
        _, epoch, _ = several.row()
        await replaced(several, right)
        await refuses(wrong, how)
        assert several.row()[1] == epoch, "it did not take the row"
        machine.set(0)
        assert await several.leader(after_epoch=epoch) is wrong
        assert 0 <= await charged_ms(wrong, lease_id) < HOUR_S * 1000 / 2


async def test_a_clock_that_is_set_while_its_coordinator_leads_moves_no_time(database: str, tmp_path: Path) -> None:
    async with cluster(database, 0) as several:
        machine = Machine(tmp_path)
        leader = joined(several, machine.program)
        await asyncio.to_thread(leader.wait_until_ready)
        await declare(several)
        first = await held(leader)
        for by_s in (HOUR_S, -HOUR_S, 0):
            machine.set(by_s)
            assert 0 <= await charged_ms(leader, await held(leader)) < HOUR_S * 1000 / 2
        assert 0 <= await charged_ms(leader, first) < HOUR_S * 1000 / 2


@pytest.mark.parametrize("by_s", [-40 * 24 * HOUR_S, 2 * HOUR_S])
async def test_a_certificate_that_a_wrong_clock_has_dated_is_made_anew_once_the_clock_is_right(
    tmp_path: Path, by_s: int
) -> None:
    """Machines without a battery begin in the past; the network sets their clocks once everything has begun."""
    machine, file = Machine(tmp_path, by_s), tmp_path / "access" / "ca.pem"
    flags = ("--listen", "0.0.0.0:0", "--journal", "memory:")
    env = {"ALIQUOT_COORDINATOR_ACCESS_DIR": str(file.parent)}
    async with serving(*flags, env=env, program=("-c", machine.program + MAIN)) as process:
        context = ssl.create_default_context(cafile=file)
        context.set_alpn_protocols(["h2"])

        async def handshake() -> None:
            port = int(process.address.rpartition(":")[2])
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="localhost")
            writer.close()

        with pytest.raises(ssl.SSLCertVerificationError, match=r"expired|not yet valid"):
            await handshake()
        machine.set(0)
        await handshake()
