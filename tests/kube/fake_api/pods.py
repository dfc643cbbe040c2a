"""What is special about pods: binding, eviction, and extended resources, which are whole."""

from __future__ import annotations

from typing import Any

from tests.kube.fake_api.store import ApiFailure, Kind, Object, Store, invalid, now_text


def check_pod(kind: Kind, item: Object) -> None:
    """As the API server validates extended resources: whole numbers, and requests equal to limits."""
    spec = item.get("spec") or {}
    if not spec.get("containers"):
        raise invalid(kind, item["metadata"]["name"], "spec.containers: Required value")
    for place in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(place) or ()):
            resources = container.setdefault("resources", {})
            limits, requests = resources.get("limits") or {}, resources.setdefault("requests", {})
            for name, value in list(limits.items()):
                limits[name] = str(value)
                requests.setdefault(name, str(value))
                if "/" not in name:
                    continue
                where = f"spec.{place}[{index}].resources.limits[{name}]"
                if not str(value).isdecimal():
                    raise invalid(kind, item["metadata"]["name"], f"{where}: Invalid value: must be an integer")
                if str(requests[name]) != str(value):
                    raise invalid(kind, item["metadata"]["name"], f"{where}: must be equal to {name} limit")
            if not requests:
                resources.pop("requests")


def default_pod(store: Store, item: Object) -> None:
    """What the API server fills in."""
    spec = item["spec"]
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("restartPolicy", "Always")
    item.setdefault("status", {}).setdefault("phase", "Pending")
    name = spec.get("priorityClassName")
    if name and ("scheduling.k8s.io/v1", "priorityclasses") in store.kinds:
        found = store.kinds["scheduling.k8s.io/v1", "priorityclasses"].items.get(("", name))
        if found is None:
            raise ApiFailure(403, "Forbidden", f"no PriorityClass with name {name} was found")
        spec["priority"] = found["value"]
    spec.setdefault("priority", 0)


def bind(store: Store, kind: Kind, key: tuple[str, str], binding: Object) -> Object:
    """Set the node and merge the annotations in one write."""
    old = store.get(kind, *key)
    meta = binding.get("metadata") or {}
    if meta.get("uid") and meta["uid"] != old["metadata"]["uid"]:
        raise ApiFailure(
            409,
            "Conflict",
            f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: {old['metadata']['uid']}",
        )
    if "deletionTimestamp" in old["metadata"]:
        raise ApiFailure(409, "Conflict", f"pod {key[1]} is being deleted, cannot be assigned to a host")
    if old["spec"].get("nodeName"):
        raise ApiFailure(409, "Conflict", f'pod {key[1]} is already assigned to node "{old["spec"]["nodeName"]}"')
    if old["spec"].get("schedulingGates"):
        raise ApiFailure(409, "Conflict", f"pod {key[1]} has non-empty .spec.schedulingGates")
    annotations = {**(old["metadata"].get("annotations") or {}), **(meta.get("annotations") or {})}
    conditions = [c for c in old["status"].get("conditions", []) if c["type"] != "PodScheduled"]
    conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": now_text()})
    item = {
        **old,
        "metadata": {**old["metadata"], "annotations": annotations},
        "spec": {**old["spec"], "nodeName": binding["target"]["name"]},
        "status": {**old["status"], "conditions": conditions},
    }
    store.write(kind, key, item, "MODIFIED")
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def check_update(kind: Kind, item: Object, old: Object) -> None:
    """Of a pod's spec next to nothing may change; where it runs by /binding alone."""
    if item["spec"].get("nodeName") != old["spec"].get("nodeName"):
        raise ApiFailure(403, "Forbidden", "pod updates may not change fields other than spec.containers[*].image")


def merge_conditions(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A strategic merge: conditions are one of each type."""
    found = {condition["type"]: condition for condition in old}
    for condition in new:
        found[condition["type"]] = {**found.get(condition["type"], {}), **condition}
    return list(found.values())
