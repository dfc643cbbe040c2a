"""HorizontalPodAutoscalers and ScaledObjects: how ours are written, and which others scale the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aliquot.common.quantity import format_milli
from aliquot.kube.core.autoscaling.grammar import AutoscaleError, Goal, Scaled

HPA: Final = "HorizontalPodAutoscaler"
SCALED_OBJECT: Final = "ScaledObject"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "aliquot"
_REPLICAS_MAX: Final = 10_000
_PODS: Final[Mapping[str, str]] = {
    "Deployment": "[a-z0-9]+-[a-z0-9]{5}",
    "StatefulSet": "[0-9]+",
    "ReplicaSet": "[a-z0-9]{5}",
}
"""How names of pods go on after that of what is scaled."""

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AutoscalerSpec:
    """What is to be written."""

    namespace: str
    name: str
    scaled: Scaled
    fewest: int
    most: int
    goals: tuple[Goal, ...]
    choose: Mapping[str, str] = field(default_factory=dict)
    """Of what waits: only of this queue, this tenant."""
    keda: bool = False
    prometheus: str = ""
    """Of KEDA: the Prometheus that it asks..."""
    auth: str = ""
    """...and the ClusterTriggerAuthentication that it shows there; empty: none."""

    @property
    def kind(self) -> str:
        """Of the object."""
        return SCALED_OBJECT if self.keda else HPA


def check(asked: AutoscalerSpec) -> None:
    """Raises AutoscaleError for what the API server would take and nothing would come of."""
    if not 0 <= asked.fewest <= asked.most <= _REPLICAS_MAX or not asked.most:
        raise AutoscaleError(f"from {asked.fewest} to {asked.most} replicas", hint="--min is at most --max")
    signals = [goal for goal in asked.goals if goal.signal]
    if asked.fewest == 0 and not asked.keda:
        raise AutoscaleError("an HPA keeps one replica at least", hint="--min 1, or --keda")
    if asked.fewest == 0 and not signals:
        raise AutoscaleError(
            "from no replica nothing leads back: there are no pods then to be measured",
            hint="--min 1, or a target for what waits, such as queue:1",
        )
    if asked.choose and not signals:
        raise AutoscaleError(f"{', '.join(asked.choose)} choose among what waits", hint="add a target such as queue:4")


def document(asked: AutoscalerSpec) -> Document:
    """The object. Raises AutoscaleError."""
    check(asked)
    labels = {"app": asked.scaled.name[:63].rstrip("-."), MANAGED_BY: OURS}
    reference = {"apiVersion": asked.scaled.version, "kind": asked.scaled.kind, "name": asked.scaled.name}
    meta = {"name": asked.name, "namespace": asked.namespace, "labels": labels}
    if asked.keda:
        spec: Document = {
            "scaleTargetRef": reference,
            "minReplicaCount": asked.fewest,
            "maxReplicaCount": asked.most,
            "triggers": [_trigger(asked, goal) for goal in asked.goals],
        }
        return {"apiVersion": "keda.sh/v1alpha1", "kind": SCALED_OBJECT, "metadata": meta, "spec": spec}
    spec = {
        "scaleTargetRef": reference,
        "minReplicas": asked.fewest,
        "maxReplicas": asked.most,
        "metrics": [_metric(asked, goal) for goal in asked.goals],
    }
    return {"apiVersion": "autoscaling/v2", "kind": HPA, "metadata": meta, "spec": spec}


def _metric(asked: AutoscalerSpec, goal: Goal) -> Document:
    if goal.resource:
        target: Document = {"type": "Utilization", "averageUtilization": goal.amount}
        return {"type": "Resource", "resource": {"name": goal.metric, "target": target}}
    if not goal.signal:
        target = {"type": "AverageValue", "averageValue": quantity(goal.amount)}
        return {"type": "Pods", "pods": {"metric": {"name": goal.metric}, "target": target}}
    metric: Document = {"name": goal.metric}
    if asked.choose:
        metric["selector"] = {"matchLabels": dict(asked.choose)}
    target = {"type": "AverageValue", "averageValue": quantity(goal.amount)}
    return {"type": "External", "external": {"metric": metric, "target": target}}


def quantity(milli: int) -> str:
    """A value in thousandths as Kubernetes writes it."""
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(whole)


def _trigger(asked: AutoscalerSpec, goal: Goal) -> Document:
    if goal.resource:
        return {"type": goal.metric, "metricType": "Utilization", "metadata": {"value": str(goal.amount)}}
    if goal.signal:
        chosen = ",".join(f"{name}={json.dumps(value)}" for name, value in asked.choose.items())
        query = f"sum({goal.metric}{{{chosen}}})"
    else:
        pods = f"{re.escape(asked.scaled.name)}-{_PODS[asked.scaled.kind]}"
        # The mean, as a value of its own: a pod of which nothing is known counts as the others.
        query = f"avg({goal.metric}{{namespace={json.dumps(asked.namespace)},pod=~{json.dumps(pods)}}})"
    found: Document = {
        "type": "prometheus",
        "metricType": "AverageValue" if goal.signal else "Value",
        "metadata": {
            "serverAddress": asked.prometheus,
            "query": query,
            "threshold": format_milli(goal.amount),
            # Where nothing is known replicas stay as they are: it is not zero.
            "ignoreNullValues": "false",
        },
    }
    if asked.auth:
        found["authenticationRef"] = {"kind": "ClusterTriggerAuthentication", "name": asked.auth}
    return found


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """One that there is."""

    kind: str
    namespace: str
    name: str
    scaled: tuple[str, str]
    """Kind and name of what it scales."""
    ours: bool
    made_by: str = ""
    """Of an HPA: the ScaledObject that it belongs to."""

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def autoscaler(kind: str, found: Mapping[str, Any]) -> Autoscaler:
    """From the object."""
    meta, reference = found["metadata"], found["spec"].get("scaleTargetRef") or {}
    owners = (one["name"] for one in meta.get("ownerReferences") or () if one.get("kind") == SCALED_OBJECT)
    return Autoscaler(
        kind,
        meta.get("namespace", ""),
        meta["name"],
        # A ScaledObject's is a Deployment where it does not say.
        (reference.get("kind", "Deployment"), reference.get("name", "")),
        (meta.get("labels") or {}).get(MANAGED_BY) == OURS,
        next(owners, "") if kind == HPA else "",
    )


def scaling(scaled: Scaled, several: Iterable[Autoscaler]) -> list[Autoscaler]:
    """Who scales it: of a ScaledObject and its own HPA only the first."""
    return [one for one in several if one.scaled == (scaled.kind, scaled.name) and not one.made_by]


def refuse_fights(asked: AutoscalerSpec, several: Iterable[Autoscaler]) -> None:
    """Raises AutoscaleError, with both names, where two would scale the same, or another's would be written over."""
    mine = f"{asked.kind} {asked.namespace}/{asked.name}"
    for one in several:
        itself = (one.kind, one.name) == (asked.kind, asked.name)
        same = one.scaled == (asked.scaled.kind, asked.scaled.name)
        if itself and not one.ours:
            raise AutoscaleError(f"{one} is there, and not ours", hint="name ours by --name, or delete that one")
        if itself and not same:
            raise AutoscaleError(
                f"{one} scales {'/'.join(one.scaled)}, not {asked.scaled}", hint="name the new one by --name"
            )
        if same and not itself and not one.made_by:
            raise AutoscaleError(
                f"{one} scales {asked.scaled} already: {mine} would fight with it",
                hint=f"delete the one: kubectl -n {one.namespace} delete {one.kind.lower()} {one.name}",
            )
