"""ResourceQuotas as far as pods go: their number, and what their containers' requests of whole resources come to.

As the real plugin: after everything that changes a pod, on its creation alone, a dry run too; a pod counts what
Kubernetes' own rule makes of its containers, until it has ended. Where it is kinder: what is used is counted at once,
where a real server waits for its controller after a quota was made.
"""

from __future__ import annotations

from typing import Any

from tests.kube.fake_api.store import Admission, ApiFailure, Kind, Object, Store

_PREFIX = "requests."
_PODS = "pods"


def admission(store: Store) -> Admission:
    """What the store asks before each write."""

    def admit(operation: str, kind: Kind, item: Object, old: Object | None, user: str) -> None:
        if operation == "CREATE" and kind.plural == "pods":
            _check(store, kind, item)
        elif operation in ("CREATE", "UPDATE") and kind.plural == "resourcequotas":
            spec = item["spec"]
            unknown = [name for name in spec["hard"] if name != _PODS and not _extended(name)]
            assert not unknown, f"not counted here: {unknown}"
            assert not spec.keys() & {"scopes", "scopeSelector"}, "scopes are not known here"
            item["status"] = {"hard": dict(spec["hard"])}

    return admit


def _check(store: Store, kind: Kind, pod: Object) -> None:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    for (where, quota), item in store.kind("v1", "resourcequotas").items.items():
        if where != namespace:
            continue
        hard = {key: int(value) for key, value in item["spec"]["hard"].items()}
        asked = {key: amount for key in hard if (amount := _usage(pod, key))}
        live = [
            each
            for (at, _), each in kind.items.items()
            if at == namespace and each["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        used = {key: sum(_usage(each, key) for each in live) for key in asked}
        over = sorted(key for key in asked if used[key] + asked[key] > hard[key])
        if over:
            texts = (",".join(f"{key}={of[key]}" for key in over) for of in (asked, used, hard))
            requested, has, limited = texts
            text = f"exceeded quota: {quota}, requested: {requested}, used: {has}, limited: {limited}"
            raise ApiFailure(403, "Forbidden", f'pods "{name}" is forbidden: {text}', name=name, kind="pods")


def _extended(name: str) -> bool:
    return name.startswith(_PREFIX) and "/" in name


def _usage(pod: Object, name: str) -> int:
    """Containers side by side; those that run first one after another, each beside the sidecars that have started."""
    if name == _PODS:
        return 1

    def of(container: Any) -> int:
        return int(((container.get("resources") or {}).get("requests") or {}).get(name.removeprefix(_PREFIX), 0))

    beside = most = 0
    for init in pod["spec"].get("initContainers") or ():
        if init.get("restartPolicy") == "Always":
            beside += of(init)
            most = max(most, beside)
        else:
            most = max(most, beside + of(init))
    return max(most, beside + sum(map(of, pod["spec"]["containers"])))
