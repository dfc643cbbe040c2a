"""Why an autoscaler does what it does, or nothing: from its conditions, the metrics APIs and the pods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aliquot.kube.core.scaling.metrics_documents import CUSTOM, EXTERNAL
from aliquot.kube.core.scaling.objects import Autoscaler
from aliquot.kube.core.scaling.owning import Registered
from aliquot.kube.core.scaling.usage import POD_METRICS


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is worth saying; `mend` is what to do."""

    text: str
    mend: str = ""


@dataclass(frozen=True, slots=True)
class Pods:
    """What of the scaled is there."""

    all: int = 0
    asking: int = 0
    """Which ask for parts of GPUs."""
    waiting: tuple[str, ...] = ()
    """Which of those have none yet."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was looked at."""

    hpa: Mapping[str, Any] | None
    """None: KEDA has not made one for its ScaledObject."""
    fights: Sequence[Autoscaler] = ()
    apis: Sequence[Registered] = ()
    pods: Pods = field(default_factory=Pods)
    scaled_there: bool = True


def reasons(seen: Seen) -> list[Reason]:
    """What is worth saying, the gravest first; none: it goes well."""
    found = [
        Reason(f"{one} scales the same: they undo each other's work", f"delete {one}, or this one")
        for one in seen.fights
    ]
    if not seen.scaled_there:
        found.append(Reason("what it scales does not exist", "create it, or delete the autoscaler"))
    if seen.hpa is None:
        found.append(Reason("KEDA has made no HPA of it", "kubectl describe scaledobject says why; is KEDA there?"))
        return found
    used = list(_metrics(seen.hpa))
    found += _of_apis(seen.apis, {kind for kind, _ in used})
    if any(name in POD_METRICS for _, name in used) and seen.pods.all and not seen.pods.asking:
        found.append(
            Reason("none of its pods asks for parts of GPUs, so none has any use of them", "docs/kubernetes.md")
        )
    conditions = (seen.hpa.get("status") or {}).get("conditions") or []
    if not conditions:
        found.append(Reason("no controller has looked at it yet", "wait 15 s; is kube-controller-manager there?"))
    found += [reason for one in conditions if (reason := _condition(one, seen.hpa)) is not None]
    if seen.pods.waiting:
        some = ", ".join(seen.pods.waiting[:3]) + (" …" if len(seen.pods.waiting) > 3 else "")
        found.append(
            Reason(
                f"{len(seen.pods.waiting)} pods wait for GPUs: {some}",
                f"kubectl describe pod {seen.pods.waiting[0]}: more replicas start when the pool has room",
            )
        )
    return found


def _metrics(hpa: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    for one in hpa["spec"].get("metrics") or ():
        kind = one.get("type", "")
        inner = one.get(kind[:1].lower() + kind[1:]) or {}
        yield kind, inner.get("name") or (inner.get("metric") or {}).get("name", "")


def _of_apis(apis: Sequence[Registered], kinds: set[str]) -> Iterable[Reason]:
    for kind, group in (("Pods", CUSTOM), ("External", EXTERNAL)):
        of_group = [one for one in apis if one.name.endswith(group)]
        if kind not in kinds or any(one.available for one in of_group):
            continue
        there = [one for one in of_group if one.there]
        if not there:
            mend = "helm upgrade aliquot deploy/chart/aliquot --set scaling.enabled=true"
            yield Reason(f"nobody serves {group}", f"{mend} (and scaling.external=true where there is no KEDA)")
        for one in there:
            whose = one.service or "the API server itself"
            text = f"APIService {one.name} is of {whose} and not available: {one.message}"
            yield Reason(text, f"kubectl describe apiservice {one.name}")


def _condition(one: Mapping[str, str], hpa: Mapping[str, Any]) -> Reason | None:
    what, state, why, text = (one.get(key, "") for key in ("type", "status", "reason", "message"))
    if what == "ScalingActive" and state == "False":
        return Reason(f"it can't measure ({why}): {text}", _MENDS.get(why, ""))
    if what == "AbleToScale" and state == "False":
        return Reason(f"it can't scale ({why}): {text}", _MENDS.get(why, ""))
    if what == "ScalingLimited" and state == "True":
        spec = hpa["spec"]
        if why == "TooManyReplicas":
            return Reason(f"it has its most, {spec['maxReplicas']}, and would like more", "a larger --max")
        if why == "TooFewReplicas":
            return Reason(f"it has its fewest, {spec.get('minReplicas', 1)}, and would do with less")
    return None


_MENDS: Mapping[str, str] = {
    "FailedGetResourceMetric": "needs metrics-server, and requests of cpu and memory on each container",
    "FailedGetPodsMetric": "pods that run and whose leases are measured: aliquot waste --all",
    "FailedGetExternalMetric": "the message says which label or metric is not known",
    "FailedGetScale": "does what it scales exist?",
    "ScalingDisabled": "it has been scaled to 0 by hand: scale it to 1",
}
