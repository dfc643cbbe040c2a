"""What the accounts of our programs must be allowed in a cluster, so that a role which lacks some is told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from aliquot.kube.api import resources
from aliquot.kube.api.resources import Resource
from aliquot.kube.core import names

EXTENDER: Final = "aliquot-kube extender"
NODE: Final = "aliquot-kube-node"
"""Programs are named as their containers' commands begin."""


class Right(NamedTuple):
    """Verbs on a kind of objects."""

    verbs: tuple[str, ...]
    resource: Resource
    subresource: str = ""
    name: str = ""
    """Of the one object that it is about."""
    here: bool = False
    """In the program's own namespace; else in all."""

    def attributes(self, verb: str, namespace: str) -> dict[str, str]:
        """`resourceAttributes` of an access review."""
        found = {
            "verb": verb,
            "group": self.resource.version.rpartition("/")[0],
            "resource": self.resource.plural,
            "subresource": self.subresource,
            "name": self.name,
            "namespace": namespace if self.here else "",
        }
        return {key: value for key, value in found.items() if value}


_FOLLOW: Final = ("list", "watch")
NEEDED: Final[Mapping[str, Sequence[Right]]] = {
    EXTENDER: (
        Right(("get", *_FOLLOW, "patch", "delete"), resources.PODS),
        Right(("create",), resources.PODS, "binding"),
        Right(("get",), resources.NAMESPACES),
        Right(("create",), resources.EVENTS),
    ),
    "aliquot-kube controllers": (
        Right(("get", *_FOLLOW, "create", "delete"), resources.PODS),
        Right(("create",), resources.SERVICES),
        Right(("create",), resources.EVENTS),
        Right(_FOLLOW, resources.ELASTIC_JOBS),
        Right(("patch",), resources.ELASTIC_JOBS, "status"),
        Right(("update",), resources.LEASES, name=names.CONTROLLERS_LEASE, here=True),
    ),
    "aliquot-kube webhook": (Right(("get", "update"), resources.MUTATING_WEBHOOKS, name="aliquot-pods"),),
    NODE: (
        Right(("get", *_FOLLOW), resources.PODS),
        Right(("patch",), resources.PODS, "status"),
        Right(_FOLLOW, resources.NODES),
        Right(("patch",), resources.NODES, "status"),
        Right(("list",), resources.RESOURCE_SLICES),
    ),
}


def program_of(container: Mapping[str, Any]) -> str:
    """Which of them a container runs; empty: none."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return next((each for each in NEEDED if words[: len(each.split())] == each.split()), "")
