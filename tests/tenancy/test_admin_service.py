"""Tenants, queues, prices and invoices through the real program: a file, the command line, gRPC, SQLite, a restart."""

from __future__ import annotations

import asyncio
import json
import textwrap
from pathlib import Path

import grpc
import grpc.aio
import pytest

from aliquot.cli import _poolfile as poolfile
from aliquot.common.errors import ConfigError
from aliquot.coordinator.settings.config import Settings
from aliquot.v1 import admin_pb2, admin_pb2_grpc
from tests.command_line import cli
from tests.coordinator.pool import reason_of, running, settings_for, sqlite

POOL_FILE = """
pools:
  - name: default
    devices: [{model: A100-80, count: 16, memory: 79Gi}]
queues:
  - {name: root, policy: fair_share, half_life: 12h}
  - {name: training, policy: fair_share, guaranteed: {gpus: 4}, limit: {gpus: 12}, weight: 2}
  - name: vision
    parent: training
    policy: slowdown
    large_first: 0.8
    ageing: 30s
    reserve_after: 10m
    on_over_limit: {action: refuse, for: 10m, after: 2}
    scaling: [{keep: least, when: "weekdays 08:00-18:00", waiting: 3, busy_below: 20%}]
tenants:
  - name: research
    queue: vision
    guaranteed: {gpus: 2.5, memory: 100Gi}
    limit: {gpus: 8}
    models: {A100-80: {limit: {gpus: 6}}}
    budget: {period: week, gpu_hours: 1000, money: 2500.50}
    disruptions: {max: 3, per: 1h}
    on_over_limit: {action: stronger_tier}
    priority_max: 5
    waiting_max: 500
prices:
  currency: EUR
  gpu_hour: {A100-80: 2.10, "*": 1}
  gib_hour: {"*": 0.01}
  minimum: 1m
  discounts: [{above_gpu_hours: 100, percent: 10}]
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(sqlite(tmp_path / "journal.db"))


@pytest.fixture
def pool_file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL_FILE)
    return path


async def test_a_file_is_applied_shown_applied_again_and_survives_a_restart(
    settings: Settings, pool_file: Path
) -> None:
    async with running(settings) as pool:
        code, said, _ = await cli(pool.address, "apply", "-f", str(pool_file), "--dry-run")
        assert code == 0
        assert "would be declared" in said
        code, said, _ = await cli(pool.address, "apply", "-f", str(pool_file))
        assert code == 0
        assert "tenant research: declared (version 1)" in said
        code, said, _ = await cli(pool.address, "apply", "-f", str(pool_file))
        assert "0 declared, 6 unchanged" in said
    async with running(settings) as pool:
        code, said, _ = await cli(pool.address, "tenants", "--json")
        (research,) = [view for view in json.loads(said)["tenants"] if view["spec"]["name"] == "research"]
        assert research["spec"]["quota"]["guaranteed"] == {"share_milli": 2500, "memory_bytes": 100 << 30}
        assert research["spec"]["budget"]["money_micro"] == 2_500_500_000
        hourly = {"action": "stronger_tier", "for_s": 3600, "after": 1, "min_tier": "driver"}
        assert research["spec"]["on_over_limit"] == hourly
        assert (research["spec"]["priority_max"], research["spec"]["waiting_max"]) == (5, 500)
        code, said, _ = await cli(pool.address, "queues", "--json")
        (vision,) = [view for view in json.loads(said)["queues"] if view["spec"]["name"] == "vision"]
        assert vision["spec"]["on_over_limit"] == {**hourly, "action": "refuse", "for_s": 600, "after": 2}
        assert (vision["spec"]["policy"], vision["spec"]["large_first_permille"]) == ("slowdown", 800)
        assert await cli(pool.address, "forgive", "research") == (0, "nothing is held against research\n", "")
        code, said, _ = await cli(pool.address, "queues")
        assert "    vision" in said
        code, said, _ = await cli(pool.address, "tenants")
        assert "research" in said
        assert "<= 5" in said
        assert "0 of 500" in said


async def test_a_limit_holds_and_an_invoice_is_made_in_every_form(settings: Settings, pool_file: Path) -> None:
    async with running(settings) as pool:
        await pool.declare(2, devices=8)
        await cli(pool.address, "apply", "-f", str(pool_file))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await pool.allocate("9(A100-80)", tenant="research")
        assert reason_of(refused.value) in ("QUOTA_EXCEEDED", "NEVER_FITS")
        lease = await pool.allocate("2(A100-80)", tenant="research", detached=True)
        assert {piece.device_model for piece in lease.slices} == {"A100-80"}
        await pool.release(lease.lease_id)
        code, said, _ = await cli(pool.address, "invoice", "research", "--json")
        document = json.loads(said)
        assert code == 0
        assert document["currency"] == "EUR"
        (line,) = document["lines"]
        assert int(line["billable_share_milli_ms"]) >= 2000 * 60_000, "the minimum is paid for"
        assert int(document["total_micro"]) > 0
        code, page, _ = await cli(pool.address, "invoice", "research", "--format", "html")
        assert page.startswith("<!doctype html>")
        assert document["invoice_id"] in page
        code, sheet, _ = await cli(pool.address, "invoice", "research", "--format", "csv")
        assert sheet.splitlines()[0].startswith("invoice,tenant,from,to,currency,queue,model,gpu_hours")
        code, said, _ = await cli(pool.address, "credit", "research", "100", "--reference", "p-1", "--json")
        balance = 100_000_000 - int(document["total_micro"])
        assert int(json.loads(said)["balance_micro"]) == balance
        assert document["balance_micro"] is None, "nothing was paid yet"
        _, said, _ = await cli(pool.address, "invoice", "research", "--json")
        assert int(json.loads(said)["balance_micro"]) == balance
        _, said, _ = await cli(pool.address, "invoice", "research", "--month", "2020-01")
        assert "balance now: " in said, "it is of all time"


async def test_a_charge_is_corrected_once_and_old_days_are_closed(settings: Settings, pool_file: Path) -> None:
    async with running(settings) as pool:
        await pool.declare(1, devices=8)
        await cli(pool.address, "apply", "-f", str(pool_file))
        correct = ("correct", "research", "--queue", "training", "--model", "A100-80", "--reference", "c-1")
        for _ in range(2):
            code, said, _ = await cli(pool.address, *correct, "--gpu-hours=-2.5")
            assert (code, said) == (0, "research: booked as c-1\n")
        _, said, _ = await cli(pool.address, "invoice", "research", "--json")
        (line,) = json.loads(said)["lines"]
        assert int(line["share_milli_ms"]) == -25 * 360_000_000
        code, _, said = await cli(pool.address, *correct, "--gpu-hours=-3")
        assert (code, "c-1" in said) == (7, True)
        code, _, said = await cli(pool.address, *correct)
        assert (code, "--gpu-hours" in said) == (2, True)
        code, said, _ = await cli(pool.address, "close-books", "2026-01-02")
        assert (code, said) == (0, "the books are closed up to 2026-01-02 00:00 UTC\n")
        within = ("--from", "2026-01-01T12:00", "--to", "2026-01-03")
        code, _, said = await cli(pool.address, "invoice", "research", *within, "--json")
        assert json.loads(said)["error"]["reason"] == "PERIOD_CLOSED"
        code, _, _ = await cli(pool.address, "close-books", "2026-01-02T12:00")
        assert code == 2


async def test_a_declaration_is_withdrawn_unless_it_is_needed(settings: Settings, pool_file: Path) -> None:
    async with running(settings) as pool:
        await pool.declare(1, devices=8)
        await cli(pool.address, "apply", "-f", str(pool_file))
        code, _, said = await cli(pool.address, "withdraw", "queue", "vision")
        assert (code, "research" in said) == (7, True), said
        code, said, _ = await cli(pool.address, "withdraw", "tenant", "research")
        assert (code, said) == (0, "tenant research is withdrawn\n")
        code, said, _ = await cli(pool.address, "withdraw", "queue", "vision", "--json")
        assert json.loads(said) == {"kind": "queue", "name": "vision", "withdrawn": True}
        code, _, _ = await cli(pool.address, "withdraw", "queue", "vision")
        assert code == 3


async def test_of_two_administrators_the_second_is_refused(settings: Settings) -> None:
    async with running(settings) as pool:
        await pool.declare(1, devices=8)
        admin = admin_pb2_grpc.AdminServiceStub(pool.channel)
        item = admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name="a"), version=0)
        await admin.Apply(admin_pb2.ApplyRequest(tenants=[item]))
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin.Apply(
                admin_pb2.ApplyRequest(
                    tenants=[admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name="a", description="x"), version=0)]
                )
            )
        assert refused.value.code() is grpc.StatusCode.ABORTED
        assert reason_of(refused.value) == "CONFLICT"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (admin_pb2.WithdrawRequest(kind="tenant", name="nobody"), "TENANT_NOT_FOUND"),
        (admin_pb2.WithdrawRequest(kind="queue", name="nowhere"), "QUEUE_NOT_FOUND"),
        (admin_pb2.WithdrawRequest(kind="city", name="x"), "INVALID_FIELD"),
    ],
)
async def test_what_is_not_there_can_not_be_withdrawn(
    settings: Settings, request_: admin_pb2.WithdrawRequest, reason: str
) -> None:
    async with running(settings) as pool:
        admin = admin_pb2_grpc.AdminServiceStub(pool.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin.Withdraw(request_)
        assert reason_of(refused.value) == reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants: [{name: a, guaranteed: {gpus: -1}}]", "tenants[0].guaranteed.gpus: "),
        ("tenants: [{name: a, guaranteed: {gpus: 0.0001}}]", "tenants[0].guaranteed.gpus: '0.0001'"),
        ("tenants: [{name: a, limit: {memory: 5GB}}]", "tenants[0].limit.memory: '5GB'"),
        ("tenants: [{name: a, disruptions: {max: 1, per: 1500ms}}]", "tenants[0].disruptions.per: 1500ms"),
        ("tenants: [{name: a, wieght: 2}]", "tenants[0].wieght: unknown"),
        ("tenants: [{}]", "tenants[0].name: not set"),
        ("tenants: {a: 1}", "tenants: a list was expected"),
        ("pools: [{name: p, devices: [{model: L4, memory: x}]}]", "pools[0].devices[0].memory: 'x'"),
        ("queues: [{name: q, ageing: 5}]", "queues[0].ageing: '5'"),
        ("queues: [{name: q, ageing: 10ms}]", "queues[0].ageing: 10ms is not a whole number of seconds"),
        ("queues: [{name: q, preempts: 'false'}]", "queues[0].preempts: 'false'"),
        ("prices: {gpu_hour: {x: 0.0000001}}", "prices.gpu_hour.x: "),
        ("prices: {minimum: soon}", "prices.minimum: 'soon'"),
        ("- a\n- b", "a table was expected, not ['a', 'b']"),
        ("# nothing yet\n", "a table was expected, not nothing"),
        ("{", "can't be read"),
    ],
)
def test_a_file_that_says_nonsense_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        poolfile.read_pool_file(path)
    assert said in refused.value.message


async def test_the_examples_that_are_documented_are_accepted(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "tenancy.md").read_text()
    examples = [textwrap.dedent((poolfile.__doc__ or "").split("::\n")[1].rpartition("\n\n")[0])]
    examples += [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    assert len(examples) >= 2
    path = tmp_path / "pool.yaml"
    for example in examples:
        async with running() as pool:
            path.write_text(example)
            code, said, error = await cli(pool.address, "apply", "-f", str(path))
            assert code == 0, (example, error)
            assert said


async def test_of_many_administrators_at_once_exactly_one_is_heard(settings: Settings) -> None:
    async with running(settings) as pool:
        admin = admin_pb2_grpc.AdminServiceStub(pool.channel)

        async def apply(number: int) -> str:
            spec = admin_pb2.TenantSpec(name="a", description=f"of administrator {number}")
            try:
                await admin.Apply(admin_pb2.ApplyRequest(tenants=[admin_pb2.TenantItem(spec=spec, version=0)]))
            except grpc.aio.AioRpcError as error:
                return reason_of(error)
            return spec.description

        said = await asyncio.gather(*map(apply, range(8)))
        (heard,) = [text for text in said if text != "CONFLICT"]
        tenancy = await admin.GetTenancy(admin_pb2.GetTenancyRequest())
        (kept,) = [view for view in tenancy.tenants if view.spec.name == "a"]
        assert (kept.spec.description, kept.version) == (heard, 1)


async def test_windows_are_declared_by_a_file_and_by_a_command_shown_and_told_to_who_waits(
    settings: Settings, tmp_path: Path
) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(
        "tenants: [{name: research, limit: {gpus: 8}, windows: "
        '[{when: "daily Europe/Zurich", limit: {gpus: 1}}, {when: weekends, guaranteed: {gpus: 2}, limit: {}}]}]'
    )
    async with running(settings) as pool:
        await pool.declare(1, devices=8)
        assert (await cli(pool.address, "apply", "-f", str(path)))[0] == 0
        assert "1 unchanged" in (await cli(pool.address, "apply", "-f", str(path)))[1]
        await pool.allocate("1", tenant="research", detached=True)
        waiting = await pool.allocate("1", tenant="research", detached=True)
        _, said, _ = await cli(pool.address, "why", waiting.lease_id)
        assert "may hold 1; 1 more were asked for (window `daily Europe/Zurich`, always)" in " ".join(said.split())
        _, said, _ = await cli(pool.address, "tenants")
        assert "NEXT" in said
        window = "daily 00:00-12:00: limit 4; guaranteed 2,20Gi"
        other = "daily 12:00-24:00: limit none"
        set_both = ("quota", "tenant", "research", "--window", window, "--window", other)
        assert "would be declared" in (await cli(pool.address, *set_both, "--dry-run"))[1]
        code, said, _ = await cli(pool.address, *set_both)
        assert code == 0
        assert "in force now: limit" in said
    async with running(settings) as pool:
        _, said, _ = await cli(pool.address, "tenants", "--json")
        (view,) = (found for found in json.loads(said)["tenants"] if found["spec"]["name"] == "research")
        assert [found["when"] for found in view["spec"]["quota"]["windows"]] == [
            "daily 00:00-12:00",
            "daily 12:00-24:00",
        ]
        now = view["use"]["windows"]
        assert now["window"] in ("daily 00:00-12:00", "daily 12:00-24:00")
        assert now["until_ms"] > 0
        assert now["next"]["limit"] != now["in_force"]["limit"]
        assert view["spec"]["quota"]["limit"]["share_milli"] == 8000, "what is not named stays"
        assert (await cli(pool.address, "quota", "queue", "batch", "--limit", "4,10Gi", "--guaranteed", ",1Gi"))[0] == 0
        assert (await cli(pool.address, "quota", "tenant", "research", "--no-windows"))[0] == 0
        _, said, _ = await cli(pool.address, "tenants")
        assert "NEXT" not in said


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ((), "nothing would be changed"),
        (("--window", "weekdays 08:00-18:00"), "does not say what is in force then"),
        (("--window", "weekdays 08:00-18:00: most 4"), "is neither `limit AMOUNT` nor `guaranteed AMOUNT`"),
        (("--window", "weekdays 08:00-18:00: limit four"), "limit"),
        (("--limit", ","), "--limit: nothing is said"),
        (("--window", "weekdays 8-18: limit 4"), "'8-18' is not known here"),
        (("--window", "weekdays 08:00-18:00 Nowhere/Land: limit 4"), "Nowhere/Land"),
        (("--limit", "2", "--guaranteed", "4"), "the limit is 2000"),
    ],
)
async def test_windows_that_cannot_be_are_refused_with_what_is_wrong(
    settings: Settings, options: tuple[str, ...], why: str
) -> None:
    async with running(settings) as pool:
        code, _, said = await cli(pool.address, "quota", "tenant", "research", *options)
        assert code != 0
        assert why in " ".join(said.split())
