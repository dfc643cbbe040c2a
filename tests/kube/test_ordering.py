"""Orders of nodes carried out by a cluster's own autoscaler: a real coordinator, and the fake API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.main import main
from aliquot.client import AsyncPool, DeviceDeclaration, NodeDeclaration, WaitUntil
from aliquot.client.supply import NodeOrder, NodeShape, OrderState, OrderWay, SupplyPolicy, SupplySpec
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import ordering
from aliquot.kube.core.ordering import KubeNode, Means, matched, protection
from aliquot.kube.ordering.carrier import Carrier
from tests.coordinator.pool import eventually, running
from tests.identity import ADMIN_TOKEN
from tests.kube.fake_api.server import FakeApi, fake_api
from tests.kube.fake_api.store import Object
from tests.kube.making import make_node
from tests.kube.rights import limited
from tests.kube.test_command import kubeconfig
from tools import manifests

NAMESPACE = manifests.NAMESPACE
SHAPE = NodeShape(name="big", model="A100-80", devices=2, nodes_max=4, lead_s=60, labels={"zone": "a"})
ATOMIC = ordering.CLASSES[1]


@dataclass
class Place:
    """A pool without room in which somebody waits, so that a node of the shape is ordered; and a cluster."""

    api: FakeApi
    sdk: AsyncPool
    address: str
    client: KubeClient
    """With the rights of the chart's account."""
    lease_id: str
    order: NodeOrder

    def carrier(self, **more: Any) -> Carrier:
        """One that carries orders out."""
        return Carrier(self.client, self.sdk, Means(NAMESPACE, **more))

    def objects(self, version: str, plural: str) -> dict[str, Object]:
        """Of the namespace, by name."""
        kind = self.api.store.kind(version, plural)
        return {name: item for (space, name), item in kind.items.items() if space == NAMESPACE}

    def placeholders(self) -> list[Object]:
        """The Deployments."""
        return list(self.objects("apps/v1", "deployments").values())

    def annotations(self, node: str) -> dict[str, str]:
        """Of a node of the cluster."""
        found: dict[str, str] = self.api.store.kind("v1", "nodes").items["", node]["metadata"].get("annotations") or {}
        return found

    def come(self, name: str) -> None:
        """The autoscaler has made a node."""
        make_node(self.api, name, labels={ordering.SHAPE_LABEL: "big", "zone": "a"})

    async def join(self, name: str) -> None:
        """Its agent is there."""
        devices = [DeviceDeclaration("A100-80")] * 2
        await self.sdk.declare([NodeDeclaration(name, devices, labels={ordering.SHAPE_LABEL: "big"}, agentless=True)])

    async def now(self) -> NodeOrder:
        """The order, as it is now."""
        found = await self.sdk.supply.get(advice=False)
        return next(one for one in (*found.orders, *found.closed) if one.number == self.order.number)

    def provisioning(self, *conditions: tuple[str, str]) -> None:
        """What the autoscaler says of the one request there is."""
        kind = self.api.store.kind("autoscaling.x-k8s.io/v1", "provisioningrequests")
        (key,) = kind.items
        said = [{"type": name, "status": "True", "message": text} for name, text in conditions]
        self.api.store.write(kind, key, {**kind.items[key], "status": {"conditions": said}}, "MODIFIED")


@contextlib.asynccontextmanager
async def place() -> AsyncIterator[Place]:
    async with (
        fake_api() as api,
        running() as pool,
        AsyncPool(pool.address, token=ADMIN_TOKEN, tenant="team") as sdk,
        KubeClient(Cluster(api.url, lambda: limited(api, "aliquot-ordering"))) as client,
    ):
        await sdk.declare([NodeDeclaration("own", [DeviceDeclaration("A100-80")], agentless=True)])
        await sdk.allocate("1", until=WaitUntil.GRANTED, detached=True)
        waiting = await sdk.allocate("1", until=WaitUntil.GRANTED, wait_s=0.01, detached=True)
        policy = SupplyPolicy(act=True, target_wait_s=60, spare_permille=0, ready_permille=0)
        await sdk.supply.declare(SupplySpec((SHAPE,), policy))

        async def ordered() -> NodeOrder | None:
            return next(iter((await sdk.supply.get(advice=False)).orders), None)

        order = await eventually(ordered, "a node is ordered")
        yield Place(api, sdk, pool.address, client, waiting.lease_id, order)


async def test_a_placeholder_brings_a_node_and_goes_when_the_node_is_there() -> None:
    async with place() as at:
        carrier = at.carrier()
        assert await carrier.look() == 1
        (deployment,) = at.placeholders()
        pod = deployment["spec"]["template"]["spec"]
        assert deployment["spec"]["replicas"] == 1
        assert pod["nodeSelector"] == {"zone": "a", ordering.SHAPE_LABEL: "big"}
        assert pod["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        classes = at.api.store.kind("scheduling.k8s.io/v1", "priorityclasses")
        assert classes.items["", pod["priorityClassName"]]["value"] == -10
        order = await at.now()
        assert (order.state, order.node_name) == (OrderState.UNDER_WAY, "big-1")
        assert deployment["metadata"]["name"] in order.reference
        before = at.api.store.version
        await carrier.look()
        assert (await at.now()).state is OrderState.UNDER_WAY
        assert len(at.placeholders()) == 1
        assert at.api.store.version - before <= 2, "what is as it should be is applied, and nothing else"
        at.come("ip-10-0-0-7")
        await carrier.look()
        assert (await at.now()).node_name == "ip-10-0-0-7"
        await at.join("ip-10-0-0-7")

        async def done() -> bool:
            return (await at.now()).state is OrderState.DONE

        await eventually(done, "the order is done")

        async def granted() -> bool:
            return (await at.sdk.get(at.lease_id)).granted_ms > 0

        await eventually(granted, "who waited has the node")
        await carrier.look()
        assert [one["spec"]["replicas"] for one in at.placeholders()] == [0]
        assert set(at.annotations("ip-10-0-0-7")) == {*ordering.PROTECTION, ordering.PROTECTED}


async def test_an_order_that_is_not_wanted_any_more_takes_its_placeholder_with_it() -> None:
    async with place() as at:
        carrier = at.carrier()
        await carrier.look()
        await at.sdk.supply.withdraw(at.order.number)
        await carrier.look()
        assert [one["spec"]["replicas"] for one in at.placeholders()] == [0]

        async def cancelled() -> bool:
            await carrier.look()
            found = await at.sdk.supply.get(advice=False)
            return any(one.way is OrderWay.REMOVE and one.state is OrderState.DONE for one in found.closed)

        await eventually(cancelled, "what might have come is cancelled")


async def test_a_second_node_for_one_order_is_nobodys() -> None:
    async with place() as at:
        carrier = at.carrier()
        await carrier.look()
        at.come("ip-1")
        at.come("ip-2")
        await carrier.look()
        first = (await at.now()).node_name
        assert first in {"ip-1", "ip-2"}
        await carrier.look()
        assert (await at.now()).node_name == first
        assert len(at.placeholders()) == 1


async def test_two_processes_of_one_name_do_one_thing_and_one_of_another_name_leaves_it_alone() -> None:
    async with place() as at:
        await asyncio.gather(at.carrier().look(), at.carrier().look())
        (deployment,) = at.placeholders()
        assert deployment["spec"]["replicas"] == 1
        assert (await at.now()).state is OrderState.UNDER_WAY
        assert await at.carrier(taker="other").look() == 0
        assert at.placeholders() == [deployment]


async def test_what_the_api_server_refuses_is_a_failure_of_the_order() -> None:
    async with place() as at:
        at.api.tokens["limited"] = "system:limited"
        at.api.faults.forbidden.add(("patch", "deployments"))
        async with KubeClient(Cluster(at.api.url, lambda: "limited")) as client:
            await Carrier(client, at.sdk, Means(NAMESPACE)).look()
        order = await at.now()
        assert (order.state, order.tries) == (OrderState.ORDERED, 1)
        assert "forbidden" in order.problem


async def test_a_provisioning_request_is_followed_to_its_end() -> None:
    async with place() as at:
        carrier = at.carrier(provisioning=ATOMIC)
        await carrier.look()
        (request,) = at.objects("autoscaling.x-k8s.io/v1", "provisioningrequests").values()
        (template,) = at.objects("v1", "podtemplates").values()
        assert request["spec"]["provisioningClassName"] == ATOMIC
        assert request["spec"]["podSets"] == [{"count": 1, "podTemplateRef": {"name": template["metadata"]["name"]}}]
        assert (await at.now()).state is OrderState.TAKEN
        at.provisioning(("Accepted", ""))
        await carrier.look()
        assert (await at.now()).state is OrderState.TAKEN
        at.provisioning(("Accepted", ""), ("Provisioned", ""))
        await carrier.look()
        assert (await at.now()).state is OrderState.UNDER_WAY
        at.provisioning(("Accepted", ""), ("Provisioned", ""), ("BookingExpired", "nobody came for it"))
        await carrier.look()
        order = await at.now()
        assert (order.state, order.problem) == (OrderState.ORDERED, "BookingExpired: nobody came for it")
        assert not at.objects("autoscaling.x-k8s.io/v1", "provisioningrequests")
        assert not at.objects("v1", "podtemplates")


async def test_a_provisioning_request_that_fails_is_tried_again_later() -> None:
    async with place() as at:
        carrier = at.carrier(provisioning=ATOMIC)
        await carrier.look()
        at.provisioning(("Failed", "no stock in zone a"))
        await carrier.look()
        order = await at.now()
        assert (order.state, order.problem) == (OrderState.ORDERED, "Failed: no stock in zone a")
        assert order.again_ms > order.changed_ms
        assert not at.objects("autoscaling.x-k8s.io/v1", "provisioningrequests")


async def test_a_node_that_comes_for_a_request_ends_it() -> None:
    async with place() as at:
        carrier = at.carrier(provisioning=ATOMIC)
        await carrier.look()
        at.provisioning(("Provisioned", ""))
        await carrier.look()
        at.come("ip-1")
        await carrier.look()
        at.provisioning(("Provisioned", ""), ("BookingExpired", "over"))
        await carrier.look()
        assert ((await at.now()).state, (await at.now()).node_name) == (OrderState.UNDER_WAY, "ip-1")
        await at.join("ip-1")

        async def over() -> bool:
            await carrier.look()
            return not at.objects("autoscaling.x-k8s.io/v1", "provisioningrequests")

        await eventually(over, "the request is gone")


async def test_nodes_with_leases_are_protected_for_as_long_as_they_have_some() -> None:
    async with place() as at:
        make_node(at.api, "own", annotations={ordering.PROTECTION[1]: "false"})
        make_node(at.api, "stranger")
        carrier = at.carrier()
        await carrier.look()
        mine, theirs = ordering.PROTECTION
        assert at.annotations("own") == {mine: "true", theirs: "false", ordering.PROTECTED: mine}
        assert not at.annotations("stranger")
        async for lease in at.sdk.leases():
            await at.sdk.release(lease.lease_id)

        async def bare() -> bool:
            await carrier.look()
            return at.annotations("own") == {theirs: "false"}

        await eventually(bare, "it is protected no more")


async def test_the_command_looks_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with place() as at:
        monkeypatch.setenv("ALIQUOT_COORDINATOR", at.address)
        monkeypatch.setenv("ALIQUOT_TOKEN", ADMIN_TOKEN)
        config = kubeconfig(tmp_path / "config", at.api.url)
        words = ["kube", "nodes", "--once", "--json", "-n", NAMESPACE, "--kubeconfig", str(config)]
        assert await asyncio.to_thread(main, words) == 0
        assert json.loads(capsys.readouterr().out) == {"at_work": 1}
        assert len(at.placeholders()) == 1


def test_names_of_shapes_that_kubernetes_does_not_take_stay_apart() -> None:
    several = ("big", "Big", "b.ig", "b-ig", "x" * 80, "x" * 81)
    found = {ordering.placeholder_name(name, Means("n")) for name in several}
    assert len(found) == len(several)
    assert all(len(name) <= 63 and name == name.lower() for name in found)


def order_of(number: int, ordered_ms: int, shape: str) -> NodeOrder:
    return NodeOrder(
        number=number,
        order_id=f"order-{number}",
        way=OrderWay.ADD,
        state=OrderState.UNDER_WAY,
        shape=shape,
        pool="default",
        node_name=f"{shape}-{number}",
        node_id="",
        why="",
        ordered_ms=ordered_ms,
        due_ms=0,
        changed_ms=0,
        price_micro=0,
        taken_by="kubernetes",
        taken_until_ms=0,
        tries=1,
        again_ms=0,
        reference="",
        problem="",
        early=False,
    )


_SHAPES = st.sampled_from(("a", "b"))


@given(
    st.lists(st.tuples(st.integers(0, 9_000), _SHAPES), max_size=6),
    st.lists(st.tuples(st.integers(0, 9_000), _SHAPES), max_size=6),
    st.sets(st.integers(0, 5), max_size=3),
)
def test_each_node_comes_for_one_order_and_each_order_has_one_node(
    orders: list[tuple[int, str]], nodes: list[tuple[int, str]], known: set[int]
) -> None:
    wanted = [order_of(number, at_ms, shape) for number, (at_ms, shape) in enumerate(orders, 1)]
    there = [KubeNode(f"ip-{number}", shape, at_ms, {}) for number, (at_ms, shape) in enumerate(nodes)]
    found = matched(wanted, there, [f"ip-{number}" for number in known])
    assert len(set(found.values())) == len(found)
    for number, name in found.items():
        order, node = wanted[number - 1], next(node for node in there if node.name == name)
        assert node.shape == order.shape
        assert node.created_ms >= order.ordered_ms - 1000
        assert int(name[3:]) not in known


def test_protection_is_written_once_and_taken_away_once() -> None:
    bare = KubeNode("n", "", 0, {})
    patch = protection(bare, wanted=True)
    assert patch is not None
    protected = KubeNode("n", "", 0, patch["metadata"]["annotations"])
    assert protection(protected, wanted=True) is None
    assert protection(bare, wanted=False) is None
    gone = protection(protected, wanted=False)
    assert gone is not None
    assert set(gone["metadata"]["annotations"].values()) == {None}
