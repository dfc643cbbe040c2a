"""What people write: `cpu:70% mem:80% gpu:60%`, with `,` or `;` between and `:` or `=` within; and what is scaled.

Only the words are ours. What cpu and mem are over is what containers request, as everywhere in Kubernetes; gpu is over
a pod's own share.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.common.errors import AliquotError, QuantityError
from aliquot.common.quantity import parse_milli

DEFAULT_TARGETS: Final = ("cpu:70%", "mem:80%", "gpu:60%")
RESOURCES: Final[Mapping[str, str]] = {"cpu": "cpu", "mem": "memory", "memory": "memory"}
GPU_USE: Final = "container_gpu_usage"
MEMORY_USE: Final = "container_gpu_memory_usage"
QUEUE_DEPTH: Final = "aliquot_tenant_queued"
_POD_METRICS: Final[Mapping[str, str]] = {"gpu": GPU_USE, "gpu-memory": MEMORY_USE}
_WORDS: Final = ("cpu", "mem", *_POD_METRICS, "queue")
_SEPARATOR: Final = re.compile(r"[,;\s]+")
_AROUND: Final = re.compile(r"\s*([:=])\s*")
_PAIR: Final = re.compile(r"([A-Za-z-]+)[:=](\S+)")
_PERCENT: Final = 100
_PERCENT_MAX: Final = 1000
_USE_MILLI_MAX: Final = 900
_KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "Deployment": ("apps/v1", "deployments"),
    "StatefulSet": ("apps/v1", "statefulsets"),
    "ReplicaSet": ("apps/v1", "replicasets"),
}
_SHORT: Final = {"deploy": "Deployment", "sts": "StatefulSet", "rs": "ReplicaSet"}
_NAME: Final = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")


class AutoscaleError(AliquotError):
    """What was written can't be, or must not be."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One metric and its target: percent of `cpu` and `memory`, thousandths of all others."""

    metric: str
    amount: int

    @property
    def resource(self) -> bool:
        """Whether Kubernetes measures it itself."""
        return self.metric in RESOURCES.values()

    @property
    def signal(self) -> bool:
        """Whether it is of what waits, and not of pods."""
        return self.metric == QUEUE_DEPTH


@dataclass(frozen=True, slots=True)
class Scaled:
    """What is scaled."""

    kind: str
    name: str

    @property
    def version(self) -> str:
        """Of its API."""
        return _KINDS[self.kind][0]

    @property
    def plural(self) -> str:
        """In paths."""
        return _KINDS[self.kind][1]

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def parse_goals(texts: Sequence[str]) -> tuple[Goal, ...]:
    """Read them; none: the usual ones. Raises AutoscaleError."""
    terms = [term for text in texts for term in _SEPARATOR.split(_AROUND.sub(r"\1", text)) if term]
    found: dict[str, Goal] = {}
    for term in terms or DEFAULT_TARGETS:
        goal = _goal(term)
        if goal.metric in found:
            raise AutoscaleError(f"{term[:60]!r}: {goal.metric} has a target already", hint="write each once")
        found[goal.metric] = goal
    return tuple(found.values())


def _goal(term: str) -> Goal:
    pair = _PAIR.fullmatch(term)
    if pair is None:
        raise AutoscaleError(f"{term[:60]!r} is no target", hint="such as cpu:70% mem:80% gpu:60%")
    word, amount = pair[1].lower(), pair[2]
    if word in RESOURCES:
        return Goal(RESOURCES[word], _percent(term, amount))
    metric = QUEUE_DEPTH if word == "queue" else _POD_METRICS.get(word)
    if metric is None:
        raise AutoscaleError(f"{term[:60]!r}: {word!r} is nothing that is measured", hint=f"one of {', '.join(_WORDS)}")
    try:
        # 60 is 60 %, as of cpu.
        milli = parse_milli(amount.removesuffix("%")) // (_PERCENT if word in _POD_METRICS else 1)
    except QuantityError as error:
        raise AutoscaleError(f"{term[:60]!r}: {error.message}", hint="such as gpu:60% or queue:4") from error
    if milli < 1:
        raise AutoscaleError(f"{term[:60]!r}: a target is more than 0")
    if word in _POD_METRICS and milli > _USE_MILLI_MAX:
        raise AutoscaleError(
            f"{term[:60]!r}: nothing would ever be added, as a pod uses 100 % of its share at most",
            hint="write at most 90%: autoscalers leave a tenth of difference alone",
        )
    return Goal(metric, milli)


def _percent(term: str, text: str) -> int:
    number = text.removesuffix("%")
    if not number.isdecimal() or len(number) > 4 or not 1 <= int(number) <= _PERCENT_MAX:
        raise AutoscaleError(
            f"{term[:60]!r}: percent of what is requested, 1 to {_PERCENT_MAX}", hint="such as cpu:70%"
        )
    return int(number)


def parse_scaled(text: str) -> Scaled:
    """`deploy/web`. Raises AutoscaleError."""
    kind, _, name = text.partition("/")
    known = _SHORT.get(kind.lower()) or next(
        (one for one in _KINDS if kind.lower() in (one.lower(), _KINDS[one][1])), None
    )
    if known is None or not _NAME.fullmatch(name):
        raise AutoscaleError(
            f"{text[:80]!r} is nothing that can be scaled", hint="deploy/NAME, statefulset/NAME or replicaset/NAME"
        )
    return Scaled(known, name)
