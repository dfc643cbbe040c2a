"""What a stock kube-scheduler and its extender say to each other (k8s.io/kube-scheduler/extender/v1).

The Go types have no JSON tags, so names are Go-cased; the pod within is an ordinary one. We are `nodeCacheCapable`:
nodes come and go by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from aliquot.kube.core.shapes import RawPod

PRIORITY_MAX: Final = 10
"""Scores of extenders are 0..10; the scheduler multiplies them by the extender's weight."""


class FilterArgs(msgspec.Struct):
    """`ExtenderArgs`, of filter and prioritise."""

    pod: RawPod = msgspec.field(name="Pod")
    node_names: list[str] | None = msgspec.field(name="NodeNames", default=None)


class FilterResult(msgspec.Struct, omit_defaults=True):
    """`ExtenderFilterResult`."""

    node_names: Sequence[str] = msgspec.field(name="NodeNames", default=())
    failed: Mapping[str, str] = msgspec.field(name="FailedNodes", default_factory=dict)
    hopeless: Mapping[str, str] = msgspec.field(name="FailedAndUnresolvableNodes", default_factory=dict)
    """Where preemption would not help either."""
    error: str = msgspec.field(name="Error", default="")


class HostPriority(msgspec.Struct):
    """One of prioritise's answers."""

    host: str = msgspec.field(name="Host")
    score: int = msgspec.field(name="Score")


class BindArgs(msgspec.Struct):
    """`ExtenderBindingArgs`."""

    name: str = msgspec.field(name="PodName")
    namespace: str = msgspec.field(name="PodNamespace")
    uid: str = msgspec.field(name="PodUID")
    node: str = msgspec.field(name="Node")


class BindResult(msgspec.Struct):
    """`ExtenderBindingResult`. Empty: it is bound."""

    error: str = msgspec.field(name="Error", default="")


class MetaPod(msgspec.Struct):
    """A victim, by its uid."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct):
    """The victims on one node."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptArgs(msgspec.Struct):
    """`ExtenderPreemptionArgs` of an extender that knows nodes."""

    pod: RawPod = msgspec.field(name="Pod")
    victims: dict[str, MetaVictims] | None = msgspec.field(name="NodeNameToMetaVictims", default=None)


class PreemptResult(msgspec.Struct):
    """`ExtenderPreemptionResult`."""

    victims: Mapping[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default_factory=dict)


def scores(ranks: Mapping[str, int]) -> list[HostPriority]:
    """Scores of 0..10 from ranks of any scale, in the same order; the best gets 10, what does not fit 0."""
    best = max(ranks.values(), default=0)
    return [HostPriority(node, rank * PRIORITY_MAX // best if best else 0) for node, rank in ranks.items()]


def split(nodes: Sequence[str], obstacles: Mapping[str, str]) -> FilterResult:
    """Which nodes stay, of which nothing is known that stands against them; where none does, why of each.

    A scheduler reads why a node is left out only where nothing is left: a thousand such texts are more than the rest of
    a question and its answer together.
    """
    fitting = [node for node in nodes if node not in obstacles] if obstacles else nodes
    return FilterResult(fitting, {} if fitting else {node: obstacles[node] for node in nodes})
