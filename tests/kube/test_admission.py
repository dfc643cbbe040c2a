"""The policies of deploy/kube: what a tenant may not write, evaluated as the API server would; and their form."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from aliquot.kube.api import objects, resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeForbidden
from aliquot.kube.core import names, remote_pods
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import FakeApi, fake_api
from tests.kube.making import make_node, pod_document

MANIFESTS = Path(__file__).parents[2] / "deploy" / "kube" / "admission.yaml"
OURS = "system:serviceaccount:aliquot-system:aliquot-kube"
ASSIGNED = {names.LEASE_ID: "l-1", names.ASSIGNMENT: "{}"}
PATH = resources.PODS.path("default")


def documents() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS.read_text()))


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api() as api:
        api.tokens |= {"tenant": "ann", "ours": OURS}
        for document in documents():
            plural = {
                "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
                "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
            }[document["kind"]]
            api.store.create(api.store.kind(policies.VERSION, plural), "", document)
        make_node(api, "node-0")
        yield api


def client(api: FakeApi, token: str) -> KubeClient:
    return KubeClient(Cluster(api.url, lambda: token))


async def test_a_tenant_can_write_no_assignment_in_any_way(api: FakeApi) -> None:
    async with client(api, "tenant") as tenant:
        with pytest.raises(KubeForbidden, match="own parts alone"):
            await tenant.post(PATH, pod_document("a", annotations=ASSIGNED))
        made = msgspec.json.decode(await tenant.post(PATH, pod_document("a", annotations={"mine": "1"})))
        for sub in ("", "/status"):
            with pytest.raises(KubeForbidden):
                await tenant.patch(f"{PATH}/a{sub}", {"metadata": {"annotations": ASSIGNED}})
        with pytest.raises(KubeForbidden):
            await objects.bind(tenant, "default", "a", made["metadata"]["uid"], "node-0", ASSIGNED)
        await tenant.patch(f"{PATH}/a", {"metadata": {"annotations": {"mine": "2"}}})


async def test_we_write_them_and_a_tenant_can_neither_change_nor_take_them_away(api: FakeApi) -> None:
    async with client(api, "tenant") as tenant, client(api, "ours") as ours:
        made = msgspec.json.decode(await tenant.post(PATH, pod_document("a")))
        await objects.bind(ours, "default", "a", made["metadata"]["uid"], "node-0", ASSIGNED)
        for change in ({names.LEASE_ID: "l-2"}, {names.ASSIGNMENT: None}):
            with pytest.raises(KubeForbidden):
                await tenant.patch(f"{PATH}/a", {"metadata": {"annotations": change}})
        await tenant.patch(f"{PATH}/a", {"metadata": {"labels": {"a": "b"}}})
        found = await objects.get_pod(ours, "default", "a")
        assert found is not None
        assert found.metadata.annotations == ASSIGNED


async def test_who_writes_tickets_writes_no_other_secret(api: FakeApi) -> None:
    """By roles it may patch any."""
    path = resources.SECRETS.path("default")
    ticket = {"metadata": {"name": "t"}, "type": remote_pods.SECRET_TYPE, "data": {remote_pods.FILE: "eA=="}}
    async with client(api, "tenant") as tenant, client(api, "ours") as ours:
        for name, type_ in (("plain", {}), ("opaque", {"type": "Opaque"}), ("tls", {"type": "kubernetes.io/tls"})):
            await tenant.post(path, {"metadata": {"name": name}, "data": {"password": "eA=="}, **type_})
            with pytest.raises(KubeForbidden, match="and no others"):
                await ours.patch(f"{path}/{name}", {"data": {"password": "eQ=="}})
            with pytest.raises(KubeForbidden, match="and no others"):
                await ours.post(path, {"metadata": {"name": f"{name}-2"}, **type_})
        await ours.post(path, ticket)
        await ours.patch(f"{path}/t", {"data": {remote_pods.FILE: "eQ=="}})


async def test_an_agents_account_writes_of_its_own_node_alone(api: FakeApi) -> None:
    agent = "system:serviceaccount:aliquot-system:aliquot-agent"
    api.tokens |= {"agent": agent}
    for name in ("node-1", "node-2"):
        make_node(api, name)
    api.store.extra[agent] = {"authentication.kubernetes.io/node-name": ["node-1"]}
    node = resources.NODES.path(name="node-1")
    other = resources.NODES.path(name="node-2")
    condition = {"status": {"conditions": [{"type": "aliquot.dev/Enforced", "status": "True"}]}}
    async with client(api, "agent") as agents, client(api, "ours") as ours, client(api, "tenant") as tenant:
        for name, place in (("here", "node-1"), ("elsewhere", "node-2"), ("nowhere", "")):
            made = msgspec.json.decode(await tenant.post(PATH, pod_document(name)))
            if place:
                await objects.bind(ours, "default", name, made["metadata"]["uid"], place, ASSIGNED)
        await agents.patch(f"{node}/status", {"status": {"capacity": {names.GPU_PERCENT: "100"}}})
        await agents.patch(f"{PATH}/here/status", condition)
        for path, what in (
            (f"{other}/status", {"status": {"capacity": {names.GPU_PERCENT: "100"}}}),
            (f"{PATH}/elsewhere/status", condition),
            (f"{PATH}/nowhere/status", condition),
        ):
            with pytest.raises(KubeForbidden, match="node that its pod is on"):
                await agents.patch(path, what)
        api.store.extra.clear()  # a token that is of no pod
        with pytest.raises(KubeForbidden):
            await agents.patch(f"{node}/status", {"status": {"capacity": {names.GPU_PERCENT: "1"}}})
