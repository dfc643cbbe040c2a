"""Stands in for kube-controller-manager: Deployments that make pods, and the controller of HPAs.

As the real one does: pods' metrics by the target's selector through the API server, a tenth of difference left alone,
pods of which nothing is known counted against scaling, the most of several metrics wanted.
"""

from __future__ import annotations

import math
import uuid
from typing import Any
from urllib.parse import quote

import msgspec

from aliquot.common.quantity import parse_milli
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeError
from aliquot.kube.core import names
from aliquot.kube.core.scaling.metrics_documents import CUSTOM, EXTERNAL
from tests.coordinator.pool import eventually
from tests.kube.fake_api.store import Object
from tests.kube.making import delete_pod
from tests.kube.scaling.place import Place

TOKEN = "hpa-token"
_TOLERANCE = 0.1
_HASH = "abc"


def make_deployment(place: Place, name: str, replicas: int, percent: int) -> None:
    """Of pods with so much of a card each."""
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": {names.GPU_PERCENT: percent}}}]},
    }
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
    kind = place.cluster.api.store.kind("apps/v1", "deployments")
    place.cluster.api.store.create(kind, "default", {"metadata": {"name": name}, "spec": spec})


class Controllers:
    """See the module's docstring. Nothing happens but by `once`."""

    def __init__(self, place: Place) -> None:
        place.cluster.api.tokens[TOKEN] = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
        self._place = place
        self._store = place.cluster.api.store
        self._deployments = self._store.kind("apps/v1", "deployments")
        self._hpas = self._store.kind("autoscaling/v2", "horizontalpodautoscalers")

    async def pods(self, name: str) -> list[str]:
        """A Deployment's are made so many as it says; returns those that run, the oldest first."""
        item = self._deployments.items["default", name]
        wanted, percent = item["spec"]["replicas"], self._percent(item)
        there = self._pods(name)
        for pod in there[wanted:]:
            delete_pod(self._place.cluster.api, pod)
        for _ in range(wanted - len(there)):
            await self._place.pod(f"{name}-{_HASH}-{uuid.uuid4().hex[:5]}", percent, owner=name)
        await eventually(lambda: len(self._pods(name)) == wanted, f"{wanted} pods of {name}")
        return self._pods(name)

    def replicas(self, name: str) -> int:
        """How many a Deployment is to have."""
        return int(self._deployments.items["default", name]["spec"]["replicas"])

    def _pods(self, name: str) -> list[str]:
        items = [item for (_, _), item in self._place.cluster.api.pods.items.items()]
        found = [item for item in items if (item["metadata"].get("labels") or {}).get("app") == name]
        return [
            one["metadata"]["name"] for one in sorted(found, key=lambda one: int(one["metadata"]["resourceVersion"]))
        ]

    @staticmethod
    def _percent(item: Object) -> int:
        container = item["spec"]["template"]["spec"]["containers"][0]
        return int(container["resources"]["limits"][names.GPU_PERCENT])

    async def once(self) -> None:
        """Every HPA is looked at, and what it scales changed."""
        async with KubeClient(Cluster(self._place.cluster.api.url, lambda: TOKEN), timeout_s=20.0) as client:
            for key, hpa in list(self._hpas.items.items()):
                await self._scale(client, key, hpa)

    async def _scale(self, client: KubeClient, key: tuple[str, str], hpa: Object) -> None:
        spec = hpa["spec"]
        name = spec["scaleTargetRef"]["name"]
        now = self.replicas(name)
        wanted, current, why = [], [], ""
        for metric in spec["metrics"]:
            try:
                replicas, value = await self._metric(client, key[0], name, metric, now)
            except KubeError as error:
                why = error.message
                continue
            wanted.append(replicas)
            current.append(value)
        condition = {"type": "ScalingActive", "status": "True", "reason": "ValidMetricFound", "message": ""}
        desired = now
        if wanted:
            # What one metric can't say keeps the others from scaling down.
            desired = max(*wanted, now) if why else max(wanted)
            desired = min(max(desired, spec["minReplicas"]), spec["maxReplicas"])
        else:
            condition |= {"status": "False", "reason": "FailedGetPodsMetric", "message": why}
        status = {
            "currentReplicas": now,
            "desiredReplicas": desired,
            "currentMetrics": current,
            "conditions": [condition],
        }
        if wanted and max(wanted) > spec["maxReplicas"]:
            limited = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas", "message": ""}
            status["conditions"] = [condition, limited]
        self._write(self._hpas, key, {**hpa, "status": status})
        item = self._deployments.items[key[0], name]
        self._write(self._deployments, (key[0], name), {**item, "spec": {**item["spec"], "replicas": desired}})

    async def _metric(
        self, client: KubeClient, namespace: str, name: str, metric: Any, now: int
    ) -> tuple[int, dict[str, Any]]:
        if metric["type"] == "External":
            return await self._external(client, namespace, metric["external"], now)
        wanted = metric["pods"]
        target = parse_milli(wanted["target"]["averageValue"])
        path = f"/apis/{CUSTOM}/v1beta2/namespaces/{namespace}/pods/{quote('*', safe='')}/{wanted['metric']['name']}"
        found = msgspec.json.decode(await client.get(path, {"labelSelector": f"app={name}"}))["items"]
        pods = self._pods(name)
        values = {item["describedObject"]["name"]: parse_milli(item["value"]) for item in found}
        values = {pod: value for pod, value in values.items() if pod in pods}
        if not values:
            raise KubeError("no metrics returned from custom metrics API")
        ratio = sum(values.values()) / len(values) / target
        missing = [pod for pod in pods if pod not in values]
        if missing:
            fill = target if ratio < 1 else 0
            filled = (sum(values.values()) + fill * len(missing)) / len(pods) / target
            ratio = 1.0 if (filled - 1) * (ratio - 1) <= 0 else filled
        value = {"averageValue": f"{round(sum(values.values()) / len(values))}m"}
        shown = {"type": "Pods", "pods": {"metric": wanted["metric"], "current": value}}
        if abs(ratio - 1) <= _TOLERANCE:
            return now, shown
        return math.ceil(ratio * len(pods)), shown

    async def _external(self, client: KubeClient, namespace: str, wanted: Any, now: int) -> tuple[int, dict[str, Any]]:
        labels = wanted["metric"].get("selector", {}).get("matchLabels", {})
        path = f"/apis/{EXTERNAL}/v1beta1/namespaces/{namespace}/{wanted['metric']['name']}"
        params = {"labelSelector": ",".join(f"{key}={value}" for key, value in labels.items())}
        found = msgspec.json.decode(await client.get(path, params))["items"]
        value = sum(parse_milli(item["value"]) for item in found)
        shown = {"type": "External", "external": {"metric": wanted["metric"], "current": {"value": f"{value}m"}}}
        target = wanted["target"]
        if target["type"] == "Value":
            ratio = value / parse_milli(target["value"])
            return (now if abs(ratio - 1) <= _TOLERANCE else math.ceil(ratio * now)), shown
        ratio = value / (parse_milli(target["averageValue"]) * now)
        return (now if abs(ratio - 1) <= _TOLERANCE else math.ceil(value / parse_milli(target["averageValue"]))), shown

    def _write(self, kind: Any, key: tuple[str, str], item: Object) -> None:
        self._store.write(kind, key, {**item, "metadata": {**item["metadata"]}}, "MODIFIED")
