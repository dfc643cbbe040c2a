"""Objects for tests, put into the fake API server's store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.kube.core import names
from aliquot.kube.core.admission import AdmittedPod, patch_of
from tests.kube.fake_api import pods
from tests.kube.fake_api.server import FakeApi
from tests.kube.fake_api.store import Object
from tests.kube.fake_api.webhooks import patched


def pod_document(
    name: str,
    limits: Mapping[str, int] | None = None,
    *,
    priority_class: str = "",
    spec: Mapping[str, Any] | None = None,
    **meta: Any,
) -> Object:
    """A pod of ours."""
    container = {"name": "main", "image": "none", "resources": {"limits": dict(limits or {})}}
    whole = {"schedulerName": names.SCHEDULER, "containers": [container], **(spec or {})}
    if priority_class:
        whole["priorityClassName"] = priority_class
    return {"metadata": {"name": name, **meta}, "spec": whole}


def admitted(item: Object, scheduler: str = names.SCHEDULER) -> Object:
    """A pod as the webhook lets it in; one that it would refuse is as it was, as if it had slipped through."""
    try:
        return patched(item, patch_of(msgspec.convert(item, AdmittedPod), scheduler))
    except AliquotError:
        return item


def make_pod(
    api: FakeApi,
    name: str,
    limits: Mapping[str, int] | None = None,
    *,
    namespace: str = "default",
    admit: bool = True,
    **fields: Any,
) -> Object:
    """As its author would, by the API's rules. Without `admit` the webhook does not see it."""
    item = pod_document(name, limits, **fields)
    item = admitted(item) if admit else item
    pods.check_pod(api.pods, item)
    pods.default_pod(api.store, item)
    return api.store.create(api.pods, namespace, item)


def make_node(
    api: FakeApi,
    name: str,
    offers: Mapping[str, int] | None = None,
    *,
    info: Mapping[str, str] | None = None,
    **meta: Any,
) -> Object:
    """A node without anything on it; what it offers, where it says so, and what it is, where `info` says so."""
    status: Object = {"allocatable": {key: str(value) for key, value in offers.items()}} if offers else {}
    if info:
        status["nodeInfo"] = dict(info)
    return api.store.create(api.store.kind("v1", "nodes"), "", {"metadata": {"name": name, **meta}, "status": status})


def make_namespace(api: FakeApi, name: str, **labels: str) -> Object:
    """A namespace with labels."""
    item = {"metadata": {"name": name, "labels": labels}}
    return api.store.create(api.store.kind("v1", "namespaces"), "", item)


def set_phase(api: FakeApi, name: str, phase: str, namespace: str = "default") -> None:
    """As its kubelet would."""
    old = api.pods.items[namespace, name]
    item = {**old, "status": {**old["status"], "phase": phase}, "metadata": {**old["metadata"]}}
    api.store.write(api.pods, (namespace, name), item, "MODIFIED")


def delete_pod(api: FakeApi, name: str, namespace: str = "default") -> None:
    """Gone, kubelet and all."""
    api.store.remove(api.pods, (namespace, name))
