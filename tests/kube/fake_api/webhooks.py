"""Mutating webhooks, as an API server calls them: what matches is sent over TLS, and the JSON patch applied."""

from __future__ import annotations

import base64
import ssl
import uuid
from typing import Any

import aiohttp
import msgspec

from tests.kube.fake_api.policies import VERSION, evaluate
from tests.kube.fake_api.store import ApiFailure, Object, Store


async def mutate(store: Store, namespace: str, pod: Object) -> Object:
    """The pod as the webhooks make it. Raises ApiFailure where one that must answer does not."""
    for configuration in store.kind(VERSION, "mutatingwebhookconfigurations").items.values():
        for webhook in configuration["webhooks"]:
            if not _chosen(store, webhook, namespace, pod):
                continue
            if not all(evaluate(one["expression"], object=pod) for one in webhook.get("matchConditions", ())):
                continue
            try:
                pod = await _ask(webhook, namespace, pod)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                if webhook["failurePolicy"] == "Fail":
                    text = f'failed calling webhook "{webhook["name"]}": {error}'
                    raise ApiFailure(500, "InternalError", text) from error
    return pod


def _chosen(store: Store, webhook: Any, namespace: str, pod: Object) -> bool:
    excluded = webhook.get("namespaceSelector", {}).get("matchExpressions", ())
    if any(namespace in each["values"] for each in excluded if each["operator"] == "NotIn"):
        return False
    theirs = store.kind("v1", "namespaces").items.get(("", namespace)) or {"metadata": {}}
    return all(
        webhook.get(selector, {}).get("matchLabels", {}).items() <= (item["metadata"].get("labels") or {}).items()
        for selector, item in (("namespaceSelector", theirs), ("objectSelector", pod))
    )


async def _ask(webhook: Any, namespace: str, pod: Object) -> Object:
    config = webhook["clientConfig"]
    context = ssl.create_default_context(cadata=base64.b64decode(config.get("caBundle", "")).decode() or None)
    request = {"uid": str(uuid.uuid4()), "operation": "CREATE", "namespace": namespace, "object": pod}
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    url, name = config.get("url"), None
    if url is None:
        # Services are on this machine here; what is asked for is the Service's name.
        service = config["service"]
        url = f"https://127.0.0.1:{service['port']}{service['path']}"
        name = f"{service['name']}.{service['namespace']}.svc"
    timeout = aiohttp.ClientTimeout(total=webhook["timeoutSeconds"])
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.post(url, data=msgspec.json.encode(review), ssl=context, server_hostname=name) as response,
    ):
        answer = msgspec.json.decode(await response.read())["response"]
    assert answer["uid"] == request["uid"]
    if not answer["allowed"]:
        status = answer["status"]
        text = f'admission webhook "{webhook["name"]}" denied the request: {status["message"]}'
        raise ApiFailure(status["code"], status["reason"], text)
    if "patch" not in answer:
        return pod
    assert answer["patchType"] == "JSONPatch"
    return patched(pod, msgspec.json.decode(base64.b64decode(answer["patch"])))


def patched(item: Object, patch: list[dict[str, Any]]) -> Object:
    """A JSON patch of additions and removals."""
    made: Any = msgspec.json.decode(msgspec.json.encode(item))
    for step in patch:
        assert step["op"] in ("add", "remove"), step
        *path, last = (name.replace("~1", "/").replace("~0", "~") for name in step["path"].strip("/").split("/"))
        target = made
        for name in path:
            target = target[int(name)] if isinstance(target, list) else target[name]
        if step["op"] == "remove":
            del target[last]
        elif isinstance(target, list):
            target.insert(len(target) if last == "-" else int(last), step["value"])
        else:
            target[last] = step["value"]
    found: Object = made
    return found
