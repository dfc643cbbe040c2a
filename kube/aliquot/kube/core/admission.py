"""What becomes of pods that ask for parts, before they are kept.

They go to our scheduler, each container has its lease's id in its environment, from the annotation that comes with the
binding, and whatever way they ask, they are counted in one resource:

    annotation, memory          aliquot.dev/gpu-percent on all containers, memory on the first
    aliquot.dev/gpu: 2          aliquot.dev/gpu-percent: 200 in its place
    aliquot.dev/gpu-percent     as it is

So a ResourceQuota on it holds for all, the sums of a Node are true, and the kubelet asks the node's part about each of
these containers before it makes them. Told as a JSON patch, so that being asked twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from aliquot.common.request import parse_request
from aliquot.kube.core import names
from aliquot.kube.core.asking import WHOLE_PERCENT, Asked, amount_of, asked_by, count_of, request_text
from aliquot.kube.core.shapes import RawContainer, RawPod, RawPodSpec, RawResources

LEASE_VARIABLE: Final = "ALIQUOT_LEASE_ID"
_TAKEN_OVER: Final = frozenset({"", "default-scheduler"})
Patch = list[dict[str, Any]]


class _Variable(msgspec.Struct, gc=False):
    name: str = ""


class _Resources(RawResources, omit_defaults=True, gc=False):
    claims: list[Any] | None = None


class AdmittedContainer(RawContainer, rename="camel", gc=False):
    """A container with the names of its variables."""

    resources: _Resources | None = None
    env: list[_Variable] | None = None


class _Spec(RawPodSpec, rename="camel", gc=False):
    containers: Sequence[AdmittedContainer] | None = None
    init_containers: Sequence[AdmittedContainer] | None = None


class AdmittedPod(RawPod, gc=False):
    """A pod, as far as it is looked at here."""

    spec: _Spec = msgspec.field(default_factory=_Spec)


def patch_of(pod: AdmittedPod, scheduler: str = names.SCHEDULER) -> Patch:
    """What is to be changed; empty where nothing is. Raises AliquotError where nobody could tell what it asks for."""
    asked = asked_by(pod)
    if not asked.anything or pod.spec.scheduler_name not in {*_TAKEN_OVER, scheduler}:
        return []
    patch: Patch = []
    if pod.spec.scheduler_name != scheduler:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
    patch += _counting(pod, asked)
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


def _counting(pod: AdmittedPod, asked: Asked) -> Patch:
    """Raises AliquotError."""
    text = request_text(asked)
    count = count_of(parse_request(text))
    inits, containers = pod.spec.init_containers or (), pod.spec.containers or ()
    every = [*inits, *containers]
    patch: Patch = []
    units: dict[str, int] = {}
    """Of those that say none themselves, by the containers' names: 0 of a resource takes it away."""
    if not any(amount_of(each, name) for each in every for name in (names.GPU, names.GPU_PERCENT)):
        units = _spread(count.percent, inits, containers)
        if not asked.request:
            patch.append(_annotated(pod, text))  # the percent only count: it asks for memory alone
    says_memory = any(amount_of(each, names.GPU_MEMORY_MIB) for each in every)
    for where, several in (("initContainers", inits), ("containers", containers)):
        for number, container in enumerate(several):
            adds = {names.GPU_PERCENT: units[container.name]} if container.name in units else {}
            whole = amount_of(container, names.GPU)
            if whole:
                adds = {names.GPU: 0, names.GPU_PERCENT: whole * WHOLE_PERCENT}
            if container is containers[0] and count.memory_mib and not says_memory:
                adds[names.GPU_MEMORY_MIB] = count.memory_mib
            if adds:
                value = _with(container.resources or _Resources(), adds)
                patch.append({"op": "add", "path": f"/spec/{where}/{number}/resources", "value": value})
    return patch


def _spread(
    percent: int, inits: Sequence[AdmittedContainer], containers: Sequence[AdmittedContainer]
) -> dict[str, int]:
    """Units by the containers' names: one each, so that the kubelet asks about all, and the rest for the first.

    Those that run first hand theirs on, and add nothing to what the pod has. Where there are more containers than
    units, the last have none.
    """
    first = [each.name for each in inits if each.restart_policy != "Always"]
    beside = [each.name for each in (*inits, *containers[1:]) if each.name not in first][: percent - 1]
    return {**dict.fromkeys((*first, *beside), 1), containers[0].name: percent - len(beside)}


def _with(resources: _Resources, adds: Mapping[str, int]) -> dict[str, Any]:
    """Resources with these amounts, in place of those of the same names; of 0 nothing is left."""
    amounts = {name: str(amount) for name, amount in adds.items()}
    for field in ("limits", "requests"):
        merged = {**(getattr(resources, field) or {}), **amounts}
        setattr(resources, field, {name: amount for name, amount in merged.items() if amount != "0"})
    found: dict[str, Any] = msgspec.to_builtins(resources)
    return found


def _annotated(pod: AdmittedPod, text: str) -> dict[str, Any]:
    if pod.metadata.annotations is None:
        return {"op": "add", "path": "/metadata/annotations", "value": {names.REQUEST: text}}
    return {"op": "add", "path": f"/metadata/annotations/{names.REQUEST.replace('/', '~1')}", "value": text}
