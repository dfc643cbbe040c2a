"""The HTTP side: paths, verbs, who calls, and faults that tests ask for."""

from __future__ import annotations

import asyncio
import base64
import binascii
import bisect
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self

import msgspec
from aiohttp import web

from tests.kube.fake_api import pods, policies, quotas, webhooks
from tests.kube.fake_api.rights import Asked, Rule
from tests.kube.fake_api.selectors import selector
from tests.kube.fake_api.store import ApiFailure, Kind, Object, Store, Watcher, invalid, told
from tests.kube.fake_api.unchangeable import check_unchanged

ADMIN = "admin-token"
KINDS = (
    ("v1", "pods", "Pod", True),
    ("v1", "nodes", "Node", False),
    ("v1", "namespaces", "Namespace", False),
    ("v1", "events", "Event", True),
    ("v1", "configmaps", "ConfigMap", True),
    ("v1", "podtemplates", "PodTemplate", True),
    ("v1", "resourcequotas", "ResourceQuota", True),
    ("v1", "services", "Service", True),
    ("v1", "secrets", "Secret", True),
    ("v1", "serviceaccounts", "ServiceAccount", True),
    ("apps/v1", "deployments", "Deployment", True),
    ("apps/v1", "daemonsets", "DaemonSet", True),
    ("apps/v1", "statefulsets", "StatefulSet", True),
    ("networking.k8s.io/v1", "ingresses", "Ingress", True),
    ("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy", True),
    ("policy/v1", "poddisruptionbudgets", "PodDisruptionBudget", True),
    ("rbac.authorization.k8s.io/v1", "roles", "Role", True),
    ("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding", True),
    ("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", False),
    ("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", False),
    ("autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler", True),
    ("autoscaling.x-k8s.io/v1", "provisioningrequests", "ProvisioningRequest", True),
    ("coordination.k8s.io/v1", "leases", "Lease", True),
    ("resource.k8s.io/v1", "deviceclasses", "DeviceClass", False),
    ("resource.k8s.io/v1", "resourceclaims", "ResourceClaim", True),
    ("resource.k8s.io/v1", "resourceslices", "ResourceSlice", False),
    ("scheduling.k8s.io/v1", "priorityclasses", "PriorityClass", False),
    ("apiextensions.k8s.io/v1", "customresourcedefinitions", "CustomResourceDefinition", False),
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False),
    ("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
    ("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False),
)


@dataclass
class Faults:
    """What goes wrong, as long as a test wants it."""

    frozen: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: every call hangs. (Set at first.)"""
    silent: bool = False
    """Watches say nothing more and don't end: half open."""
    later: list[tuple[int, str]] = field(default_factory=list)
    """Answers (status, Retry-After) for the next calls."""
    lose_answer: Callable[[str, str], bool] = lambda method, path: False
    """Carried out, but the connection breaks before the answer."""
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    """Pairs of verb and resource that nobody but the administrator may."""


class FakeApi:
    """See the package's docstring. `await start()`; then `url`."""

    def __init__(self, *, bookmark_s: float = 0.2) -> None:
        self.store = Store()
        self.faults = Faults()
        self.faults.frozen.set()
        self.tokens: dict[str, str] = {ADMIN: "system:admin"}
        """User by token."""
        self.reviewable: dict[str, tuple[str, list[str]]] = {}
        """What TokenReview knows: token -> user, audiences."""
        self.rules: dict[str, tuple[Rule, ...]] = {}
        """Of users that may do this and nothing else; who has none may everything."""
        self.minor = 36
        """The version that it says it is of."""
        self.gates: dict[str, bool] = {"DynamicResourceAllocation": True, "DRAConsumableCapacity": True}
        """As its metrics tell them."""
        self.kubelets: dict[str, Object] = {}
        """The configuration of those that it reaches, by node."""
        self.calls: list[tuple[str, str]] = []
        self.bookmark_s = bookmark_s
        self.url = ""
        self._runner: web.AppRunner | None = None
        self._watches: set[asyncio.Task[Any]] = set()
        for version, plural, kind, namespaced in KINDS:
            self.store.serve(version, plural, kind, namespaced=namespaced)
        self.pods = self.store.kind("v1", "pods")
        self.store.admission += [policies.admission(self.store), quotas.admission(self.store)]

    async def start(self, port: int = 0) -> None:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        """Objects stay: a `start` on the same port is a restart."""
        self.drop_watches()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def drop_watches(self) -> None:
        """End every watch that is open."""
        for kind in self.store.kinds.values():
            for watcher in list(kind.watchers):
                watcher.queue.put_nowait(None)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.faults.frozen.set()
        await self.stop()

    # ------------------------------------------------------------------------------------------------------- calls

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        await self.faults.frozen.wait()
        self.calls.append((request.method, request.path))
        if len(self.calls) > 100_000:
            del self.calls[:50_000]
        if self.faults.later:
            status, after = self.faults.later.pop(0)
            failure = ApiFailure(status, "TooManyRequests", "later")
            headers = {"Retry-After": after} if after else {}
            return web.Response(status=status, body=msgspec.json.encode(failure.document()), headers=headers)
        try:
            user = self._user(request)
            code, answer = await self._route(request, user)
        except ApiFailure as refusal:
            code, answer = refusal.code, msgspec.json.encode(refusal.document())
        except (KeyError, TypeError, ValueError) as error:
            failure = ApiFailure(400, "BadRequest", f"{type(error).__name__}: {error}")
            code, answer = 400, msgspec.json.encode(failure.document())
        if isinstance(answer, web.StreamResponse):
            return answer
        if self.faults.lose_answer(request.method, request.path):
            assert request.transport is not None
            request.transport.close()
        return web.Response(status=code, body=answer, content_type="application/json")

    def _user(self, request: web.Request) -> str:
        text = request.headers.get("Authorization", "")
        user = self.tokens.get(text.removeprefix("Bearer "))
        if user is None:
            raise ApiFailure(401, "Unauthorized", "Unauthorized")
        return user

    async def _route(self, request: web.Request, user: str) -> tuple[int, Any]:
        parts = request.path.strip("/").split("/")
        if parts[:1] == ["version"]:
            return 200, b'{"major":"1","minor":"%d","gitVersion":"v1.%d.0-fake"}' % (self.minor, self.minor)
        if parts[:1] in (["healthz"], ["readyz"]):
            return 200, b'"ok"'
        if parts == ["metrics"]:
            self._permit(user, Asked("get", "", "/metrics"))
            lines = [f'kubernetes_feature_enabled{{name="{name}",stage=""}} {on:d}' for name, on in self.gates.items()]
            return 200, "\n".join(["# HELP kubernetes_feature_enabled [BETA] …", *lines, ""]).encode()
        version, rest = ("v1", parts[2:]) if parts[0] == "api" else ("/".join(parts[1:3]), parts[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        if not rest:
            return 200, self._discovery(version)
        plural, name, sub = (*rest, "", "")[:3]
        if plural in {"tokenreviews", "subjectaccessreviews"}:
            return 201, self._review(plural, msgspec.json.decode(await request.read()))
        kind = self.store.kind(version, plural)
        verb = {
            "GET": "get" if name else "list",
            "POST": "create",
            "PUT": "update",
            "PATCH": "patch",
            "DELETE": "delete",
        }
        done = "watch" if request.query.get("watch") else "create" if sub == "binding" else verb[request.method]
        what = f"{plural}/{sub}" if sub else plural
        self._permit(user, Asked(done, version.rpartition("/")[0], what, namespace, name))
        if what == "nodes/proxy":
            return 200, self._configz(name, rest[3:])
        if request.method == "GET":
            if name:
                return 200, kind.encoded.get((namespace, name)) or msgspec.json.encode(
                    self.store.get(kind, namespace, name)
                )
            if request.query.get("watch") in {"true", "1"}:
                return 200, await self._watch(request, kind, namespace)
            return 200, self._list(request, kind, namespace)
        body = await request.read()
        if request.method == "POST" and plural == "pods" and not name:
            pod = msgspec.json.decode(body)
            pod.setdefault("spec", {}).setdefault("schedulerName", "default-scheduler")
            body = msgspec.json.encode(await webhooks.mutate(self.store, namespace, pod))
        return self._write(request, user, kind, (namespace, name), sub, body)

    def _configz(self, node: str, path: list[str]) -> bytes:
        """What the API server hears of a kubelet, if there is one that it reaches."""
        if path != ["configz"]:
            raise ApiFailure(404, "NotFound", "404 page not found")
        if node not in self.kubelets:
            raise ApiFailure(503, "ServiceUnavailable", "error trying to reach service: dial tcp: connection refused")
        return msgspec.json.encode({"kubeletconfig": self.kubelets[node]})

    def _permit(self, user: str, asked: Asked) -> None:
        if not self._may(user, asked):
            message = f'{asked.resource} is forbidden: User "{user}" cannot {asked.verb} resource "{asked.resource}"'
            raise ApiFailure(403, "Forbidden", message)

    def _may(self, user: str, asked: Asked) -> bool:
        if user == "system:admin":
            return True
        rules = self.rules.get(user)
        allowed = rules is None or any(rule.allows(asked) for rule in rules)
        return allowed and (asked.verb, asked.resource) not in self.faults.forbidden

    def _write(
        self, request: web.Request, user: str, kind: Kind, key: tuple[str, str], sub: str, body: bytes
    ) -> tuple[int, bytes]:
        namespace, name = key
        document = msgspec.json.decode(body) if body else {}
        if request.method == "POST" and not name:
            if kind.plural == "pods":
                document.setdefault("metadata", {}).setdefault("name", document["metadata"].get("generateName", ""))
                pods.check_pod(kind, document)
                pods.default_pod(self.store, document)
            if kind.plural == "customresourcedefinitions":
                self._define(document)
            if kind.plural == "services":
                document["spec"].setdefault("clusterIP", f"10.96.0.{len(kind.items) + 1}")
            dry = request.query.get("dryRun") == "All"
            return 201, msgspec.json.encode(self.store.create(kind, namespace, document, user, dry_run=dry))
        if request.method == "POST" and sub == "binding":
            policies.check(self.store, "CREATE", "pods/binding", document, None, user)
            return 201, msgspec.json.encode(pods.bind(self.store, kind, key, document))
        if request.method == "POST" and sub == "eviction":
            options = document.get("deleteOptions") or {}
            self.store.delete(kind, key, options.get("preconditions") or {}, options.get("gracePeriodSeconds"))
            return 201, b'{"kind":"Status","apiVersion":"v1","status":"Success"}'
        if request.method == "DELETE":
            grace = request.query.get("gracePeriodSeconds", document.get("gracePeriodSeconds"))
            preconditions = document.get("preconditions") or {}
            gone = self.store.delete(kind, key, preconditions, None if grace is None else int(grace))
            return 200, msgspec.json.encode(gone)
        if request.method == "PUT":
            return 200, msgspec.json.encode(self._replace(kind, key, sub, document, user))
        if request.method == "PATCH":
            return self._patch(request, kind, key, sub, document, user)
        raise ApiFailure(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _replace(self, kind: Kind, key: tuple[str, str], sub: str, item: Object, user: str) -> Object:
        old = self.store.get(kind, *key)
        if sub == "status":
            # Of built-in kinds a write to /status may change labels and annotations too; of custom ones it may not.
            also = ("labels", "annotations") if kind.version == "v1" else ()
            meta = {**old["metadata"], **_precondition(item)}
            meta |= {name: item["metadata"][name] for name in also if name in (item.get("metadata") or {})}
            item = {**old, "status": item.get("status", {}), "metadata": meta}
        elif "status" in kind.subresources and "status" in old:
            item = {**item, "status": old["status"]}
        if kind.plural == "pods" and not sub:
            pods.check_update(kind, item, old)
        if not sub:
            check_unchanged(kind, item, old)
        return self.store.update(kind, key, item, user, f"UPDATE/{sub}" if sub else "UPDATE")

    def _patch(
        self, request: web.Request, kind: Kind, key: tuple[str, str], sub: str, patch: Object, user: str
    ) -> tuple[int, bytes]:
        content = request.content_type
        if content == "application/apply-patch+yaml" and key not in kind.items:
            if "fieldManager" not in request.query:
                raise ApiFailure(400, "BadRequest", "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
            patch.setdefault("metadata", {})["name"] = key[1]
            return 201, msgspec.json.encode(self.store.create(kind, key[0], patch, user))
        if content not in {
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        }:
            raise ApiFailure(
                415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content}"
            )
        old = self.store.get(kind, *key)
        uid = old["metadata"]["uid"]
        if (patch.get("metadata") or {}).get("uid", uid) != uid:  # a PUT is told 409, a patch this
            raise invalid(kind, key[1], f"metadata.uid: Invalid value: {patch['metadata']['uid']}: field is immutable")
        item = merged(old, patch)
        if content != "application/merge-patch+json" and "conditions" in (patch.get("status") or {}):
            before = (old.get("status") or {}).get("conditions") or []
            item["status"]["conditions"] = pods.merge_conditions(before, patch["status"]["conditions"])
        return 200, msgspec.json.encode(self._replace(kind, key, sub, item, user))

    # ------------------------------------------------------------------------------------------- lists and watches

    def _list(self, request: web.Request, kind: Kind, namespace: str) -> bytes:
        chosen = selector(request.query.get("fieldSelector", ""), request.query.get("labelSelector", ""))
        limit = int(request.query.get("limit", 0))
        token = request.query.get("continue", "")
        version, after = self.store.version, ("", "")
        if token:
            try:
                version_text, *rest = base64.b64decode(token).decode().split("\x00")
                version, after = int(version_text), (rest[0], rest[1])
            except (ValueError, binascii.Error, IndexError):
                raise ApiFailure(400, "BadRequest", "continue key is not valid") from None
            if version < kind.oldest:
                raise ApiFailure(410, "Expired", "The provided continue parameter is too old")
        found: list[bytes] = []
        last, more = after, False
        keys = kind.keys()
        for key in itertools.islice(keys, bisect.bisect_right(keys, after), None):
            item = kind.items[key]
            if (namespace and key[0] != namespace) or not chosen(item):
                continue
            if limit and len(found) == limit:
                more = True
                break
            found.append(kind.encoded[key])
            last = key
        meta: dict[str, str] = {"resourceVersion": str(version)}
        if more:
            meta["continue"] = base64.b64encode(f"{version}\x00{last[0]}\x00{last[1]}".encode()).decode()
        head = {"kind": f"{kind.kind}List", "apiVersion": kind.version, "metadata": meta}
        return msgspec.json.encode(head)[:-1] + b',"items":[' + b",".join(found) + b"]}"

    async def _watch(self, request: web.Request, kind: Kind, namespace: str) -> web.StreamResponse:
        chosen = selector(request.query.get("fieldSelector", ""), request.query.get("labelSelector", ""))
        text = request.query.get("resourceVersion", "0")
        since = int(text or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        if since and since < kind.oldest:
            failure = ApiFailure(410, "Expired", f"too old resource version: {since} ({kind.oldest})")
            await response.write(msgspec.json.encode({"type": "ERROR", "object": failure.document()}) + b"\n")
            return response
        watcher = Watcher(namespace, chosen)
        if since:
            for change in kind.history:
                if change.version > since and (line := told(change, namespace, chosen)) is not None:
                    watcher.queue.put_nowait(line)
        else:
            for key, item in kind.items.items():
                if (not namespace or key[0] == namespace) and chosen(item):
                    watcher.queue.put_nowait(b'{"type":"ADDED","object":%s}\n' % kind.encoded[key])
        kind.watchers.add(watcher)
        try:
            await self._stream(request, kind, watcher, response)
            while self.faults.silent:  # noqa: ASYNC110 - a test sets it at any time
                await asyncio.sleep(0.02)
        finally:
            kind.watchers.discard(watcher)
        return response

    async def _stream(self, request: web.Request, kind: Kind, watcher: Watcher, response: web.StreamResponse) -> None:
        bookmarks = request.query.get("allowWatchBookmarks") in {"true", "1"}
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(float(request.query.get("timeoutSeconds", 1800))):
                while True:
                    try:
                        async with asyncio.timeout(self.bookmark_s):
                            line = await watcher.queue.get()
                    except TimeoutError:
                        if bookmarks and not self.faults.silent:
                            await response.write(_bookmark(kind, self.store.version))
                        continue
                    lines = [line]
                    while not watcher.queue.empty():
                        lines.append(watcher.queue.get_nowait())
                    while self.faults.silent:  # noqa: ASYNC110 - a test sets it at any time
                        await asyncio.sleep(0.02)
                    await response.write(b"".join(line for line in lines if line is not None))
                    if None in lines:
                        return

    # ----------------------------------------------------------------------------------------------------- the rest

    def _discovery(self, version: str) -> bytes:
        found = [
            {"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced, "verbs": ["get", "list", "watch"]}
            for kind in self.store.kinds.values()
            if kind.version == version
        ]
        if not found:
            raise ApiFailure(404, "NotFound", "the server could not find the requested resource")
        return msgspec.json.encode({"kind": "APIResourceList", "groupVersion": version, "resources": found})

    def _define(self, crd: Object) -> None:
        spec = crd["spec"]
        for version in spec["versions"]:
            if version.get("served", True):
                self.store.serve(
                    f"{spec['group']}/{version['name']}",
                    spec["names"]["plural"],
                    spec["names"]["kind"],
                    namespaced=spec["scope"] == "Namespaced",
                    status="status" in (version.get("subresources") or {}),
                )

    def _review(self, plural: str, document: Object) -> bytes:
        if plural == "subjectaccessreviews":
            user = document["spec"]["user"]
            asked = document["spec"]["resourceAttributes"]
            what = f"{asked['resource']}/{asked['subresource']}" if asked.get("subresource") else asked["resource"]
            where = asked.get("namespace", ""), asked.get("name", "")
            allowed = self._may(user, Asked(asked["verb"], asked.get("group", ""), what, *where))
            return msgspec.json.encode({**document, "status": {"allowed": allowed}})
        known, audiences = self.reviewable.get(document["spec"]["token"], ("", []))
        common = [name for name in audiences if name in (document["spec"].get("audiences") or audiences)]
        if not known or not common:
            status: Object = {"authenticated": False, "error": "not known"}
        else:
            status = {"authenticated": True, "user": {"username": known, "uid": "1", "groups": []}, "audiences": common}
        return msgspec.json.encode({**document, "status": status})


def merged(old: Any, patch: Any) -> Any:
    """A JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


def _precondition(item: Object) -> Object:
    return {name: value for name, value in (item.get("metadata") or {}).items() if name in {"uid", "resourceVersion"}}


def _bookmark(kind: Kind, version: int) -> bytes:
    item = {"kind": kind.kind, "apiVersion": kind.version, "metadata": {"resourceVersion": str(version)}}
    return msgspec.json.encode({"type": "BOOKMARK", "object": item}) + b"\n"


@contextlib.asynccontextmanager
async def fake_api(**options: Any) -> AsyncIterator[FakeApi]:
    """One that serves until the end."""
    async with FakeApi(**options) as api:
        yield api
