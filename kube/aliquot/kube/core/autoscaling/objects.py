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
class Plan:
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


def check(plan: Plan) -> None:
    """Raises AutoscaleError for what the API server would take and nothing would come of."""
    if not 0 <= plan.fewest <= plan.most <= _REPLICAS_MAX or not plan.most:
        raise AutoscaleError(f"from {plan.fewest} to {plan.most} replicas", hint="--min is at most --max")
    signals = [goal for goal in plan.goals if goal.signal]
    if plan.fewest == 0 and not plan.keda:
        raise AutoscaleError("an HPA keeps one replica at least", hint="--min 1, or --keda")
    if plan.fewest == 0 and not signals:
        raise AutoscaleError(
            "from no replica nothing leads back: there are no pods then to be measured",
            hint="--min 1, or a target for what waits, such as queue:1",
        )
    if plan.choose and not signals:
        raise AutoscaleError(f"{', '.join(plan.choose)} choose among what waits", hint="add a target such as queue:4")


def document(plan: Plan) -> Document:
    """The object. Raises AutoscaleError."""
    check(plan)
    labels = {"app": plan.scaled.name[:63].rstrip("-."), MANAGED_BY: OURS}
    reference = {"apiVersion": plan.scaled.version, "kind": plan.scaled.kind, "name": plan.scaled.name}
    meta = {"name": plan.name, "namespace": plan.namespace, "labels": labels}
    if plan.keda:
        spec: Document = {
            "scaleTargetRef": reference,
            "minReplicaCount": plan.fewest,
            "maxReplicaCount": plan.most,
            "triggers": [_trigger(plan, goal) for goal in plan.goals],
        }
        return {"apiVersion": "keda.sh/v1alpha1", "kind": SCALED_OBJECT, "metadata": meta, "spec": spec}
    spec = {
        "scaleTargetRef": reference,
        "minReplicas": plan.fewest,
        "maxReplicas": plan.most,
        "metrics": [_metric(plan, goal) for goal in plan.goals],
    }
    return {"apiVersion": "autoscaling/v2", "kind": HPA, "metadata": meta, "spec": spec}


def _metric(plan: Plan, goal: Goal) -> Document:
    if goal.resource:
        target: Document = {"type": "Utilization", "averageUtilization": goal.amount}
        return {"type": "Resource", "resource": {"name": goal.metric, "target": target}}
    if not goal.signal:
        target = {"type": "AverageValue", "averageValue": quantity(goal.amount)}
        return {"type": "Pods", "pods": {"metric": {"name": goal.metric}, "target": target}}
    metric: Document = {"name": goal.metric}
    if plan.choose:
        metric["selector"] = {"matchLabels": dict(plan.choose)}
    target = {"type": "AverageValue", "averageValue": quantity(goal.amount)}
    return {"type": "External", "external": {"metric": metric, "target": target}}


def quantity(milli: int) -> str:
    """A value in thousandths as Kubernetes writes it."""
    whole, rest = divmod(milli, 1000)
    return f"{milli}m" if rest else str(whole)


def _trigger(plan: Plan, goal: Goal) -> Document:
    if goal.resource:
        return {"type": goal.metric, "metricType": "Utilization", "metadata": {"value": str(goal.amount)}}
    if goal.signal:
        chosen = ",".join(f"{name}={json.dumps(value)}" for name, value in plan.choose.items())
        query = f"sum({goal.metric}{{{chosen}}})"
    else:
        pods = f"{re.escape(plan.scaled.name)}-{_PODS[plan.scaled.kind]}"
        # The mean, as a value of its own: a pod of which nothing is known counts as the others.
        query = f"avg({goal.metric}{{namespace={json.dumps(plan.namespace)},pod=~{json.dumps(pods)}}})"
    found: Document = {
        "type": "prometheus",
        "metricType": "AverageValue" if goal.signal else "Value",
        "metadata": {
            "serverAddress": plan.prometheus,
            "query": query,
            "threshold": format_milli(goal.amount),
            # Where nothing is known replicas stay as they are: it is not zero.
            "ignoreNullValues": "false",
        },
    }
    if plan.auth:
        found["authenticationRef"] = {"kind": "ClusterTriggerAuthentication", "name": plan.auth}
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


def refuse_fights(plan: Plan, several: Iterable[Autoscaler]) -> None:
    """Raises AutoscaleError, with both names, where two would scale the same, or another's would be written over."""
    mine = f"{plan.kind} {plan.namespace}/{plan.name}"
    for one in several:
        itself = (one.kind, one.name) == (plan.kind, plan.name)
        same = one.scaled == (plan.scaled.kind, plan.scaled.name)
        if itself and not one.ours:
            raise AutoscaleError(f"{one} is there, and not ours", hint="name ours by --name, or delete that one")
        if itself and not same:
            raise AutoscaleError(
                f"{one} scales {'/'.join(one.scaled)}, not {plan.scaled}", hint="name the new one by --name"
            )
        if same and not itself and not one.made_by:
            raise AutoscaleError(
                f"{one} scales {plan.scaled} already: {mine} would fight with it",
                hint=f"delete the one: kubectl -n {one.namespace} delete {one.kind.lower()} {one.name}",
            )
