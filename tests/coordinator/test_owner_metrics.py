"""What tenants are told of in metrics: preemptions, outcomes, quotas, budgets and waits, each with an owner."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from aliquot.common.clock import SystemClock
from aliquot.common.gauges import LABELS_MAX, OTHER
from aliquot.coordinator.upkeep.bookkeeping import Balances
from aliquot.v1 import leases_pb2
from tests.command_line import cli
from tests.coordinator.pool import Pool, eventually, reason_of, running
from tests.coordinator.test_metrics import Samples, scrape, value

QUEUED = leases_pb2.WAIT_UNTIL_QUEUED
PREEMPTIONS, JOBS = "aliquot_preemptions_total", "aliquot_jobs_total"


def pool_file(folder: Path, **declared: Any) -> str:
    (folder / "pool.yaml").write_text(json.dumps(declared))
    return str(folder / "pool.yaml")


async def apply(pool: Pool, path: str) -> None:
    code, _, said = await cli(pool.address, "apply", "-f", path)
    assert code == 0, said


async def end(pool: Pool, lease_id: str, exit_code: int | None = None) -> None:
    await pool.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease_id, exit_code=exit_code))


def of(samples: Samples, metric: str, **labels: str) -> dict[str, float]:
    """Samples of a metric that have these labels, by the values of their other one."""
    found = {}
    for (each, pairs), number in samples.items():
        if each == metric and labels.items() <= set(pairs):
            found[",".join(text for label, text in pairs if label not in labels)] = number
    return found


async def test_a_preemption_is_counted_with_its_victim_and_its_reason(tmp_path: Path) -> None:
    async with running() as pool:
        await pool.declare(1, devices=2)
        names = ("low", "borrower", "high")
        owner = {"name": "owner", "guaranteed": {"gpus": 1}}
        await apply(pool, pool_file(tmp_path, tenants=[owner, *({"name": name} for name in names)]))
        low = await pool.allocate("1", tenant="low", queue="batch", preemptible=True)
        borrower = await pool.allocate("1", tenant="borrower")
        before = scrape(pool)
        assert of(before, PREEMPTIONS, tenant="low", queue="batch") == {"PRIORITY": 0}, "its first one is a rise"
        high = await pool.allocate("1", tenant="high", priority=10)
        samples = scrape(pool)
        assert of(samples, PREEMPTIONS, tenant="low", queue="batch") == {"PRIORITY": 1}
        assert of(samples, PREEMPTIONS, tenant="high", queue="") == {"PRIORITY": 0}
        await pool.allocate("1", tenant="owner")
        reclaimed = {
            tenant: of(scrape(pool), PREEMPTIONS, tenant=tenant).get(",RECLAIM") for tenant in ("high", "borrower")
        }
        assert sum(count or 0 for count in reclaimed.values()) == 1, reclaimed
        await pool.release(high.lease_id)
        await pool.release(borrower.lease_id)
        assert (await pool.get(low.lease_id)).requeues == 1


async def test_a_lease_that_leaves_a_node_which_is_drained_is_counted_as_such() -> None:
    async with running() as pool:
        await pool.declare(1)
        await pool.allocate("1", tenant="low", preemptible=True)
        code, _, _ = await cli(pool.address, "drain", "node-0", "--reason", "moves out")
        assert code == 0
        assert of(scrape(pool), PREEMPTIONS, tenant="low", queue="") == {"PRIORITY": 0, "DRAINED": 1}


async def test_what_became_of_jobs_is_counted_and_stays_on_the_lease() -> None:
    async with running() as pool:
        await pool.declare(1, devices=4)
        held = [await pool.allocate("1", tenant="lab") for _ in range(4)]
        assert of(scrape(pool), JOBS, tenant="lab", queue="") == {"FAILED": 0}
        for lease, code in zip(held, (0, 3, 137, None), strict=True):
            await end(pool, lease.lease_id, code)
        samples = of(scrape(pool), JOBS, tenant="lab", queue="")
        assert samples == {"SUCCEEDED": 1, "FAILED": 2, "UNKNOWN": 1}
        said = [await pool.get(lease.lease_id) for lease in held]
        assert [(lease.exit_code, lease.HasField("exit_code")) for lease in said] == [
            (0, True), (3, True), (137, True), (0, False),
        ]  # fmt: skip
        await end(pool, held[3].lease_id, 5)
        assert not (await pool.get(held[3].lease_id)).HasField("exit_code"), "it had ended"
        _, shown, _ = await cli(pool.address, "get", held[1].lease_id)
        assert "exit code 3" in shown
        _, told, _ = await cli(pool.address, "get", held[2].lease_id, "--timeline")
        assert "exit code 137" in told


async def test_what_never_had_a_place_is_no_job_and_what_the_pool_ends_was_stopped() -> None:
    async with running() as pool:
        await pool.declare(1)
        held = await pool.allocate("1", tenant="lab")
        waiting = await pool.allocate("1", tenant="other", wait_until=QUEUED)
        await end(pool, waiting.lease_id, 1)
        await cli(pool.address, "drain", "node-0", "--reason", "moves out")
        samples = scrape(pool)
        assert of(samples, JOBS, tenant="other") == {}
        assert of(samples, JOBS, tenant="lab", queue="") == {"FAILED": 0, "STOPPED": 1}
        assert (await pool.get(held.lease_id)).end_reason == "DRAINED"


async def test_an_exit_code_that_no_program_has_is_refused() -> None:
    async with running() as pool:
        await pool.declare(1)
        lease = await pool.allocate("1")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await end(pool, lease.lease_id, 256)
        assert reason_of(refused.value) == "INVALID_FIELD"
        assert (await pool.get(lease.lease_id)).end_reason == ""


async def test_owners_beyond_the_bound_are_summed_up() -> None:
    async with running() as pool:
        await pool.declare(4, devices=8)
        leases = [await pool.allocate("0.01,1Mi", tenant=f"t{number}") for number in range(LABELS_MAX + 7)]
        for lease in leases:
            await end(pool, lease.lease_id, 1)
        samples = scrape(pool)
        assert value(samples, JOBS, tenant=OTHER, queue=OTHER, outcome="FAILED") == 7
        assert value(samples, JOBS, tenant="t0", queue="", outcome="FAILED") == 1


async def test_what_was_declared_stands_beside_what_is_held(tmp_path: Path) -> None:
    declared = {
        "queues": [{"name": "training", "limit": {"gpus": 3}}],
        "tenants": [
            {"name": "vision", "queue": "training", "guaranteed": {"gpus": 1, "memory": "8Gi"}, "limit": {"gpus": 2}},
            {"name": "vision/robots", "queue": "training", "budget": {"period": "day", "gpu_hours": 0.001}},
        ],
    }
    async with running() as pool:
        await pool.declare(1, devices=4)
        await apply(pool, pool_file(tmp_path, **declared))
        await pool.allocate("0.5", tenant="vision")
        await pool.allocate("1", tenant="vision/robots")
        share = "aliquot_quota_share_milli"
        samples = scrape(pool)
        assert of(samples, share, kind="tenant", name="vision") == {"guaranteed": 1000, "limit": 2000, "held": 1500}
        assert of(samples, share, kind="tenant", name="vision/robots") == {"guaranteed": 0, "held": 1000}
        assert of(samples, share, kind="queue", name="training") == {"guaranteed": 0, "limit": 3000, "held": 1500}
        memory = of(samples, "aliquot_quota_memory_bytes", kind="tenant", name="vision")
        assert memory["guaranteed"] == 8 << 30
        assert "limit" not in memory, "there is none"
        used = of(samples, "aliquot_budget_used_ratio")
        assert list(used) == ["vision/robots"]
        assert 0 <= used["vision/robots"] <= of(scrape(pool), "aliquot_budget_used_ratio")["vision/robots"]


async def test_a_balance_is_shown_of_whoever_ever_paid() -> None:
    async with running() as pool:
        await pool.declare(1)
        await pool.release((await pool.allocate("1", tenant="later")).lease_id)
        await cli(pool.address, "credit", "lab", "5.5", "--reference", "p-1")
        balances = Balances(pool.coordinator.view, SystemClock())
        following = asyncio.create_task(balances.follow())
        try:
            await eventually(lambda: any(metric.samples for metric in balances.collect()), "added up once")
        finally:
            following.cancel()
        (metric,) = balances.collect()
        assert [(sample.labels, sample.value) for sample in metric.samples] == [({"tenant": "lab"}, 5_500_000)]
        code, said, _ = await cli(pool.address, "invoice", "lab", "--json")
        assert (code, json.loads(said)["balance_micro"]) == (0, "5500000")


async def test_the_longest_wait_of_each_owner_is_told_until_it_is_over() -> None:
    since = "aliquot_tenant_waiting_since_seconds"
    async with running() as pool:
        await pool.declare(1)
        held = await pool.allocate("1", tenant="a")
        assert of(scrape(pool), since) == {}
        first = await pool.allocate("1", tenant="b", queue="batch", wait_until=QUEUED)
        second = await pool.allocate("1", tenant="b", queue="batch", wait_until=QUEUED)
        assert of(scrape(pool), since) == {"batch,b": first.created_ms / 1000}
        await pool.release(held.lease_id)
        samples = scrape(pool)
        assert of(samples, since) == {"batch,b": second.created_ms / 1000}
        assert value(samples, "aliquot_tenant_queued", tenant="b", queue="batch") == 1
        await pool.release(second.lease_id)
        assert of(scrape(pool), since) == {}
