"""Forecasts over the wire: who sees which, and what the SDK and the command line make of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import grpc.aio
import pytest

from aliquot.client import AsyncPool
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.demand import HOUR_MS, WHOLE
from aliquot.coordinator.reading.forecasts import Start
from aliquot.coordinator.upkeep.forecasting import Forecaster
from aliquot.v1 import leases_pb2, pool_pb2
from tests.access.people import OTHER, OWN, introduce
from tests.command_line import cli
from tests.coordinator.pool import Pool, reason_of, running, settings_for, sqlite

HOURS = 8 * 24


async def remember(pool: Pool, hours: int = HOURS) -> int:
    """Demand of some days up to the last hour, as if it had been seen; the number of that hour."""
    leading = pool.leading
    last = leading.writer._clock.now_ms() // HOUR_MS - 1
    for hour in range(last - hours + 1, last + 1):
        milli = 4_000 if 8 <= hour % 24 < 20 else 1_000
        rows = ((WHOLE, milli), (f"tenant/{OWN}", milli), (f"tenant/{OTHER}", milli // 2), ("model/A100-80", milli))
        await leading.writer.submit(c.NoteDemand(hour, 1000, rows))
    return last


def forecaster(pool: Pool) -> Forecaster:
    """One more, beside the pool's own, which works by the hour."""
    assert pool.leading.forecasting is not None
    return pool.leading.forecasting.forecaster(pool.leading.writer.submit)


def by_name(response: pool_pb2.ForecastResponse) -> Mapping[str, pool_pb2.ForecastSeries]:
    return {f"{series.kind}/{series.name}": series for series in response.series}


async def test_who_may_read_a_tenants_leases_may_read_its_forecast() -> None:
    async with running(settings_for(forecast=True)) as pool:
        people = await introduce(pool.channel)
        last = await remember(pool)
        assert await forecaster(pool).forecast_once()
        everything = await people["operator"].nodes.Forecast(pool_pb2.ForecastRequest())
        assert set(by_name(everything)) == {"/", f"tenant/{OWN}", f"tenant/{OTHER}", "model/A100-80"}
        assert everything.from_ms == (last + 1) * HOUR_MS
        assert everything.hours_known == HOURS
        own = await people["user"].nodes.Forecast(pool_pb2.ForecastRequest())
        assert set(by_name(own)) == {"/", f"tenant/{OWN}", "model/A100-80"}

        def of(tenant: str) -> pool_pb2.ForecastRequest:
            return pool_pb2.ForecastRequest(series=pool_pb2.ForecastSeries(kind="tenant", name=tenant))

        (series,) = (await people["user"].nodes.Forecast(of(OWN))).series
        assert sum(hour.past for hour in series.hours) == HOURS
        assert len(series.hours) == HOURS + 168
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await people["user"].nodes.Forecast(of(OTHER))
        assert reason_of(error.value) == "ROLE_MISSING"
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await pool.nodes.Forecast(pool_pb2.ForecastRequest(series=pool_pb2.ForecastSeries(kind="moon", name="x")))
        assert reason_of(error.value) == "INVALID_FIELD"


async def test_history_survives_a_restart_and_the_forecast_is_made_anew(tmp_path: Path) -> None:
    settings = settings_for(sqlite(tmp_path / "journal"), forecast=True)
    async with running(settings) as pool:
        last = await remember(pool)
    async with running(settings) as pool, AsyncPool(pool.address) as sdk:
        before = await sdk.forecast()
        assert (before.from_ms, before.hours_known) == (0, HOURS)
        assert await forecaster(pool).forecast_once()
        after = await sdk.forecast(f"tenant/{OWN}")
        (series,) = after.series
        coming = [hour for hour in series.hours if not hour.past]
        assert coming[0].start_ms == (last + 1) * HOUR_MS
        peak = max(coming[:24], key=lambda hour: hour.milli or 0)
        assert 8 <= peak.start_ms // HOUR_MS % 24 < 20
        assert series.method == "median"
        assert (await sdk.forecast("tenant/nobody")).series == ()


async def test_a_pool_that_does_not_forecast_says_so() -> None:
    async with running() as pool, AsyncPool(pool.address) as sdk:
        found = await sdk.forecast()
        assert (found.from_ms, found.hours_known, found.series) == (0, 0, ())
        code, _, err = await cli(pool.address, "forecast")
        assert code == 0
        assert "`forecast = true`" in err
        await pool.declare(1)
        await pool.allocate("1")
        asked = await pool.allocate("1", detached=True, wait_until=leases_pb2.WAIT_UNTIL_QUEUED)
        assert not (await pool.get(asked.lease_id)).waiting.HasField("earliest_start_ms")


async def test_the_command_line_shows_what_comes_and_how_good_it_was() -> None:
    async with running(settings_for(forecast=True)) as pool:
        code, _, err = await cli(pool.address, "forecast")
        assert code == 0
        assert "no hour is known" in err
        await remember(pool)
        assert await forecaster(pool).forecast_once()
        code, out, _ = await cli(pool.address, "forecast")
        assert code == 0
        assert f"tenant/{OWN}" in out
        assert "median of four" in out
        code, out, _ = await cli(pool.address, "forecast", "--backtest")
        assert code == 0
        assert "MASE" in out
        code, out, _ = await cli(pool.address, "forecast", "all", "--hours", "3")
        assert code == 0
        assert out.count(":00") == 24 + 3
        code, out, _ = await cli(pool.address, "forecast", "--json")
        assert json.loads(out)["series"][0]["method"] == "median"


async def test_a_request_that_waits_is_told_when_it_may_start_and_between_what() -> None:
    async with running(settings_for(forecast=True)) as pool:
        await pool.declare(1)
        await pool.allocate("1")
        asked = await pool.allocate("1", detached=True, wait_until=leases_pb2.WAIT_UNTIL_QUEUED)
        assert pool.leading.forecasting is not None
        starts = pool.leading.forecasting.starts
        assert await forecaster(pool).expect_once()
        known = starts.of(asked.lease_id)
        assert known is not None
        seen = (await pool.get(asked.lease_id)).waiting
        assert not seen.HasField("expected_start_ms"), "nothing is known yet of how wrong such forecasts are"
        assert "gives back" in seen.start_unknown
        _, out, _ = await cli(pool.address, "why", asked.lease_id)
        assert "expected start: not known, waits until tenant" in " ".join(out.split())
        starts._now[asked.lease_id] = Start(known.said_ms, known.expected_ms, known.said_ms, known.expected_ms + 60_000)
        seen = (await pool.get(asked.lease_id)).waiting
        assert seen.expected_start_ms == known.expected_ms
        assert (seen.earliest_start_ms, seen.latest_start_ms) == (known.said_ms, known.expected_ms + 60_000)
        _, out, _ = await cli(pool.address, "why", asked.lease_id)
        assert "nine times of ten in" in out
        await pool.release(asked.lease_id)
        assert starts.of(asked.lease_id) is None
