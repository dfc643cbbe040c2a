"""The few objects that we read one by one and write: bindings, conditions, events, evictions."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from aliquot.kube.api import resources
from aliquot.kube.api.client import STRATEGIC, KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeNotFound
from aliquot.kube.core.names import GANG
from aliquot.kube.core.shapes import RawMeta, RawPod

_EVENT_CHARS_MAX = 1024


class _Namespace(msgspec.Struct):
    metadata: RawMeta


class _Pods(msgspec.Struct):
    items: list[RawPod] | None = None


async def get_pod(client: KubeClient, namespace: str, name: str) -> RawPod | None:
    """As the API server has it now (a quorum read), or None. Raises KubeError."""
    return await client.find(resources.PODS.path(namespace, name), RawPod)


async def pods_with_label(client: KubeClient, namespace: str, gang: str) -> list[RawPod]:
    """The pods of a gang as the API server has them now. Raises KubeError."""
    params = {"labelSelector": f"{GANG}={gang}"}
    answer = await client.get(resources.PODS.path(namespace), params)
    return msgspec.json.decode(answer, type=_Pods).items or []


async def namespace_labels(client: KubeClient, namespace: str) -> Mapping[str, str]:
    """Raises KubeError."""
    found = msgspec.json.decode(await client.get(resources.NAMESPACES.path(name=namespace)), type=_Namespace)
    return found.metadata.labels or {}


async def bind(
    client: KubeClient, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]
) -> None:
    """Bind a pod, and give it annotations in the same write. Only this pod: not one made again by that name.

    Raises KubeConflict where it is bound already or is another, KubeNotFound, or another KubeError.
    """
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.post(resources.PODS.path(namespace, name, "binding"), binding)


async def patch_pod_condition(
    client: KubeClient, namespace: str, name: str, uid: str, condition: Mapping[str, Any]
) -> None:
    """Set one condition of a pod, by its type; no other is touched. Raises KubeError."""
    patch = {"metadata": {"uid": uid}, "status": {"conditions": [dict(condition)]}}
    await client.patch(resources.PODS.path(namespace, name, "status"), patch, STRATEGIC)


async def delete_pod(client: KubeClient, namespace: str, name: str, uid: str) -> bool:
    """Delete this pod with its own grace; False where it is gone or another. Raises KubeError."""
    try:
        await client.delete(resources.PODS.path(namespace, name), {"preconditions": {"uid": uid}})
    except (KubeNotFound, KubeConflict):
        return False
    return True


def now_text() -> str:
    """The time as objects have it."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Regarding:
    """What an event is about."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = "v1"


class Events:
    """Events for people (`kubectl describe`). The same about the same object is one event whose count rises.

    An event that can't be written is not an error of what it is about: it is dropped.
    """

    def __init__(self, client: KubeClient, component: str) -> None:
        self._client = client
        self._component = component

    async def tell(self, about: Regarding, reason: str, message: str, *, warning: bool = False) -> None:
        """Write one. Raises KubeError."""
        text = message[:_EVENT_CHARS_MAX]
        digest = hashlib.sha256(f"{about.uid}/{reason}/{text}".encode()).hexdigest()[:16]
        name = f"{about.name[:200]}.{digest}"
        now = now_text()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": about.namespace or "default"},
            "involvedObject": {
                "apiVersion": about.version,
                "kind": about.kind,
                "namespace": about.namespace,
                "name": about.name,
                "uid": about.uid,
            },
            "reason": reason,
            "message": text,
            "type": "Warning" if warning else "Normal",
            "source": {"component": self._component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        namespace = about.namespace or "default"
        try:
            await self._client.post(resources.EVENTS.path(namespace), event)
        except KubeConflict:
            path = resources.EVENTS.path(namespace, name)
            seen = msgspec.json.decode(await self._client.get(path))
            await self._client.patch(path, {"count": seen.get("count", 1) + 1, "lastTimestamp": now})
