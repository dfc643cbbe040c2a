"""Why an autoscaler does what it does, or nothing: from its conditions, and who else scales the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot.kube.core.autoscaling.objects import Autoscaler


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is worth saying; `mend` is what to do."""

    text: str
    mend: str = ""


def reasons(hpa: Mapping[str, Any] | None, fights: Sequence[Autoscaler], *, scaled_there: bool) -> list[Reason]:
    """What is worth saying, the gravest first; none: it goes well.

    Args:
        hpa: what the controller works by; None: KEDA has not made one for its ScaledObject.
        fights: who else scales the same.
        scaled_there: whether what it scales exists.
    """
    found = [
        Reason(f"{one} scales the same: they undo each other's work", f"delete {one}, or this one") for one in fights
    ]
    if not scaled_there:
        found.append(Reason("what it scales does not exist", "create it, or delete the autoscaler"))
    if hpa is None:
        found.append(Reason("KEDA has made no HPA of it", "kubectl describe scaledobject says why; is KEDA there?"))
        return found
    conditions = (hpa.get("status") or {}).get("conditions") or []
    if not conditions:
        found.append(Reason("no controller has looked at it yet", "wait 15 s; is kube-controller-manager there?"))
    found += [reason for one in conditions if (reason := _condition(one, hpa["spec"])) is not None]
    return found


def _condition(one: Mapping[str, str], spec: Mapping[str, Any]) -> Reason | None:
    what, state, why, text = (one.get(key, "") for key in ("type", "status", "reason", "message"))
    if what == "ScalingActive" and state == "False":
        return Reason(f"it can't measure ({why}): {text}", _MENDS.get(why, ""))
    if what == "AbleToScale" and state == "False":
        return Reason(f"it can't scale ({why}): {text}", _MENDS.get(why, ""))
    if what == "ScalingLimited" and state == "True":
        if why == "TooManyReplicas":
            return Reason(f"it has its most, {spec['maxReplicas']}, and would like more", "a larger --max")
        if why == "TooFewReplicas":
            return Reason(f"it has its fewest, {spec.get('minReplicas', 1)}, and would do with less")
    return None


_ADAPTER: Final = "prometheus-adapter with the rules of docs/autoscaling.md"
_MENDS: Final[Mapping[str, str]] = {
    "FailedGetResourceMetric": "needs metrics-server, and requests of cpu and memory on each container",
    "FailedGetPodsMetric": f"needs {_ADAPTER}, and pods that run and whose leases are measured: aliquot waste --all",
    "FailedGetExternalMetric": f"needs {_ADAPTER}, or KEDA (--keda)",
    "FailedGetScale": "does what it scales exist?",
    "ScalingDisabled": "it has been scaled to 0 by hand: scale it to 1",
}
