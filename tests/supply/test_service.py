"""From the command line to a node that has come, through the real program: gRPC, the journal, and a hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aliquot.client import (
    AsyncPool,
    Conflict,
    DeviceDeclaration,
    InvalidRequest,
    NeverFits,
    NodeDeclaration,
    NotFound,
    WaitUntil,
)
from aliquot.client.access import Role, RoleGrant
from aliquot.client.supply import (
    ExpectedSeries,
    ExpectedUse,
    OrderState,
    OrderWay,
    Supply,
    SupplyPolicy,
    SupplySpec,
)
from tests.command_line import cli
from tests.coordinator.pool import eventually, running, settings_for, sqlite
from tests.coordinator.test_metrics import scrape, value

SHAPES = """
shapes: [{name: big, model: A100-80, devices: 2, max: 2, lead: 2m, price: 10}]
policy: {act: true, target: 1m, spare: 0, ready: 0}
"""


def offered(tmp_path: Path, text: str = SHAPES) -> str:
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    return str(path)


def hook(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hook.sh"
    path.write_text(f"#!/bin/sh\ncat >> {tmp_path}/orders; echo >> {tmp_path}/orders\n{text}\n")
    path.chmod(0o755)
    return f"{path} {{way}} {{node}}"


async def full(sdk: AsyncPool) -> str:
    """A pool without room, and somebody who waits; returns their lease."""
    await sdk.declare([NodeDeclaration("own", [DeviceDeclaration("A100-80")], agentless=True)])
    await sdk.allocate("1", until=WaitUntil.GRANTED, detached=True)
    waiting = await sdk.allocate("1", wait_s=0.01, detached=True, until=WaitUntil.GRANTED)
    return waiting.lease_id


async def ordered(sdk: AsyncPool, way: OrderWay = OrderWay.ADD) -> Any:
    """The open order of this kind, once there is one."""

    async def found() -> Any:
        return next((order for order in (await sdk.supply.get()).orders if order.way is way), None)

    return await eventually(found, f"an order to {way}")


async def test_what_a_file_leaves_out_is_as_the_documentation_says(tmp_path: Path) -> None:
    shape = "shapes: [{name: big, model: A100-80, devices: 2, max: 2, lead: 2m}]\n"
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        for policy, wanted in (
            ("", (100, 100, 930)),
            ("policy: {headroom: 5}", (50, 50, 930)),
            ("policy: {headroom: 30, ready: 99}", (300, 100, 990)),
            ("policy: {ready: 0}\npools: [{name: default, headroom: 0}]", (100, 0, 0)),
        ):
            said = await cli(pool.address, "supply", "apply", offered(tmp_path, shape + policy))
            assert ("--yes" in said[2]) == ("ready: 0" in policy), "the last one drops what was said of headroom"
            await cli(pool.address, "supply", "apply", "--yes", offered(tmp_path, shape + policy))
            found = (await sdk.supply.get(advice=False)).spec.policy
            assert (found.headroom_permille, found.spare_permille, found.ready_permille) == wanted
        with pytest.raises(InvalidRequest):
            await sdk.supply.declare(SupplySpec(policy=SupplyPolicy(ready_permille=1000)))


async def test_orders_are_counted_by_shape_and_state(tmp_path: Path) -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        assert ("aliquot_shape_nodes", ()) not in scrape(pool)
        await cli(pool.address, "supply", "apply", offered(tmp_path))
        await full(sdk)
        order = await ordered(sdk)
        samples = scrape(pool)
        add = {"shape": "big", "way": "ADD"}
        assert value(samples, "aliquot_node_orders_open", state="ORDERED", **add) == 1
        assert value(samples, "aliquot_shape_nodes", shape="big", phase="coming") == 1
        assert value(samples, "aliquot_shape_nodes_limit", shape="big") == 2
        assert value(samples, "aliquot_node_order_due_seconds", **add) == order.due_ms / 1000
        assert value(samples, "aliquot_node_order_oldest_seconds", **add) == order.ordered_ms / 1000
        await sdk.supply.take("runner")
        assert value(scrape(pool), "aliquot_node_orders_open", state="TAKEN", **add) == 1
        await sdk.supply.report(order.number, "runner", accepted=False, problem="no stock", final=True)
        samples = scrape(pool)
        assert value(samples, "aliquot_node_orders_total", state="FAILED", **add) == 1
        assert value(samples, "aliquot_shape_resting_until_seconds", shape="big") > order.ordered_ms / 1000


async def test_a_node_is_ordered_carried_out_by_a_hook_and_used(tmp_path: Path) -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        with pytest.raises(NeverFits):
            await sdk.allocate("2", until=WaitUntil.GRANTED, wait_s=0.01)
        lease_id = await full(sdk)
        code, said, err = await cli(pool.address, "supply", "apply", offered(tmp_path))
        assert (code, err) == (0, "")
        assert "1 shapes are on offer" in said
        order = await ordered(sdk)
        assert lease_id in order.why
        code, said, _ = await cli(pool.address, "why", lease_id)
        assert "a node is on its way: big-1 (order-1)" in said
        run = ("supply", "run", "--once", "--name", "r1", "--hook")
        code, said, err = await cli(pool.address, *run, hook(tmp_path, 'echo \'{"reference": "i-1"}\''), "--json")
        assert (code, json.loads(said)) == (0, {"carried_out": 1}), err
        told = json.loads((tmp_path / "orders").read_text())
        assert (told["order"], told["way"], told["node"], told["model"]) == ("order-1", "add", "big-1", "A100-80")
        (order,) = (await sdk.supply.get()).orders
        assert (order.state, order.reference, order.taken_by) == (OrderState.UNDER_WAY, "i-1", "r1")
        await sdk.declare([NodeDeclaration("big-1", [DeviceDeclaration("A100-80")] * 2, agentless=True)])
        await eventually(lambda: granted(sdk, lease_id), "it starts on the node that came")
        capacity: Supply = await eventually(lambda: closed(sdk), "the order is done")
        assert capacity.closed[0].state is OrderState.DONE
        assert [(node.name, node.leases) for node in capacity.nodes] == [("big-1", 1)]
        code, said, _ = await cli(pool.address, "supply")
        assert "leases are there" in said
        code, said, _ = await cli(pool.address, "supply", "orders")
        assert "done" in said
        code, said, _ = await cli(pool.address, "supply", "shapes")
        assert "2 x A100-80" in said
        entries = (await sdk.access.audit()).entries
        assert {"DeclareSupply", "OrderNode", "TakeOrders"} <= {entry.action for entry in entries}


async def granted(sdk: AsyncPool, lease_id: str) -> bool:
    return bool((await sdk.get(lease_id)).slices)


async def closed(sdk: AsyncPool) -> Supply | None:
    found = await sdk.supply.get()
    return found if found.closed else None


async def test_a_hook_that_fails_or_hangs_is_tried_again_under_the_same_id_and_says_why(tmp_path: Path) -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        await full(sdk)
        await cli(pool.address, "supply", "apply", offered(tmp_path))
        await ordered(sdk)
        run = ("supply", "run", "--once", "--hook-timeout", "1s", "--hook")
        code, _, _ = await cli(pool.address, *run, hook(tmp_path, "sleep 600"))
        assert code == 0
        order = await ordered(sdk)
        assert (order.state, order.tries) == (OrderState.ORDERED, 1)
        assert "has not answered in 1 s" in order.problem
        code, said, _ = await cli(pool.address, "supply", "cancel", str(order.number), "--reason", "enough")
        assert code == 0
        assert "order-1 is withdrawn" in said
        code, _, _ = await cli(pool.address, "supply", "cancel", str(order.number))
        assert code == 3, "it is over"


async def test_two_programs_share_orders_and_a_lost_claim_is_told(tmp_path: Path) -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        await full(sdk)
        await cli(pool.address, "supply", "apply", offered(tmp_path))
        await ordered(sdk)
        (order,) = await sdk.supply.take("one")
        assert await sdk.supply.take("two") == ()
        with pytest.raises(Conflict, match="not two's"):
            await sdk.supply.report(order.number, "two", accepted=True)
        with pytest.raises(NotFound):
            await sdk.supply.report(99, "two", accepted=True)


async def test_acting_is_off_until_it_is_put_on_and_somebody_elses_change_is_not_lost(tmp_path: Path) -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        lease_id = await full(sdk)
        await cli(pool.address, "supply", "apply", offered(tmp_path, SHAPES.replace("act: true", "act: false")))
        code, said, _ = await cli(pool.address, "supply")
        assert f"would order big-1 (big): lease {lease_id}" in said
        found = await sdk.supply.get()
        assert not found.orders
        code, said, _ = await cli(pool.address, "supply", "act", "on")
        assert (code, said) == (0, "nodes are ordered and given back\n")
        with pytest.raises(Conflict):
            await sdk.supply.declare(found.spec, version=found.version)
        await ordered(sdk)
        series = ExpectedSeries("default", "A100-80", fit=True, points=(ExpectedUse(0, 4_000, 0, 0),))
        await sdk.supply.expect([series])
        await eventually(lambda: early(sdk), "the forecast has another come earlier")


async def early(sdk: AsyncPool) -> bool:
    return any(order.early for order in (await sdk.supply.get()).orders)


async def test_whose_lease_a_node_is_for_is_told_to_those_who_may_see_it(tmp_path: Path) -> None:
    async with running() as pool, AsyncPool(pool.address, tenant="team") as sdk:
        lease_id = await full(sdk)
        await cli(pool.address, "supply", "apply", offered(tmp_path))
        await ordered(sdk)
        issued = await sdk.access.issue_token("eve", grants=[RoleGrant(Role.VIEWER, "other")])
        async with AsyncPool(pool.address, token=issued.token) as other:
            (order,) = (await other.supply.get()).orders
            assert lease_id not in str(order)


async def test_orders_outlive_the_coordinator(tmp_path: Path) -> None:
    journal = sqlite(tmp_path / "journal.db")
    async with running(settings_for(journal)) as pool, AsyncPool(pool.address, tenant="team") as sdk:
        await full(sdk)
        await cli(pool.address, "supply", "apply", offered(tmp_path))
        await ordered(sdk)
        (order,) = await sdk.supply.take("one")
    async with running(settings_for(journal)) as pool, AsyncPool(pool.address, tenant="team") as sdk:
        (again,) = await sdk.supply.take("one")
        assert again.order_id == order.order_id
        assert (await sdk.supply.report(again.number, "one", accepted=True)).state is OrderState.UNDER_WAY
