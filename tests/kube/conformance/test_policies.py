"""What the API server does with pods on their way in: nobody forges assignments, and pods with parts are ours.

The webhook runs here: a real API server must be on this machine, as one that is started for the suite.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeError, KubeForbidden
from aliquot.kube.api.resources import Resource
from aliquot.kube.core import names
from aliquot.kube.core.admission import LEASE_VARIABLE
from aliquot.kube.serving import serve
from tests.certificates import Authority
from tests.coordinator.pool import eventually
from tests.kube.fake_api.policies import VERSION
from tests.kube.test_admission import documents
from tests.kube.test_webhook import configuration, folder_of, to

PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
PODS = resources.PODS


@pytest.fixture
async def admitting(client: KubeClient, tmp_path: Path) -> AsyncIterator[None]:
    """With the webhook, and everything of deploy/kube/admission.yaml, in force."""
    made = [resources.MUTATING_WEBHOOKS.path(name=webhook.CONFIGURATION)]
    async with contextlib.AsyncExitStack() as stack:
        certificate = webhook.Certificate(folder_of(Authority.create(tmp_path / "authority"), tmp_path / "tls"))
        end, port = await serve(webhook.questions(), "127.0.0.1", 0, tls=certificate.context)
        stack.push_async_callback(end)
        hooks = configuration()
        to(hooks, port)
        await client.post(resources.MUTATING_WEBHOOKS.path(), hooks)
        await webhook.trust(client, certificate.authority())
        for document in documents():
            kind = Resource(VERSION, PLURALS[document["kind"]], namespaced=False)
            with contextlib.suppress(KubeConflict):
                await client.post(kind.path(), document)
                made.append(kind.path(name=document["metadata"]["name"]))
        yield
        for path in reversed(made):
            await client.delete(path)


def pod(name: str, **fields: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": {names.GPU_PERCENT: "25"}}}
    return {"metadata": {"name": name}, "spec": {"containers": [container], **fields}}


async def created(client: KubeClient, namespace: str, document: dict[str, Any]) -> Any:
    return msgspec.json.decode(await client.post(PODS.path(namespace), document))


async def ours(client: KubeClient, namespace: str) -> bool:
    """An API server takes a moment until policies count."""
    with contextlib.suppress(KubeError):
        made = await created(client, namespace, pod("probe"))
        await client.delete(PODS.path(namespace, "probe"), {"gracePeriodSeconds": 0})
        return bool(made["spec"]["schedulerName"] == names.SCHEDULER)
    return False


@pytest.mark.usefixtures("admitting")
async def test_pods_that_ask_for_parts_go_to_our_scheduler(client: KubeClient, namespace: str) -> None:
    await eventually(lambda: ours(client, namespace), "what changes pods is in force")
    value = {"fieldPath": f"metadata.annotations['{names.LEASE_ID}']"}
    asked = pod("a")
    asked["spec"]["containers"][0]["env"] = [{"name": "A", "value": "1"}]
    asked["spec"]["containers"].append({"name": "beside", "image": "none"})
    made = await created(client, namespace, asked)
    for container in made["spec"]["containers"]:
        variables = {each["name"]: each for each in container["env"]}
        field = variables[LEASE_VARIABLE]["valueFrom"]["fieldRef"]
        assert {"fieldPath": field["fieldPath"]} == value
    assert made["spec"]["containers"][0]["env"][0] == {"name": "A", "value": "1"}
    other = await created(client, namespace, pod("b", schedulerName="volcano"))
    assert other["spec"]["schedulerName"] == "volcano"
    plain = await created(
        client, namespace, {"metadata": {"name": "c"}, "spec": {"containers": [{"name": "m", "image": "n"}]}}
    )
    assert plain["spec"]["schedulerName"] == "default-scheduler"
    assert "env" not in plain["spec"]["containers"][0]


@pytest.mark.usefixtures("admitting")
async def test_nobody_else_writes_assignments(client: KubeClient, namespace: str) -> None:
    await created(client, namespace, pod("a", schedulerName="volcano"))
    claim = {"metadata": {"name": "a"}, "spec": {"devices": {}}}
    await client.post(resources.RESOURCE_CLAIMS.path(namespace), claim)
    forged = {"metadata": {"annotations": {names.LEASE_ID: "l-1"}}}

    async def denied(path: str) -> bool:
        try:
            await client.patch(path, forged)
        except KubeForbidden:
            return True
        with contextlib.suppress(KubeForbidden):  # it came into force in between
            await client.patch(path, {"metadata": {"annotations": {names.LEASE_ID: None}}})
        return False

    for path in (PODS.path(namespace, "a"), resources.RESOURCE_CLAIMS.path(namespace, "a")):
        await eventually(lambda path=path: denied(path), "the policy is in force")  # type: ignore[misc]
        await client.patch(path, {"metadata": {"annotations": {"mine": "1"}}})
    with pytest.raises(KubeForbidden):
        await client.patch(PODS.path(namespace, "a", "status"), forged)
    await client.delete(resources.RESOURCE_CLAIMS.path(namespace, "a"))
    await client.delete(PODS.path(namespace, "a"), {"gracePeriodSeconds": 0})
