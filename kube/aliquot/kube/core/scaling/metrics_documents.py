"""The documents of custom.metrics.k8s.io and external.metrics.k8s.io, and their paths.

Of the first there are two versions, which differ in where the metric's name stands. Autoscalers ask
`…/namespaces/NS/pods/*/METRIC?labelSelector=…` of the one, and `…/namespaces/NS/METRIC?labelSelector=…` of the other.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from aliquot.kube.core.scaling.signals import Signal
from aliquot.kube.core.scaling.usage import POD_METRICS, Reading

CUSTOM: Final = "custom.metrics.k8s.io"
EXTERNAL: Final = "external.metrics.k8s.io"
VERSIONS: Final[Mapping[str, tuple[str, ...]]] = {CUSTOM: ("v1beta2", "v1beta1"), EXTERNAL: ("v1beta1",)}
"""Of each group, the preferred one first."""
ALL: Final = "*"
_POD_PARTS: Final = 5
_EXTERNAL_PARTS: Final = 3

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a path asks for. Without a metric it is discovery."""

    group: str = ""
    version: str = ""
    namespace: str = ""
    resource: str = ""
    """`pods` of the custom metrics."""
    name: str = ""
    """One pod's, or `*`."""
    metric: str = ""


def parse_path(path: str, served: Iterable[str]) -> Asked | None:
    """What is asked for below `/apis`; None: there is no such path. `path` is as it came, with its escapes."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    if parts[:1] != ["apis"] or len(parts) == 1:
        return Asked() if parts == ["apis"] else None
    group, rest = parts[1], parts[3:]
    if group not in served:
        return None
    if len(parts) == 2:
        return Asked(group)
    version = parts[2]
    if version not in VERSIONS[group]:
        return None
    if not rest:
        return Asked(group, version)
    if not all(rest) or rest[0] != "namespaces":
        return None
    if group == EXTERNAL and len(rest) == _EXTERNAL_PARTS:
        return Asked(group, version, rest[1], metric=rest[2])
    if group == CUSTOM and len(rest) == _POD_PARTS:
        return Asked(group, version, rest[1], rest[2], rest[3], rest[4])
    return None


def group_list(served: Iterable[str]) -> Document:
    """`/apis`."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(group) for group in served]}


def group_document(group: str) -> Document:
    """`/apis/GROUP`."""
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group)}


def _group(group: str) -> Document:
    versions = [{"groupVersion": f"{group}/{version}", "version": version} for version in VERSIONS[group]]
    return {"name": group, "versions": versions, "preferredVersion": versions[0]}


def resource_list(group: str, version: str) -> Document:
    """`/apis/GROUP/VERSION`: which metrics there are."""
    if group == CUSTOM:
        names, kind = [f"pods/{name}" for name in POD_METRICS], "MetricValueList"
    else:
        names, kind = [str(signal) for signal in Signal], "ExternalMetricValueList"
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group}/{version}",
        "resources": [
            {"name": name, "singularName": "", "namespaced": True, "kind": kind, "verbs": ["get"]} for name in names
        ],
    }


def pod_values(
    version: str, namespace: str, metric: str, readings: Iterable[tuple[str, Reading]], window_s: int
) -> Document:
    """Values of pods, by name."""
    items = []
    for name, reading in readings:
        described = {"kind": "Pod", "namespace": namespace, "name": name, "apiVersion": "/v1"}
        item: Document = {"describedObject": described}
        item |= {"metricName": metric} if version == "v1beta1" else {"metric": {"name": metric}}
        item |= {"timestamp": time_text(reading.seen_ms), "windowSeconds": window_s, "value": quantity(reading.milli)}
        items.append(item)
    return {"kind": "MetricValueList", "apiVersion": f"{CUSTOM}/{version}", "metadata": {}, "items": items}


def external_value(metric: str, labels: Mapping[str, str], milli: int, at_ms: int) -> Document:
    """One value: autoscalers add those of a list up, and the longest of two waits is not their sum."""
    item = {
        "metricName": metric,
        "metricLabels": dict(labels),
        "timestamp": time_text(at_ms),
        "value": quantity(milli),
    }
    return {"kind": "ExternalMetricValueList", "apiVersion": f"{EXTERNAL}/v1beta1", "metadata": {}, "items": [item]}


def failure(code: int, reason: str, message: str) -> Document:
    """A `Status`."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def openapi(served: Iterable[str]) -> Document:
    """A document of OpenAPI 2 that says which paths there are: what the API server puts together wants one."""
    paths: Document = {}
    answer = {"200": {"description": "OK", "schema": {"type": "object"}}}
    for group in served:
        for version in VERSIONS[group]:
            paths[f"/apis/{group}/{version}/"] = {
                "get": {
                    "operationId": f"get{group.partition('.')[0].capitalize()}Metrics{version.capitalize()}Resources",
                    "produces": ["application/json"],
                    "responses": answer,
                }
            }
    return {"swagger": "2.0", "info": {"title": "aliquot", "version": "v1beta1"}, "paths": paths, "definitions": {}}


def quantity(milli: int) -> str:
    """A value in thousandths as Kubernetes writes it."""
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(whole)


def time_text(at_ms: int) -> str:
    """As the API writes times."""
    return dt.datetime.fromtimestamp(at_ms // 1000, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
