"""What becomes of pods that ask for parts, before they are kept: as the policies of deploy/kube/admission.yaml have it.

They go to our scheduler, and each container has its lease's id in its environment, from the annotation that comes with
the binding. Told as a JSON patch, so that being asked twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from aliquot.kube.core import names

LEASE_VARIABLE: Final = "ALIQUOT_LEASE_ID"
RESOURCES: Final = (names.GPU, names.GPU_PERCENT, names.GPU_MEMORY_MIB)
_TAKEN_OVER: Final = frozenset({"", "default-scheduler"})
Patch = list[dict[str, Any]]


class _Name(msgspec.Struct, gc=False):
    name: str = ""


class _Resources(msgspec.Struct, gc=False):
    limits: dict[str, Any] | None = None


class _Container(msgspec.Struct, gc=False):
    name: str = ""
    env: list[_Name] | None = None
    resources: _Resources | None = None


class _Meta(msgspec.Struct, gc=False):
    annotations: dict[str, str] | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    scheduler_name: str = ""
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class AdmittedPod(msgspec.Struct, gc=False):
    """A pod, as far as it is looked at here."""

    metadata: _Meta = msgspec.field(default_factory=_Meta)
    spec: _Spec = msgspec.field(default_factory=_Spec)


def asks_for_parts(pod: AdmittedPod) -> bool:
    """Whether it wants GPUs of ours."""
    if names.REQUEST in (pod.metadata.annotations or {}):
        return True
    containers: Sequence[_Container] = [*(pod.spec.containers or ()), *(pod.spec.init_containers or ())]
    limits = (each.resources.limits or {} for each in containers if each.resources is not None)
    return any(name in each for each in limits for name in RESOURCES)


def patch_of(pod: AdmittedPod, scheduler: str = names.SCHEDULER) -> Patch:
    """What is to be changed; empty where nothing is."""
    if not asks_for_parts(pod) or pod.spec.scheduler_name not in {*_TAKEN_OVER, scheduler}:
        return []
    patch: Patch = []
    if pod.spec.scheduler_name != scheduler:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
    for number, container in enumerate(pod.spec.containers or ()):
        has = [each.name for each in container.env or ()]
        if LEASE_VARIABLE in has:
            continue
        path = f"metadata.annotations['{names.LEASE_ID}']"
        variable = {"name": LEASE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        where = f"/spec/containers/{number}/env"
        if has:
            patch.append({"op": "add", "path": f"{where}/-", "value": variable})
        else:
            patch.append({"op": "add", "path": where, "value": [variable]})
    return patch
