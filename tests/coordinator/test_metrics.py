"""Metrics: sums that add up, a bound on labels, and no dependence on the number of devices."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aliquot.common.gauges import LABELS_MAX, OTHER, Histogram
from aliquot.v1 import leases_pb2
from tests.coordinator.pool import Agent, Pool, agents, running

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(pool: Pool) -> Samples:
    registry = CollectorRegistry()
    registry.register(pool.coordinator)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[(name, tuple(sorted(labels.items())))]


async def test_what_is_held_and_waits_is_shown_by_pool_model_tenant_and_queue() -> None:
    async with running() as pool:
        await pool.declare(2, devices=2)
        held = await pool.allocate("0.5,10Gi", tenant="a", queue="batch")
        await pool.allocate("2", tenant="b")
        await pool.allocate("2", tenant="c", wait_until=leases_pb2.WAIT_UNTIL_QUEUED)
        samples = scrape(pool)
        assert value(samples, "aliquot_devices", pool="default", model="A100-80") == 4
        assert value(samples, "aliquot_leased_share_milli", pool="default", model="A100-80") == 2500
        assert value(samples, "aliquot_tenant_share_milli", tenant="a", queue="batch") == 500
        assert value(samples, "aliquot_tenant_memory_bytes", tenant="a", queue="batch") == 10 << 30
        assert value(samples, "aliquot_tenant_queued", tenant="c", queue="") == 1
        assert value(samples, "aliquot_queue_depth") == 1
        assert value(samples, "aliquot_leases_granted_total") == 2
        assert value(samples, "aliquot_decision_seconds_count") >= 3
        assert value(samples, "aliquot_commit_seconds_count") >= 3
        await pool.release(held.lease_id)
        samples = scrape(pool)
        assert value(samples, "aliquot_leases_ended_total", reason="RELEASED") == 1
        assert ("aliquot_tenant_share_milli", (("queue", "batch"), ("tenant", "a"))) not in samples


async def test_counters_whose_rise_is_watched_begin_at_nothing() -> None:
    async with running() as pool:
        samples = scrape(pool)
    for reason in ("INTERNAL", "JOURNAL_UNAVAILABLE", "OVERLOADED"):
        assert value(samples, "aliquot_requests_refused_total", reason=reason) == 0
    assert value(samples, "aliquot_denied_total", reason="TOKEN_UNKNOWN") == 0
    assert value(samples, "aliquot_commit_failures_total") == 0


async def test_grant_to_active_is_measured() -> None:
    async with running() as pool:
        agent = Agent(pool.address, "n1")
        async with agents(agent):
            await pool.allocate("1", wait_until=leases_pb2.WAIT_UNTIL_ACTIVE)
            samples = scrape(pool)
            assert value(samples, "aliquot_grant_to_active_seconds_count") == 1
            assert value(samples, "aliquot_nodes", state="READY") == 1
            assert value(samples, "aliquot_agent_messages_total", kind="snapshot") == 1


async def test_idle_capacity_of_no_use_to_what_arrives_is_shown() -> None:
    async with running() as pool:
        await pool.declare(1, devices=2)
        samples = scrape(pool)
        assert ("aliquot_fragmentation_ratio", (("model", "A100-80"), ("pool", "default"))) not in samples
        for _ in range(2):
            await pool.allocate("0.6")
        async with asyncio.timeout(20):
            while not pool.coordinator.metrics.fragmentation:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # it is sampled every few seconds, and nobody is told
        samples = scrape(pool)
        assert value(samples, "aliquot_idle_share_milli", pool="default", model="A100-80") == 800
        assert value(samples, "aliquot_fragmented_share_milli", pool="default", model="A100-80") == 800
        assert value(samples, "aliquot_fragmentation_ratio", pool="default", model="A100-80") == 1.0


async def test_labels_are_bounded_and_the_rest_is_summed() -> None:
    async with running() as pool:
        await pool.declare(4, devices=8)
        tenants = LABELS_MAX + 50
        for number in range(tenants):
            await pool.allocate("0.01,1Mi", tenant=f"t{number}")
        samples = scrape(pool)
        shown = [labels for name, labels in samples if name == "aliquot_tenant_share_milli"]
        assert len(shown) == LABELS_MAX + 1
        assert value(samples, "aliquot_tenant_share_milli", tenant=OTHER, queue=OTHER) == 50 * 10
        assert value(samples, "aliquot_tenant_leases", tenant=OTHER, queue=OTHER) == 50


def test_a_histogram_counts_cumulatively() -> None:
    histogram = Histogram("x_seconds", "x", (0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 3.0):
        histogram.observe(seconds)
    samples = {sample.labels.get("le", sample.name): sample.value for sample in histogram.collect().samples}
    assert samples == {"0.1": 2, "1.0": 3, "+Inf": 4, "x_seconds_count": 4, "x_seconds_sum": 3.65}
