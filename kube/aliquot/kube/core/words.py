"""What other systems' manifests call GPUs, and what that is here: one table, by which the webhook and `kube plan` go.

A pod in other words becomes one with `aliquot.dev/request`, where its namespace or its author says so by a label; what
was done is an annotation of it. What can't be said exactly here is left as it is, with the reason.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aliquot.common.errors import AliquotError
from aliquot.common.limits import MIB, WHOLE_SHARE_MILLI
from aliquot.common.quantity import parse_bytes, parse_milli
from aliquot.common.request import GpuRequest, format_request
from aliquot.kube.core import names
from aliquot.kube.core.asking import PodAskError, asked_by
from aliquot.kube.core.shapes import RawContainer, RawPod

MIG_PREFIX: Final = "nvidia.com/mig-"
"""Of a resource that counts MIG instances of one profile: nvidia.com/mig-1g.10gb."""
SCHEDULERS: Final = frozenset({"kai-scheduler", "runai-scheduler", "hami-scheduler"})
"""Of those systems: their pods name them, or have them named."""


class Means(enum.Enum):
    """What a word says of a request."""

    CARDS = "whole cards"
    PARTS = "how many cards have a part"
    REPLICA = "a time-sliced replica"
    PERCENT = "percent of a card"
    SHARE = "share of a card"
    MEMORY_MIB = "MiB of each card"
    MEMORY_ALL = "memory of all its cards, as a quantity"
    MIG = "MIG instances of the profile in the name"


class Word(NamedTuple):
    """One word, and whose it is."""

    means: Means
    of: str
    vendor: str = "nvidia"


RESOURCES: Final[Mapping[str, Word]] = {
    "nvidia.com/gpu": Word(Means.CARDS, "NVIDIA's device plugin"),
    "nvidia.com/gpu.shared": Word(Means.REPLICA, "NVIDIA's device plugin, time-slicing"),
    "nvidia.com/gpu-memory": Word(Means.MEMORY_ALL, "plugins that count memory"),
    "nvidia.com/gpumem": Word(Means.MEMORY_MIB, "HAMi"),
    "nvidia.com/gpumem-percentage": Word(Means.PERCENT, "HAMi"),
    "nvidia.com/gpucores": Word(Means.PERCENT, "HAMi"),
    "amd.com/gpu": Word(Means.CARDS, "AMD's device plugin", "amd"),
    "gpu.intel.com/xe": Word(Means.CARDS, "Intel's device plugin", "intel"),
    "habana.ai/gaudi": Word(Means.CARDS, "Gaudi's device plugin", "gaudi"),
    "google.com/tpu": Word(Means.CARDS, "GKE", "tpu"),
}
"""Limits of containers; beside them those that begin with MIG_PREFIX."""
ANNOTATIONS: Final[Mapping[str, Word]] = {
    "gpu-fraction": Word(Means.SHARE, "KAI"),
    "gpu-memory": Word(Means.MEMORY_MIB, "KAI"),
    "gpu-fraction-num-devices": Word(Means.PARTS, "KAI"),
}
"""Of pods."""


class Translated(NamedTuple):
    """What a pod in other words asks for."""

    said: str
    """Its own words, as `NAME: AMOUNT`."""
    request: str = ""
    """In the request grammar."""
    problem: str = ""
    """Why it can't be said here exactly."""

    def __str__(self) -> str:
        return f"{self.said} -> {self.request or f'left as it is: {self.problem}'}"


class _Said(NamedTuple):
    name: str
    word: Word
    amount: str


def translated(pod: RawPod, replica_percent: int = 0) -> Translated | None:
    """None: it has no other words, or asks in ours already.

    `replica_percent` is what a time-sliced replica is of a card; 0: nobody has said.
    """
    annotations = pod.metadata.annotations or {}
    of_pod = [_Said(name, word, annotations[name]) for name, word in ANNOTATIONS.items() if name in annotations]
    containers = [words for each in _containers(pod) if (words := list(_said_by(each)))]
    every = [*of_pod, *(one for words in containers for one in words)]
    if not every or asked_by(pod).anything:
        return None
    said = ", ".join(f"{one.name}: {one.amount}" for one in every)
    try:
        if len(containers) > 1:
            raise PodAskError("several of its containers ask", hint=f"write {names.REQUEST} for the whole pod")
        return Translated(said, format_request(_request(every, replica_percent)))
    except AliquotError as error:
        return Translated(said, problem=": ".join(filter(None, (error.message, error.hint))))


def patch_of(pod: RawPod, found: Translated, scheduler: str) -> list[dict[str, Any]]:
    """What makes a pod one of ours, as a JSON patch; where it can't be one, only the reason is written on it."""
    annotations = {names.TRANSLATED: str(found)}
    patch: list[dict[str, Any]] = []
    if pod.metadata.annotations is None:
        patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
    if found.request:
        annotations[names.REQUEST] = found.request
        if pod.spec.scheduler_name in SCHEDULERS:
            patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
        for where, several in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
            for number, container in enumerate(several or ()):
                for field in ("limits", "requests"):
                    for name in filter(_word_of, getattr(container.resources, field, None) or ()):
                        path = f"/spec/{where}/{number}/resources/{field}/{_escaped(name)}"
                        patch.append({"op": "remove", "path": path})
    for name, value in annotations.items():
        patch.append({"op": "add", "path": f"/metadata/annotations/{_escaped(name)}", "value": value})
    return patch


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _containers(pod: RawPod) -> Sequence[RawContainer]:
    return [*(pod.spec.init_containers or ()), *(pod.spec.containers or ())]


def _said_by(container: RawContainer) -> Iterator[_Said]:
    limits = getattr(container.resources, "limits", None) or {}
    for name, amount in limits.items():
        word = _word_of(name)
        if word is not None and str(amount) != "0":
            yield _Said(name, word, str(amount))


def _word_of(resource: str) -> Word | None:
    if resource.startswith(MIG_PREFIX):
        return Word(Means.MIG, "NVIDIA's device plugin")
    return RESOURCES.get(resource)


def _request(every: Sequence[_Said], replica_percent: int) -> GpuRequest:
    """What they come to. Raises AliquotError where that can't be said here."""
    vendors = {one.word.vendor for one in every}
    if len(vendors) > 1:
        raise PodAskError(f"cards of {' and '.join(sorted(vendors))} at once")
    meant: dict[Means, list[_Said]] = {}
    for one in every:
        meant.setdefault(one.word.means, []).append(one)
    count = max((_whole(one) for means in (Means.CARDS, Means.PARTS) for one in meant.get(means, ())), default=1)
    if Means.MIG in meant:
        (first, *more) = meant[Means.MIG]
        if more or len(every) > 1:
            raise PodAskError("MIG instances beside something else")
        return GpuRequest.build(count=_whole(first), mig_profile=first.name.removeprefix(MIG_PREFIX))
    percents = [_whole(one) for one in meant.get(Means.PERCENT, ())]
    for replicas in meant.get(Means.REPLICA, ()):
        if not replica_percent:
            raise PodAskError("how much a replica is of a card is not said", hint="say it by kube.replica_percent")
        percents.append(_whole(replicas) * replica_percent)
    # Of compute and memory in percent the larger counts: a share of a card has that of both.
    shares = [each * 10 for each in percents] + [
        parse_milli(one.amount, round_up=True) for one in meant.get(Means.SHARE, ())
    ]
    memory = [_whole(one) * MIB for one in meant.get(Means.MEMORY_MIB, ())]
    memory += [parse_bytes(one.amount) // count for one in meant.get(Means.MEMORY_ALL, ())]
    share_milli = max(shares, default=None if memory else WHOLE_SHARE_MILLI)
    (vendor,) = vendors
    return GpuRequest.build(count=count, share_milli=share_milli, memory_bytes=max(memory, default=None), vendor=vendor)


def _whole(one: _Said) -> int:
    if not one.amount.isdecimal():
        raise PodAskError(f"{one.name}: {one.amount[:40]!r} is no whole number")
    return int(one.amount)
