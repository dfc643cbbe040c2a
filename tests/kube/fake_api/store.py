"""The objects, their versions and their history: what etcd and the API server's registry do, in one process."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tests.kube.fake_api.selectors import Test

Object = dict[str, Any]
HISTORY = 100_000
"""Events of one kind that watches may begin behind: as many as a real server keeps of a kind that changes quickly."""


class ApiFailure(Exception):
    """An answer of 4xx or 5xx."""

    def __init__(self, code: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def document(self) -> Object:
        """The `Status`."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": self.reason,
            "message": self.message,
            "code": self.code,
            **({"details": self.details} if self.details else {}),
        }


@dataclass(slots=True)
class Change:
    """One write, with the object before it: a watch needs both to know what its selector makes of it."""

    version: int
    type: str
    item: Object
    before: Object | None
    encoded: bytes


@dataclass(eq=False)
class Watcher:
    """One open watch."""

    namespace: str
    chosen: Test
    queue: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)


@dataclass(eq=False)
class Kind:
    """All objects of a kind."""

    version: str
    plural: str
    kind: str
    namespaced: bool
    subresources: frozenset[str] = frozenset({"status"})
    items: dict[tuple[str, str], Object] = field(default_factory=dict)
    encoded: dict[tuple[str, str], bytes] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=lambda: deque(maxlen=HISTORY))
    watchers: set[Watcher] = field(default_factory=set)
    oldest: int = 0
    """Watches from before it are told 410."""
    ordered: list[tuple[str, str]] | None = None
    """The keys as lists give them; None: they have changed."""

    def keys(self) -> list[tuple[str, str]]:
        """In the order of lists."""
        if self.ordered is None:
            self.ordered = sorted(self.items)
        return self.ordered


Admission = Callable[[str, "Kind", Object, Object | None, str], None]
"""`(operation, kind, new, old, user)`; raises ApiFailure to deny, changes `new` to mutate."""


class Store:
    """Every kind, one counter of versions."""

    def __init__(self) -> None:
        self.version = 1000
        self.kinds: dict[tuple[str, str], Kind] = {}
        self.admission: list[Admission] = []
        self.extra: dict[str, dict[str, list[str]]] = {}
        """What tokens say of users beside their names, as which node a pod's account is on."""

    def kind(self, version: str, plural: str) -> Kind:
        """Raises ApiFailure for one that is not served."""
        try:
            return self.kinds[version, plural]
        except KeyError:
            raise ApiFailure(404, "NotFound", "the server could not find the requested resource") from None

    def serve(self, version: str, plural: str, kind: str, *, namespaced: bool = True, status: bool = True) -> Kind:
        """Serve a kind."""
        made = Kind(version, plural, kind, namespaced, frozenset({"status"} if status else ()))
        return self.kinds.setdefault((version, plural), made)

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Raises ApiFailure."""
        try:
            return kind.items[namespace, name]
        except KeyError:
            raise not_found(kind, name) from None

    def create(self, kind: Kind, namespace: str, item: Object, user: str = "", *, dry_run: bool = False) -> Object:
        """Raises ApiFailure. A dry run goes through all that may refuse it, and keeps nothing."""
        item = msgspec.json.decode(msgspec.json.encode(item))
        meta = item.setdefault("metadata", {})
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + uuid.uuid4().hex[:5]
        if not meta.get("name"):
            raise invalid(kind, "", "metadata.name: Required value: name or generateName is required")
        if kind.namespaced:
            meta["namespace"] = namespace
        key = (namespace if kind.namespaced else "", meta["name"])
        if key in kind.items:
            raise ApiFailure(409, "AlreadyExists", f'{kind.plural} "{meta["name"]}" already exists')
        meta.update(uid=str(uuid.uuid4()), creationTimestamp=now_text(), generation=1)
        item.setdefault("apiVersion", kind.version)
        item.setdefault("kind", kind.kind)
        if "status" in kind.subresources and kind.plural not in {"nodes", "pods"}:
            item.pop("status", None)
        for admit in self.admission:
            admit("CREATE", kind, item, None, user)
        if dry_run:
            return item
        return self.write(kind, key, item, "ADDED")

    def update(
        self, kind: Kind, key: tuple[str, str], item: Object, user: str = "", operation: str = "UPDATE"
    ) -> Object:
        """Replace, at the version that is named in it (none: whatever there is). Raises ApiFailure."""
        old = self.get(kind, *key)
        meta = item.setdefault("metadata", {})
        wanted = meta.get("resourceVersion")
        if wanted and wanted != old["metadata"]["resourceVersion"]:
            raise ApiFailure(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {kind.plural} "{key[1]}": the object has been modified; '
                "please apply your changes to the latest version and try again",
            )
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise ApiFailure(409, "Conflict", f"Precondition failed: UID in precondition: {meta.get('uid')}")
        for name in ("uid", "creationTimestamp", "generation", "name", "namespace", "deletionTimestamp"):
            if name in old["metadata"]:
                meta[name] = old["metadata"][name]
            else:
                meta.pop(name, None)
        for admit in self.admission:
            admit(operation, kind, item, old, user)
        if item.get("spec") != old.get("spec"):
            meta["generation"] = old["metadata"].get("generation", 1) + 1
        meta["resourceVersion"] = old["metadata"]["resourceVersion"]
        if item == old:
            return old
        written = self.write(kind, key, item, "MODIFIED")
        if "deletionTimestamp" in meta and not meta.get("finalizers"):
            return self.remove(kind, key)
        return written

    def delete(self, kind: Kind, key: tuple[str, str], preconditions: Mapping[str, str], grace_s: int | None) -> Object:
        """A bound pod goes on until its kubelet says that it is gone; what has finalizers until they are taken off."""
        old = self.get(kind, *key)
        for name in ("uid", "resourceVersion"):
            if preconditions.get(name) not in {None, old["metadata"].get(name)}:
                raise ApiFailure(409, "Conflict", f"Precondition failed: {name}: {preconditions[name]}")
        phase = (old.get("status") or {}).get("phase")
        if kind.plural == "pods" and grace_s is None:
            grace_s = old["spec"].get("terminationGracePeriodSeconds")
        runs = kind.plural == "pods" and old["spec"].get("nodeName") and grace_s != 0
        if (runs and phase not in {"Succeeded", "Failed"}) or old["metadata"].get("finalizers"):
            if "deletionTimestamp" in old["metadata"]:
                return old
            item = {**old, "metadata": {**old["metadata"], "deletionTimestamp": now_text()}}
            return self.write(kind, key, item, "MODIFIED")
        return self.remove(kind, key)

    def remove(self, kind: Kind, key: tuple[str, str]) -> Object:
        """It is gone."""
        old = kind.items.pop(key)
        kind.ordered = None
        kind.encoded.pop(key, None)
        item = {**old, "metadata": {**old["metadata"]}}
        self._tell(kind, "DELETED", item, old)
        return item

    def write(self, kind: Kind, key: tuple[str, str], item: Object, type_: str) -> Object:
        """Keep it under the next version."""
        before = kind.items.get(key)
        if before is None:
            kind.ordered = None
        kind.items[key] = item
        kind.encoded[key] = self._tell(kind, type_, item, before)
        return item

    def _tell(self, kind: Kind, type_: str, item: Object, before: Object | None) -> bytes:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        encoded = msgspec.json.encode(item)
        change = Change(self.version, type_, item, before, encoded)
        if len(kind.history) == kind.history.maxlen:
            kind.oldest = kind.history[0].version
        kind.history.append(change)
        for watcher in list(kind.watchers):
            line = told(change, watcher.namespace, watcher.chosen)
            if line is not None:
                watcher.queue.put_nowait(line)
        return encoded

    def compact(self) -> None:
        """Forget all history, as etcd does after five minutes; lists under way and old watches get 410."""
        for kind in self.kinds.values():
            kind.history.clear()
            kind.oldest = self.version


def told(change: Change, namespace: str, chosen: Test) -> bytes | None:
    """A watch's line for a change: what leaves its selector is deleted to it, what enters is added."""
    if namespace and change.item["metadata"].get("namespace") != namespace:
        return None
    is_, was = chosen(change.item), change.before is not None and chosen(change.before)
    if change.type == "DELETED":
        type_ = "DELETED" if was else ""
    elif is_:
        type_ = "MODIFIED" if was else "ADDED"
    else:
        type_ = "DELETED" if was else ""
    if not type_:
        return None
    return b'{"type":"%s","object":%s}\n' % (type_.encode(), change.encoded)


def now_text() -> str:
    """As the API writes times."""
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def not_found(kind: Kind, name: str) -> ApiFailure:
    """404."""
    return ApiFailure(404, "NotFound", f'{kind.plural} "{name}" not found')


def invalid(kind: Kind, name: str, message: str) -> ApiFailure:
    """422."""
    return ApiFailure(422, "Invalid", f'{kind.kind} "{name}" is invalid: {message}')
