"""What a real API server refuses to change in an object that is there, by kind, as its validation has it."""

from __future__ import annotations

from typing import Any

from tests.kube.fake_api.store import Kind, Object, invalid

_FIXED: dict[str, tuple[tuple[str, ...], ...]] = {
    "Deployment": (("spec", "selector"),),
    "DaemonSet": (("spec", "selector"),),
    "Service": (("spec", "clusterIP"),),
    "RoleBinding": (("roleRef",),),
    "ClusterRoleBinding": (("roleRef",),),
    "PriorityClass": (("value",), ("preemptionPolicy",)),
    "Secret": (("type",),),
    "CustomResourceDefinition": (("spec", "group"), ("spec", "scope"), ("spec", "names")),
}
"""Paths of fields. Of a definition's names only some are fixed: we change none."""
_CHANGES_IN_SETS = frozenset(
    {"replicas", "ordinals", "template", "updateStrategy", "persistentVolumeClaimRetentionPolicy", "minReadySeconds"}
)
"""All of a StatefulSet's `spec` that may change."""


def check_unchanged(kind: Kind, item: Object, old: Object) -> None:
    """Raises ApiFailure 422 for a field that is fixed; also for a version that objects are stored in and that goes."""
    fixed = _FIXED.get(kind.kind, ())
    if kind.kind == "StatefulSet":
        fixed = tuple(("spec", name) for name in sorted({*old["spec"], *item["spec"]} - _CHANGES_IN_SETS))
    for path in fixed:
        if _at(item, path) != _at(old, path):
            raise invalid(kind, old["metadata"]["name"], f"{'.'.join(path)}: Invalid value: field is immutable")
    if kind.kind == "CustomResourceDefinition":
        (stored,) = [version["name"] for version in old["spec"]["versions"] if version["storage"]]
        if stored not in [version["name"] for version in item["spec"]["versions"]]:
            raise invalid(kind, old["metadata"]["name"], f"status.storedVersions[0]: {stored}: must appear in versions")


def _at(item: Object, path: tuple[str, ...]) -> Any:
    found: Any = item
    for name in path:
        found = found.get(name)
    return "Opaque" if path == ("type",) and found is None else found
