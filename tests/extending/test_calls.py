"""Extending a lease by the contract's clients: SDK, command line and REST say the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from aliquot.cli.commands.extending import next_time
from aliquot.client import AsyncPool, ExtensionRefused, InvalidRequest, LeaseLost, Request, WaitUntil
from aliquot.client.admin import Declarations, QueueSpec
from aliquot.common.errors import ConfigError
from tests.coordinator.pool import running
from tests.identity import ADMIN_TOKEN

NOW = datetime(2026, 11, 24, 17, 30, tzinfo=UTC)


async def test_a_limit_is_extended_seen_and_told() -> None:
    async with running() as site, AsyncPool(site.address, token=ADMIN_TOKEN, agent_sockets=()) as pool:
        await site.declare()
        asked = Request("0.1,1Gi", tenant="vision", detached=True, time_limit_s=3600)
        lease = await pool.allocate(asked, key="once", until=WaitUntil.GRANTED)
        assert (lease.time_limit_s, lease.ends_ms) == (3600, lease.granted_ms + 3_600_000)
        longer = await pool.extend(lease.lease_id, 7200, reason="it converges")
        assert (longer.time_limit_s, longer.ends_ms) == (7200, lease.granted_ms + 7_200_000)
        assert longer.seq > lease.seq
        # The body of the request is what it was: its key still means it.
        assert (await pool.allocate(asked, key="once", until=WaitUntil.GRANTED)).lease_id == lease.lease_id
        told = [step.detail for step in (await pool.timeline(lease.lease_id)).steps if step.what == "EXTENDED"]
        assert len(told) == 1
        assert "2h" in told[0]
        assert "it converges" in told[0]
        with pytest.raises(InvalidRequest, match="less than"):
            await pool.extend(lease.lease_id, 60)
        with pytest.raises(InvalidRequest, match="time_limit_s"):
            await pool.extend(lease.lease_id, 10**10)
        await pool.release(lease.lease_id)
        with pytest.raises(LeaseLost):
            await pool.extend(lease.lease_id, 10_000)


async def test_what_its_queue_allows_is_said() -> None:
    async with running() as site, AsyncPool(site.address, token=ADMIN_TOKEN, agent_sockets=()) as pool:
        await site.declare()
        await pool.admin.apply(Declarations(queues=(QueueSpec("short", extend_to_s=5400),)))
        lease = await pool.allocate(
            Request("0.1,1Gi", queue="short", detached=True, time_limit_s=3600), until=WaitUntil.GRANTED
        )
        with pytest.raises(ExtensionRefused, match="at most 5400 s") as refused:
            await pool.extend(lease.lease_id, 7200)
        assert refused.value.until_ms == lease.granted_ms + 5_400_000
        assert (await pool.extend(lease.lease_id, 5400)).time_limit_s == 5400
        (queue,) = [each.spec for each in (await pool.admin.tenancy()).queues if each.spec.name == "short"]
        assert queue.extend_to_s == 5400


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("18:00", NOW + timedelta(minutes=30)),
        ("17:30", NOW + timedelta(days=1)),
        ("2026-11-25T09:00", NOW + timedelta(hours=15, minutes=30)),
        ("2026-11-25T09:00+01:00", NOW + timedelta(hours=14, minutes=30)),
    ],
)
def test_a_time_of_day_is_the_next_one(text: str, wanted: datetime) -> None:
    assert next_time(text, NOW) == wanted


def test_what_is_no_time_is_said() -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        next_time("teatime", NOW)
