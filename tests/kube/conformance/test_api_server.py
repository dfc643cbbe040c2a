"""What we count on from an API server. Run against the fake one in CI, and a real one where KUBECONFIG names it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from aliquot.kube.api import objects, resources
from aliquot.kube.api.client import MERGE, KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeExpired, KubeForbidden, KubeNotFound, KubeRefused
from aliquot.kube.core import names
from tests.coordinator.pool import eventually

PODS = resources.PODS
CONFIG_MAPS = resources.Resource("v1", "configmaps")
NODE = "no-such-node"


def pod(name: str, *, limits: dict[str, str] | None = None, **meta: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"limits": limits or {}}}
    return {
        "metadata": {"name": name, **meta},
        "spec": {"schedulerName": names.SCHEDULER, "containers": [container]},
    }


async def made(client: KubeClient, namespace: str, name: str, **kwargs: Any) -> Any:
    return msgspec.json.decode(await client.post(PODS.path(namespace), pod(name, **kwargs)))


async def test_objects_have_uids_and_versions_and_names_are_taken_once(client: KubeClient, namespace: str) -> None:
    first = await made(client, namespace, "a")
    assert first["metadata"]["uid"]
    with pytest.raises(KubeConflict) as caught:
        await made(client, namespace, "a")
    assert caught.value.stated_reason == "AlreadyExists"
    second = await made(client, namespace, "b")
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    with pytest.raises(KubeNotFound):
        await client.get(PODS.path(namespace, "none"))


async def test_parts_of_extended_resources_are_refused(client: KubeClient, namespace: str) -> None:
    with pytest.raises(KubeRefused) as caught:
        await made(client, namespace, "a", limits={names.GPU_PERCENT: "0.5"})
    assert caught.value.status == 422
    found = await made(client, namespace, "b", limits={names.GPU_PERCENT: "25"})
    assert found["spec"]["containers"][0]["resources"]["requests"] == {names.GPU_PERCENT: "25"}


async def test_a_quota_counts_requests_of_extended_resources(client: KubeClient, namespace: str) -> None:
    quotas = resources.Resource("v1", "resourcequotas")
    resource = f"requests.{names.GPU_PERCENT}"
    quota = {"metadata": {"name": "gpus"}, "spec": {"hard": {resource: "30"}}}
    await client.post(quotas.path(namespace), quota)

    async def counted() -> bool:  # until then a real one refuses every pod
        return b'"status":{"hard":{' in await client.get(quotas.path(namespace, "gpus"))

    await eventually(counted, "its controller")
    await made(client, namespace, "a", limits={names.GPU_PERCENT: "25"})
    await made(client, namespace, "none")
    text = f"exceeded quota: gpus, requested: {resource}=25, used: {resource}=25, limited: {resource}=30"
    for dry_run in (True, False):
        with pytest.raises(KubeForbidden, match=text) as caught:
            await client.post(PODS.path(namespace), pod("b", limits={names.GPU_PERCENT: "25"}), dry_run=dry_run)
        assert (caught.value.status, caught.value.stated_reason) == (403, "Forbidden")


async def test_a_replace_counts_only_at_the_version_that_was_read(client: KubeClient, namespace: str) -> None:
    path = CONFIG_MAPS.path(namespace, "c")
    await client.post(CONFIG_MAPS.path(namespace), {"metadata": {"name": "c"}, "data": {"a": "1"}})
    read = msgspec.json.decode(await client.get(path))
    await client.put(path, {**read, "data": {"a": "2"}})
    with pytest.raises(KubeConflict) as caught:
        await client.put(path, {**read, "data": {"a": "3"}})
    assert caught.value.stated_reason == "Conflict"
    assert msgspec.json.decode(await client.get(path))["data"] == {"a": "2"}


async def test_annotations_of_a_binding_arrive_with_the_node(client: KubeClient, namespace: str) -> None:
    meta = (await made(client, namespace, "a", annotations={"mine": "1"}))["metadata"]
    with pytest.raises(KubeConflict):
        await objects.bind(client, namespace, "a", "another-uid", NODE, {})
    await objects.bind(client, namespace, "a", meta["uid"], NODE, {names.LEASE_ID: "l-1"})
    bound = msgspec.json.decode(await client.get(PODS.path(namespace, "a")))
    assert bound["spec"]["nodeName"] == NODE
    assert bound["metadata"]["annotations"] == {"mine": "1", names.LEASE_ID: "l-1"}
    with pytest.raises(KubeConflict):
        await objects.bind(client, namespace, "a", meta["uid"], NODE, {names.LEASE_ID: "l-2"})
    assert (await client.get(PODS.path(namespace, "a"))).count(b"l-2") == 0
    await client.delete(PODS.path(namespace, "a"), {"gracePeriodSeconds": 0})


async def test_a_pod_is_bound_by_its_binding_alone(client: KubeClient, namespace: str) -> None:
    await made(client, namespace, "a")
    with pytest.raises(KubeRefused):
        await client.patch(PODS.path(namespace, "a"), {"spec": {"nodeName": NODE}}, MERGE)


async def test_conditions_are_set_one_by_one(client: KubeClient, namespace: str) -> None:
    uid = (await made(client, namespace, "a"))["metadata"]["uid"]
    for name in ("aliquot.dev/A", "aliquot.dev/B", "aliquot.dev/A"):
        await objects.patch_pod_condition(client, namespace, "a", uid, {"type": name, "status": "True"})
    status = msgspec.json.decode(await client.get(PODS.path(namespace, "a")))["status"]
    ours = [condition["type"] for condition in status["conditions"] if condition["type"].startswith("aliquot")]
    assert sorted(ours) == ["aliquot.dev/A", "aliquot.dev/B"]


async def test_only_the_pod_that_was_meant_is_deleted(client: KubeClient, namespace: str) -> None:
    uid = (await made(client, namespace, "a"))["metadata"]["uid"]
    assert not await objects.delete_pod(client, namespace, "a", "another-uid")
    assert await objects.get_pod(client, namespace, "a") is not None
    assert await objects.delete_pod(client, namespace, "a", uid)
    assert await objects.get_pod(client, namespace, "a") is None
    assert not await objects.delete_pod(client, namespace, "a", uid)


async def test_lists_come_in_pages_at_one_version(client: KubeClient, namespace: str) -> None:
    for number in range(5):
        await made(client, namespace, f"p{number}", labels={"odd": str(number % 2)})
    found, token = [], ""
    while True:
        params = {"limit": "2", **({"continue": token} if token else {})}
        page = msgspec.json.decode(await client.get(PODS.path(namespace), params))
        found += [item["metadata"]["name"] for item in page["items"]]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        assert len(page["items"]) == 2
    assert found == [f"p{number}" for number in range(5)]
    chosen = msgspec.json.decode(await client.get(PODS.path(namespace), {"labelSelector": "odd in (1), !even"}))
    assert [item["metadata"]["name"] for item in chosen["items"]] == ["p1", "p3"]
    for selector, count in (
        (f"spec.schedulerName={names.SCHEDULER}", 5),
        ("spec.nodeName!=", 0),
        ("status.phase=Running", 0),
    ):
        answer = msgspec.json.decode(await client.get(PODS.path(namespace), {"fieldSelector": selector}))
        assert len(answer["items"] or ()) == count, selector


async def test_a_watch_misses_nothing_after_its_version(client: KubeClient, namespace: str) -> None:
    await made(client, namespace, "before")
    since = msgspec.json.decode(await client.get(PODS.path(namespace)))["metadata"]["resourceVersion"]
    uid = (await made(client, namespace, "a"))["metadata"]["uid"]
    await objects.bind(client, namespace, "a", uid, NODE, {})
    await client.delete(PODS.path(namespace, "a"), {"gracePeriodSeconds": 0})
    params = {"watch": "true", "resourceVersion": since, "timeoutSeconds": "30"}
    seen: list[tuple[str, str]] = []
    stream = client.lines(PODS.path(namespace), params, read_timeout_s=30)
    async for line in stream:
        event = msgspec.json.decode(line)
        seen.append((event["type"], event["object"]["metadata"]["name"]))
        if event["type"] == "DELETED":
            break
    await stream.aclose()
    assert (seen[0], seen[-1]) == (("ADDED", "a"), ("DELETED", "a"))
    assert {name for _, name in seen} == {"a"}


async def test_what_leaves_a_selector_is_deleted_to_its_watch(client: KubeClient, namespace: str) -> None:
    since = msgspec.json.decode(await client.get(PODS.path(namespace)))["metadata"]["resourceVersion"]
    uid = (await made(client, namespace, "a"))["metadata"]["uid"]
    await objects.bind(client, namespace, "a", uid, NODE, {})
    params = {"watch": "true", "resourceVersion": since, "timeoutSeconds": "30", "fieldSelector": "spec.nodeName="}
    stream = client.lines(PODS.path(namespace), params, read_timeout_s=30)
    seen = []
    async for line in stream:
        seen.append(msgspec.json.decode(line)["type"])
        if seen[-1] == "DELETED":
            break
    await stream.aclose()
    assert seen[0] == "ADDED"
    await client.delete(PODS.path(namespace, "a"), {"gracePeriodSeconds": 0})


async def test_an_old_version_is_no_longer_kept(client: KubeClient, namespace: str) -> None:
    await made(client, namespace, "a")
    if client.cluster.url.startswith("https"):
        pytest.skip("a real API server forgets after five minutes")
    params = {"watch": "true", "resourceVersion": "1", "timeoutSeconds": "5"}
    kinds = []
    try:
        async for line in client.lines(PODS.path(namespace), params, read_timeout_s=10):
            kinds.append(msgspec.json.decode(line)["type"])
            break
    except KubeExpired:
        kinds.append("ERROR")
    assert kinds in (["ERROR"], ["ADDED"])


async def test_events_count(client: KubeClient, namespace: str) -> None:
    uid = (await made(client, namespace, "a"))["metadata"]["uid"]
    events = objects.Events(client, "aliquot-test")
    about = objects.Regarding("Pod", namespace, "a", uid)
    for _ in range(3):
        await events.tell(about, "Waiting", "no capacity", warning=True)
    await events.tell(about, "Waiting", "another reason")
    found = msgspec.json.decode(await client.get(resources.EVENTS.path(namespace)))["items"]
    ours = {event["message"]: event["count"] for event in found if event["source"].get("component") == "aliquot-test"}
    assert ours == {"no capacity": 3, "another reason": 1}
