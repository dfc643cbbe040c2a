"""Orders of nodes in Kubernetes: which objects say that nodes are missed, and which nodes have come for which orders.

Autoscalers of nodes see pods that can't be placed, and whole devices. So an order becomes either a pod of low priority
that asks for all devices of a node (a placeholder: whoever needs the node has it preempted), or a ProvisioningRequest
for such a pod. Both carry the shape's labels as node selector, and the label of the shape: the group of nodes that the
autoscaler enlarges sets them, so that a node that comes is known as one of that shape.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aliquot.client.supply import NodeOrder, NodeShape, OrderState, OrderWay

SHAPE_LABEL: Final = "supply.aliquot.dev/shape"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "aliquot-supply"
PLACEHOLDER: Final = "aliquot-placeholder"
"""The PriorityClass of placeholders, and how their names begin."""
PRIORITY: Final = -10
"""The least with which the cluster autoscaler still adds nodes for a pod (`--expendable-pods-priority-cutoff`)."""
CLASSES: Final = ("check-capacity.autoscaling.x-k8s.io", "best-effort-atomic-scale-up.autoscaling.x-k8s.io")
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
PROTECTION: Final = ("cluster-autoscaler.kubernetes.io/scale-down-disabled", "karpenter.sh/do-not-disrupt")
"""With the value `true` on a node, its autoscaler leaves it alone."""
TAKER: Final = "aliquot.dev/taker"
PROTECTED: Final = "aliquot.dev/protected"
"""Which of them we have written, and are ours to take away."""
KARPENTER: Final = "karpenter.sh/nodepool"
"""Label of nodes that Karpenter made, and ends when their Node is deleted."""
_ENDED_BY: Final = ("Failed", "BookingExpired", "CapacityRevoked")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Means:
    """How orders are written down."""

    namespace: str
    taker: str = "kubernetes"
    """Under which orders are taken: what two programs write must not be one another's."""
    resource: str = "nvidia.com/gpu"
    """Which extended resource counts whole devices."""
    image: str = "registry.k8s.io/pause:3.10"
    provisioning: str = ""
    """The class of ProvisioningRequests; empty: placeholders."""


def priority_class() -> Document:
    """Of placeholders: below everything, and preempting nobody."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PLACEHOLDER, "labels": {MANAGED_BY: OURS}},
        "value": PRIORITY,
        "preemptionPolicy": "Never",
        "description": "Pods that stand for nodes which Aliquot has ordered; everybody else goes first.",
    }


def _labels(shape: NodeShape, means: Means) -> dict[str, str]:
    return {MANAGED_BY: OURS, TAKER: means.taker, SHAPE_LABEL: shape.name}


def _template(shape: NodeShape, means: Means) -> Document:
    devices = {means.resource: str(shape.devices)}
    return {
        "metadata": {"labels": _labels(shape, means), "annotations": {SAFE_TO_EVICT: "true"}},
        "spec": {
            "priorityClassName": PLACEHOLDER,
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "nodeSelector": {**shape.labels, SHAPE_LABEL: shape.name},
            "tolerations": [{"key": means.resource, "operator": "Exists"}],
            "containers": [
                {"name": "placeholder", "image": means.image, "resources": {"requests": devices, "limits": devices}}
            ],
        },
    }


def placeholder_name(shape: str, means: Means) -> str:
    """Of the Deployment for a shape."""
    whole = f"{means.taker}-{shape}"
    name = re.sub("[^a-z0-9-]", "-", whole.lower())[:34].strip("-")
    if name != whole:  # two shapes must not become one
        name = f"{name}-{zlib.crc32(whole.encode()):08x}"
    return f"{PLACEHOLDER}-{name}"


def placeholders(shape: NodeShape, replicas: int, means: Means) -> Document:
    """The Deployment that stands for so many nodes of a shape."""
    chosen = _labels(shape, means)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": placeholder_name(shape.name, means), "namespace": means.namespace, "labels": chosen},
        "spec": {"replicas": replicas, "selector": {"matchLabels": chosen}, "template": _template(shape, means)},
    }


def request_name(order: NodeOrder) -> str:
    """Of the ProvisioningRequest for one try at an order."""
    return f"aliquot-{order.order_id}-{max(1, order.tries)}"


def provisioning(order: NodeOrder, shape: NodeShape, means: Means) -> tuple[Document, Document]:
    """The PodTemplate and the ProvisioningRequest for an order."""
    meta = {"name": request_name(order), "namespace": means.namespace, "labels": _labels(shape, means)}
    template = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": meta, "template": _template(shape, means)}
    request = {
        "apiVersion": "autoscaling.x-k8s.io/v1",
        "kind": "ProvisioningRequest",
        "metadata": meta,
        "spec": {
            "provisioningClassName": means.provisioning,
            "podSets": [{"count": 1, "podTemplateRef": {"name": meta["name"]}}],
        },
    }
    return template, request


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a ProvisioningRequest has come."""

    provisioned: bool
    problem: str
    """Why nothing comes of it; empty: something may."""


def progress(request: Mapping[str, Any]) -> Progress:
    """From its conditions: Failed, BookingExpired and CapacityRevoked end it, whatever was before."""
    conditions = {
        one.get("type", ""): one
        for one in (request.get("status") or {}).get("conditions") or ()
        if one.get("status") == "True"
    }
    for kind in _ENDED_BY:
        if kind in conditions:
            said = conditions[kind].get("message") or conditions[kind].get("reason") or "no reason given"
            return Progress(provisioned=False, problem=f"{kind}: {said}")
    return Progress("Provisioned" in conditions, "")


@dataclass(frozen=True, slots=True)
class KubeNode:
    """What counts of a node of the cluster."""

    name: str
    shape: str
    created_ms: int
    annotations: Mapping[str, str]
    karpenter: bool = False


def selector(means: Means) -> str:
    """Which objects are ours."""
    return f"{MANAGED_BY}={OURS},{TAKER}={means.taker}"


def mine(orders: Iterable[NodeOrder], taker: str, way: OrderWay) -> list[NodeOrder]:
    """Orders of this way that this program carries out, the oldest first."""
    states = (OrderState.TAKEN, OrderState.UNDER_WAY)
    found = [one for one in orders if one.taken_by == taker and one.way is way and one.state in states]
    return sorted(found, key=lambda order: order.number)


def matched(orders: Sequence[NodeOrder], nodes: Iterable[KubeNode], known: Iterable[str]) -> dict[int, str]:
    """Nodes that have come for orders: number -> name. Each node comes for one order, the oldest of its shape, and not
    for one that was given after it was made; a second node for one order is nobody's, and counts by its label.
    """
    nodes = sorted(nodes, key=lambda node: (node.created_ms, node.name))
    there = {node.name for node in nodes}
    taken = {*known, *(order.node_name for order in orders if order.node_name in there)}
    found: dict[int, str] = {}
    for order in sorted(orders, key=lambda order: order.number):
        if order.node_name in there:
            continue
        for node in nodes:
            # A Node's time is in whole seconds.
            if node.shape == order.shape and node.name not in taken and node.created_ms >= order.ordered_ms - 1000:
                found[order.number] = node.name
                taken.add(node.name)
                break
    return found


def protection(node: KubeNode, *, wanted: bool) -> Document | None:
    """The merge patch of annotations that protects a node from autoscalers, or no more; None: it is as it should be.

    What somebody else has written, whatever it says, is left alone: which of them are ours is written beside them.
    """
    ours = {key for key in node.annotations.get(PROTECTED, "").split(",") if key in PROTECTION}
    if wanted:
        missing = [key for key in PROTECTION if key not in node.annotations]
        if not missing:
            return None
        kept = ",".join(sorted(ours.union(missing)))
        return {"metadata": {"annotations": {**dict.fromkeys(missing, "true"), PROTECTED: kept}}}
    if PROTECTED not in node.annotations:
        return None
    return {"metadata": {"annotations": dict.fromkeys((*sorted(ours), PROTECTED))}}
