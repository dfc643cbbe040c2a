"""What `aliquot autoscale` does with a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeConflict, KubeNotFound
from aliquot.kube.api.resources import Resource
from aliquot.kube.core.autoscaling.grammar import AutoscaleError, Scaled
from aliquot.kube.core.autoscaling.objects import (
    HPA,
    MANAGED_BY,
    OURS,
    SCALED_OBJECT,
    Autoscaler,
    AutoscalerSpec,
    Document,
    autoscaler,
    document,
    refuse_fights,
    scaling,
)
from aliquot.kube.core.autoscaling.reasons import Reason, reasons

_TRIES: Final = 4
_RESOURCES: Final[Mapping[str, Resource]] = {HPA: resources.AUTOSCALERS, SCALED_OBJECT: resources.SCALED_OBJECTS}


@dataclass(frozen=True, slots=True)
class Shown:
    """An autoscaler with how it stands."""

    autoscaler: Autoscaler
    fewest: int
    most: int
    now: int | None
    """Replicas; None: nobody has looked at it yet."""
    wanted: int | None
    last_scaled: str
    goals: tuple[str, ...]
    """Each with what is measured now: `container_gpu_usage 400m/600m`."""
    conditions: tuple[Mapping[str, str], ...]
    reasons: tuple[Reason, ...] = ()


async def _all(client: KubeClient, namespace: str) -> list[tuple[str, Document]]:
    """Every HPA and ScaledObject of a namespace (empty: of all). Raises KubeError."""
    found = []
    for kind, resource in _RESOURCES.items():
        several = await client.find(resource.path(namespace), dict[str, Any]) or {}  # none of them without KEDA
        found += [(kind, item) for item in several.get("items") or ()]
    return found


async def create(client: KubeClient, asked: AutoscalerSpec) -> str:
    """Write the object, in place where it is ours already; returns `created`, `changed` or `unchanged`.

    Raises AutoscaleError where somebody else scales the same, and KubeError.
    """
    wanted = document(asked)
    resource = _RESOURCES[asked.kind]
    for attempt in range(_TRIES):
        there = await _all(client, asked.namespace)
        refuse_fights(asked, [autoscaler(kind, item) for kind, item in there])
        old = next((item for kind, item in there if (kind, item["metadata"]["name"]) == (asked.kind, asked.name)), None)
        try:
            if old is None:
                await client.post(resource.path(asked.namespace), wanted)
                return "created"
            new = _changed(old, wanted)
            if new == old:
                return "unchanged"
            await client.put(resource.path(asked.namespace, asked.name), new)
        except KubeNotFound as error:
            raise _no_keda(asked, error) from error
        except KubeConflict:
            if attempt == _TRIES - 1:
                raise
            continue
        return "changed"
    raise AssertionError("the last try returns or raises")


def _no_keda(asked: AutoscalerSpec, error: KubeNotFound) -> AutoscaleError:
    if asked.keda:
        return AutoscaleError("this cluster has no ScaledObjects", hint="install KEDA, or leave out --keda")
    return AutoscaleError(error.message, hint=f"is there a namespace {asked.namespace}?")


def _changed(old: Document, wanted: Document) -> Document:
    """The object with our part of it as wanted; what others have set beside, such as `behavior`, stays."""
    labels = {**(old["metadata"].get("labels") or {}), **wanted["metadata"]["labels"]}
    return {
        **old,
        "metadata": {**old["metadata"], "labels": labels},
        "spec": {**old["spec"], **wanted["spec"]},
    }


async def delete(client: KubeClient, namespace: str, scaled: Scaled, name: str = "") -> list[Autoscaler]:
    """Remove ours; returns them. Raises AutoscaleError where there is none, or it is another's, and KubeError."""
    there = [autoscaler(kind, item) for kind, item in await _all(client, namespace)]
    found = [one for one in scaling(scaled, there) if not name or one.name == name]
    ours = [one for one in found if one.ours]
    if not ours:
        if found:
            one = found[0]
            hint = f"kubectl -n {namespace} delete {one.kind.lower()} {one.name}"
            raise AutoscaleError(f"{one} scales {scaled}, and is not ours", hint=hint)
        hint = f"all that are ours: kubectl get hpa,scaledobject -A -l {MANAGED_BY}={OURS}"
        raise AutoscaleError(f"nothing scales {scaled} in namespace {namespace}", hint=hint)
    for one in ours:
        try:
            await client.delete(_RESOURCES[one.kind].path(namespace, one.name))
        except KubeNotFound:
            continue
    return ours


async def status(client: KubeClient, namespace: str, scaled: Scaled) -> list[Shown]:
    """Whatever scales it, ours or not, with reasons. Raises KubeError, AutoscaleError where nothing does."""
    there = await _all(client, namespace)
    several = scaling(scaled, [autoscaler(kind, item) for kind, item in there])
    if not several:
        raise AutoscaleError(
            f"nothing scales {scaled} in namespace {namespace}",
            hint=f"aliquot autoscale create {scaled} --max 8 gpu:60%",
        )
    place = Resource(scaled.version, scaled.plural).path(namespace, scaled.name)
    exists = await client.find(place, dict[str, Any]) is not None
    found = []
    for kind, item in there:
        one = autoscaler(kind, item)
        if one not in several:
            continue
        hpa = _hpa_of(one, item, there)
        fights = [other for other in several if other != one]
        found.append(_shown(one, item, hpa, tuple(reasons(hpa, fights, scaled_there=exists))))
    return found


def _hpa_of(one: Autoscaler, item: Document, there: list[tuple[str, Document]]) -> Document | None:
    if one.kind == HPA:
        return item
    made = (
        other
        for kind, other in there
        if kind == HPA and (found := autoscaler(kind, other)).made_by == one.name and found.namespace == one.namespace
    )
    return next(made, None)


def _shown(one: Autoscaler, item: Document, hpa: Document | None, why: tuple[Reason, ...] = ()) -> Shown:
    spec, status_ = item["spec"], (hpa or {}).get("status") or {}
    fewest = spec.get("minReplicas", 1) if one.kind == HPA else spec.get("minReplicaCount", 0)
    most = spec["maxReplicas"] if one.kind == HPA else spec.get("maxReplicaCount", 100)
    measured = {_name(metric): _value(metric, "current") for metric in status_.get("currentMetrics") or ()}
    goals = tuple(
        f"{_name(metric)} {measured.get(_name(metric), '?')}/{_value(metric, 'target')}"
        for metric in ((hpa or {}).get("spec") or {}).get("metrics") or ()
    )
    return Shown(
        one,
        fewest,
        most,
        status_.get("currentReplicas"),
        status_.get("desiredReplicas"),
        status_.get("lastScaleTime") or "",
        goals,
        tuple(status_.get("conditions") or ()),
        why,
    )


def _inner(metric: Mapping[str, Any]) -> Mapping[str, Any]:
    kind = str(metric.get("type", ""))
    return metric.get(kind[:1].lower() + kind[1:]) or {}


def _name(metric: Mapping[str, Any]) -> str:
    inner = _inner(metric)
    return str(inner.get("name") or (inner.get("metric") or {}).get("name", ""))


def _value(metric: Mapping[str, Any], key: str) -> str:
    amount = _inner(metric).get(key) or {}
    if amount.get("averageUtilization") is not None:
        return f"{amount['averageUtilization']}%"
    return str(amount.get("averageValue") or amount.get("value") or "?")
