"""From a pod to a request: integers of extended resources, or the request grammar in an annotation.

One lease is a pod's. Its containers, init containers and sidecars share it, so what counts is what Kubernetes' own rule
makes of theirs: containers and sidecars side by side, init containers one after another beside the sidecars that have
started before them. Whole GPUs are 100 percent each; a part is of one GPU.

However a pod asks, it is counted in percent (and its memory in MiB): admission writes both on its containers, so that
quotas and nodes' sums hold, and a kubelet asks the node's part before it starts one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from aliquot.common.errors import AliquotError, QuantityError
from aliquot.common.limits import MAX_SLICES_PER_MEMBER, MIB
from aliquot.common.quantity import parse_bytes
from aliquot.common.request import GpuRequest, format_request, parse_request
from aliquot.common.request_fields import REQUEST_FIELDS
from aliquot.common.tiers import Tier
from aliquot.kube.core import names
from aliquot.kube.core.shapes import RawContainer, RawPod

WHOLE_PERCENT: Final = 100
_MIG_PARTS: Final = 7
"""Of a card, by which MIG profiles count their compute (`1g`)."""


class PodAskError(AliquotError):
    """What a pod asks for can't be read, or contradicts itself."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """What a pod's containers and annotations ask for, as written. Percent of one GPU and MiB are sums."""

    gpu_percent: int = 0
    memory_mib: int = 0
    request: str = ""
    problem: str = ""
    """Why it can't be read; empty: it can."""
    options: tuple[tuple[str, str], ...] = ()
    """What else annotations say of the request, by the names of its fields."""

    @property
    def anything(self) -> bool:
        """Whether the pod wants GPUs at all."""
        return bool(self.gpu_percent or self.memory_mib or self.request or self.problem)


def asked_by(pod: RawPod) -> Asked:
    """What the pod asks for, as written; what can't be read is in its `problem`."""
    annotations = pod.metadata.annotations or {}
    request = annotations.get(names.REQUEST, "").strip()
    options = annotated(annotations)
    containers, inits = pod.spec.containers or [], pod.spec.init_containers or []
    try:
        percent = _effective(containers, inits, _percent_of)
        memory_mib = _effective(containers, inits, lambda each: amount_of(each, names.GPU_MEMORY_MIB))
    except (QuantityError, PodAskError) as error:
        return Asked(request=request, options=options, problem=error.message)
    return Asked(percent, memory_mib, request, options=options)


def _percent_of(container: RawContainer) -> int:
    whole, percent = amount_of(container, names.GPU), amount_of(container, names.GPU_PERCENT)
    if whole and percent:
        raise PodAskError(f"container {container.name!r} asks for both {names.GPU} and {names.GPU_PERCENT}")
    return whole * WHOLE_PERCENT or percent


def amount_of(container: RawContainer, name: str) -> int:
    """How much of a resource a container asks for. Raises QuantityError."""
    resources = container.resources
    if resources is None:
        return 0
    # The API server sets requests from limits, and refuses extended resources where the two differ.
    value = (resources.limits or {}).get(name)
    if value is None:
        value = (resources.requests or {}).get(name, 0)
    # As the API server writes most of them; it may also have made 8k of 8000.
    return int(value) if isinstance(value, int) or value.isdecimal() else parse_bytes(value)


def _effective(
    containers: Iterable[RawContainer], inits: Iterable[RawContainer], amount: Callable[[RawContainer], int]
) -> int:
    sidecars = most = 0
    for init in inits:
        wanted = amount(init)
        if init.restart_policy == "Always":
            sidecars += wanted
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + wanted)
    return max(most, sidecars + sum(map(amount, containers)))


@lru_cache(maxsize=4096)
def request_text(asked: Asked) -> str:
    """The request in the grammar. Raises PodAskError, or RequestSyntaxError for an annotation that can't be read."""
    if asked.problem:
        raise PodAskError(asked.problem)
    if not asked.request:
        return format_request(_from_integers(asked.gpu_percent, asked.memory_mib))
    request = parse_request(asked.request)
    count = count_of(request)
    if asked.gpu_percent and request.share_milli is not None:
        _same(names.GPU_PERCENT, asked.gpu_percent, count.percent)
    if asked.memory_mib and request.memory_bytes is not None:
        _same(names.GPU_MEMORY_MIB, asked.memory_mib, count.memory_mib)
    return format_request(request)


@lru_cache(maxsize=4096)
def require_counted(asked: Asked) -> None:
    """Raises PodAskError for a pod that admission has not seen, or whose annotations say more than it was counted for:
    neither quotas nor the node would hold it.
    """
    count = count_of(parse_request(request_text(asked)))
    if not asked.gpu_percent or (count.memory_mib and not asked.memory_mib):
        raise PodAskError(
            f"it is not counted in {names.GPU_PERCENT}: aliquot's webhook did not see it as it is now",
            hint="make the pod again; `aliquot kube doctor` says whether the webhook is there",
        )


class Count(NamedTuple):
    """What a request comes to for quotas and nodes' sums."""

    percent: int
    memory_mib: int
    """0: it says none."""


def count_of(request: GpuRequest) -> Count:
    """In whole units. A share is rounded down, so that eight eighths are still counted on one GPU, but is at least 1;
    memory without a share is 1 percent, as its share depends on the device that it gets.
    """
    share_milli = request.share_milli or 0
    if request.mig_profile is not None:
        parts, found, _ = request.mig_profile.partition("g.")
        share_milli = int(parts) * 1000 // _MIG_PARTS if found else 0
    percent = max(1, share_milli * request.count // 10)
    return Count(percent, -(-(request.memory_bytes or 0) * request.count // MIB))


def annotated(annotations: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What annotations say of a request, by the names of its fields, as written."""
    return tuple(
        (field.name, said) for field in _ANNOTATED.values() if (said := annotations.get(field.annotation, "").strip())
    )


def options_of(asked: Asked) -> dict[str, Any]:
    """The fields of the request that annotations give. Raises PodAskError."""
    return {name: _KINDS[_ANNOTATED[name].kind](_ANNOTATED[name].annotation, said) for name, said in asked.options}


def _flag(annotation: str, said: str) -> bool:
    if said.lower() not in ("true", "false"):
        raise PodAskError(f"{annotation}: {said[:40]!r} is neither true nor false")
    return said.lower() == "true"


def _tier(annotation: str, said: str) -> Tier:
    known = [tier.word.upper() for tier in Tier]
    if said.upper() not in known:
        raise PodAskError(f"{annotation}: {said[:40]!r} is no tier", hint=f"one of {', '.join(known)}")
    return Tier[said.upper()]


_ANNOTATED: Final = {field.name: field for field in REQUEST_FIELDS if field.annotation}
_KINDS: Final[Mapping[str, Callable[[str, str], Any]]] = {"flag": _flag, "tier": _tier}
"""How annotations are read, by the kind of the field."""


def _from_integers(percent: int, memory_mib: int) -> GpuRequest:
    memory_bytes = memory_mib * MIB or None
    if percent <= WHOLE_PERCENT:
        return GpuRequest(share_milli=percent * 10 or None, memory_bytes=memory_bytes)
    count, rest = divmod(percent, WHOLE_PERCENT)
    if rest:
        raise PodAskError(
            f"{percent} percent: more than one GPU is asked for in whole GPUs",
            hint=f"make it a multiple of 100, or write {names.REQUEST}: 2x0.5",
        )
    if count > MAX_SLICES_PER_MEMBER:
        raise PodAskError(f"{count} GPUs for one pod; at most {MAX_SLICES_PER_MEMBER}")
    if memory_bytes is not None:
        raise PodAskError(f"{count} whole GPUs come with all of their memory", hint=f"leave out {names.GPU_MEMORY_MIB}")
    return GpuRequest(count=count, share_milli=WHOLE_PERCENT * 10)


def _same(name: str, asked: int, stated: int) -> None:
    if asked != stated:
        raise PodAskError(
            f"{name} and {names.REQUEST} contradict each other: {asked}, and {stated} in all",
            hint=f"{name} is for the whole pod; write one of the two",
        )
