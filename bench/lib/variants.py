"""Other workloads made from one request list: more of one kind of request, the rest unchanged.

    parts60   60 % of the requests with devices ask for a part of one
    several30 30 % of them ask for more than one device
    named33   33 % of them name one or two models that they can use
    cpu250    2.5 times as many requests without a device

They test a policy on lists that it was not tuned for. A variant of a list is always the same.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

import msgspec

from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, NodeSpec
from aliquot.plan.traces import TraceRequest

SEED = 1
_NAME = re.compile(r"(parts|several|named|cpu)(\d+)")

_SHARES: dict[str, Callable[[Demand], bool]] = {
    "parts": lambda d: d.count == 1 and d.share_milli not in (0, WHOLE_SHARE_MILLI),
    "several": lambda d: d.count > 1,
}


def vary(pods: Sequence[TraceRequest], variant: str, nodes: Sequence[NodeSpec]) -> list[TraceRequest]:
    """The list's variant of this name, with models that `nodes` have. Raises `ValueError` for an unknown name."""
    match = _NAME.fullmatch(variant)
    if match is None:
        raise ValueError(f"no variant {variant!r}; parts60, several30, named33 and cpu250 are some")
    kind, percent = match[1], int(match[2])
    rng = random.Random(SEED)
    with_devices = [pod for pod in pods if pod.demand.count]
    without = [pod for pod in pods if not pod.demand.count]
    if kind == "cpu":
        return _named([*with_devices, *rng.choices(without, k=len(without) * percent // 100)])
    if kind == "named":
        return _named([*without, *_naming(with_devices, percent, nodes, rng)])
    chosen = [pod for pod in with_devices if _SHARES[kind](pod.demand)]
    others = [pod for pod in with_devices if not _SHARES[kind](pod.demand)]
    many = len(with_devices) * percent // 100
    drawn = rng.choices(chosen, k=many) + (rng.choices(others, k=len(with_devices) - many) if others else [])
    return _named([*without, *drawn])


def _naming(
    pods: Sequence[TraceRequest], percent: int, nodes: Sequence[NodeSpec], rng: random.Random
) -> list[TraceRequest]:
    """Let requests without a model name some models of nodes that are wide enough, until enough requests do."""
    free = [number for number, pod in enumerate(pods) if not pod.demand.models]
    rng.shuffle(free)
    missing = max(0, len(pods) * percent // 100 - (len(pods) - len(free)))
    result = list(pods)
    for number in free[:missing]:
        demand = pods[number].demand
        wide = [node.devices[0].model for node in nodes if len(node.devices) >= demand.count]
        models = tuple(sorted(set(rng.choices(wide, k=2))))
        result[number] = pods[number]._replace(demand=msgspec.structs.replace(demand, models=(models,)))
    return result


def _named(pods: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Give each its own name, so that the order of equal ones is defined."""
    return [pod._replace(name=f"{number:06d}") for number, pod in enumerate(pods)]
