"""A lease is one trace, whoever leads when its phases end; and without a collector nothing is different."""

from __future__ import annotations

from pathlib import Path

import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.reading.tracing.names import place_of
from aliquot.coordinator.settings.config import TracingSettings
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.coordinator.pool import Agent, Pool, agents, eventually, running, settings_for, sqlite
from tests.tracing.collector import collecting, text_of

ACTIVE = leases_pb2.WAIT_UNTIL_ACTIVE
PHASES = {"lease", "lease waits 1", "lease starts 1", "lease runs 1", "lease stops 1"}


async def test_a_trace_survives_the_coordinator(tmp_path: Path) -> None:
    """Asked for and granted under one coordinator, ended under the next."""
    with collecting() as collector:
        settings = settings_for(sqlite(tmp_path / "journal.db"), tracing=TracingSettings(collector.url))
        async with running(settings) as pool, agents(Agent(pool.address, "n1")):
            lease = await pool.allocate("1", wait_until=ACTIVE, detached=True, tenant="lab")
        trace_id = place_of(lease.lease_id, ()).trace_id
        assert set(collector.trace(trace_id)) == {"lease waits 1", "lease starts 1"}
        async with running(settings) as pool, agents(Agent(pool.address, "n1")):
            await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True))
        trace = collector.trace(trace_id)
        assert set(trace) == PHASES
        assert len(collector.spans) == len(PHASES)
        root = trace["lease"]
        assert not root.parent_span_id
        assert text_of(root, "aliquot.tenant") == "lab"
        assert text_of(root, "aliquot.end_reason") == "RELEASED"
        assert {span.parent_span_id for name, span in trace.items() if name != "lease"} == {root.span_id}
        for one, two in (("waits", "starts"), ("starts", "runs"), ("runs", "stops")):
            assert trace[f"lease {one} 1"].end_time_unix_nano == trace[f"lease {two} 1"].start_time_unix_nano
        assert root.start_time_unix_nano == trace["lease waits 1"].start_time_unix_nano
        assert root.end_time_unix_nano == trace["lease stops 1"].end_time_unix_nano


async def test_each_grant_has_phases_of_its_own() -> None:
    with collecting() as collector:
        settings = settings_for(tracing=TracingSettings(collector.url))
        async with running(settings) as pool, agents(Agent(pool.address, "n1")):
            lease = await pool.allocate("1", wait_until=ACTIVE, preemptible=True)
            await pool.nodes.Drain(pool_pb2.DrainRequest(node_id="n1"))
            await eventually(lambda: _is(pool, lease.lease_id, types_pb2.LEASE_STATE_QUEUED), "back in its queue")
            await pool.nodes.Uncordon(pool_pb2.UncordonRequest(node_id="n1"))
            await eventually(lambda: _is(pool, lease.lease_id, types_pb2.LEASE_STATE_ACTIVE), "active again")
            await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id, wait_gone=True))
        trace = collector.trace(place_of(lease.lease_id, ()).trace_id)
        assert set(trace) == PHASES | {f"lease {phase} 3" for phase in ("waits", "starts", "runs", "stops")}
        assert trace["lease waits 3"].start_time_unix_nano == trace["lease stops 1"].end_time_unix_nano


async def _is(pool: Pool, lease_id: str, state: int) -> bool:
    return (await pool.get(lease_id)).state == state


async def test_a_lease_is_a_part_of_its_launchers_trace() -> None:
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with collecting() as collector:
        async with running(settings_for(tracing=TracingSettings(collector.url))) as pool:
            await pool.declare(1)
            lease = await pool.allocate("1", labels={"traceparent": f"00-{trace_id}-{parent}-01"})
            await pool.release(lease.lease_id)
        assert collector.trace(trace_id)["lease"].parent_span_id.hex() == parent


@pytest.mark.parametrize(
    "text", ["", "00-0-0-01", f"00-{'0' * 32}-{'1' * 16}-01", f"00-{'1' * 32}-{'0' * 16}-01", "00-x"]
)
def test_what_is_no_traceparent_is_a_label_like_any_other(text: str) -> None:
    place = place_of("l-1", [("traceparent", text)])
    assert place == place_of("l-1", [])
    assert place.parent_id == ""


async def test_a_collector_that_is_away_costs_nobody_anything() -> None:
    settings = settings_for(tracing=TracingSettings("http://127.0.0.1:9/v1/traces"))
    async with running(settings) as pool:
        await pool.declare(1)
        for _ in range(3):
            lease = await pool.allocate("1")
            assert (await pool.release(lease.lease_id)).end_reason == "RELEASED"


async def test_an_endpoint_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"tracing\.endpoint"):
        async with running(settings_for(tracing=TracingSettings("collector:4317"))):
            pass
