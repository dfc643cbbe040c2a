"""Aggregation: what an APIService names is asked on its caller's behalf, with the front proxy's certificate."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from tests.certificates import Authority
from tests.kube.fake_api.store import ApiFailure, Kind, Object, Store

VERSION = "apiregistration.k8s.io/v1"
CONFIG_MAP = "extension-apiserver-authentication"


@dataclass
class Aggregation:
    """The front proxy: its certificate, and where Services are."""

    certificate: Path
    key: Path
    services: dict[tuple[str, str], str] = field(default_factory=dict)
    """`https://HOST:PORT` by namespace and name."""

    async def ask(
        self, apis: Kind, path: str, query: Mapping[str, str], user: str, groups: list[str]
    ) -> tuple[int, bytes] | None:
        """The aggregated server's answer; None: the path is no aggregated API's. Raises ApiFailure."""
        parts = path.strip("/").split("/")
        if parts[0] != "apis" or len(parts) < 3:
            return None
        item = apis.items.get(("", f"{parts[2]}.{parts[1]}"))
        if item is None or "service" not in item["spec"]:
            return None
        return await self._call(item["spec"], path, query, user, groups)

    async def _call(
        self, spec: Object, path: str, query: Mapping[str, str], user: str, groups: list[str]
    ) -> tuple[int, bytes]:
        service = spec["service"]
        url = self.services.get((service["namespace"], service["name"]), "https://127.0.0.1:1")
        context = ssl.create_default_context(cadata=base64.b64decode(spec.get("caBundle", "")).decode() or None)
        context.load_cert_chain(self.certificate, self.key)
        headers = [("X-Remote-User", user), *(("X-Remote-Group", group) for group in groups)]
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session,
                session.get(url + path, params=dict(query), headers=headers, ssl=context) as response,
            ):
                return response.status, await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise ApiFailure(503, "ServiceUnavailable", f"error trying to reach service: {error}") from error


def aggregation(store: Store, authority: Authority) -> Aggregation:
    """One whose front proxy that authority certifies; the cluster says so in its ConfigMap."""
    data = {
        "client-ca-file": "another authority",
        "requestheader-client-ca-file": authority.ca.read_text(),
        "requestheader-allowed-names": '["front-proxy-client"]',
        "requestheader-username-headers": '["X-Remote-User"]',
        "requestheader-group-headers": '["X-Remote-Group"]',
        "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    }
    store.create(store.kind("v1", "configmaps"), "kube-system", {"metadata": {"name": CONFIG_MAP}, "data": data})
    return Aggregation(*authority.certify("front-proxy-client"))


def api_service(group: str, version: str, namespace: str, name: str) -> Object:
    """As a chart has it."""
    spec: dict[str, Any] = {
        "group": group,
        "version": version,
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"namespace": namespace, "name": name, "port": 443},
    }
    return {"metadata": {"name": f"{version}.{group}"}, "spec": spec}


def review(document: Object, refused: set[tuple[str, str]]) -> bytes:
    """A SubjectAccessReview; `refused` are pairs of user and resource (or path). Roles are everybody's who is known."""
    spec = document["spec"]
    asked = spec.get("resourceAttributes") or spec["nonResourceAttributes"]
    what = asked.get("subresource") or asked.get("resource") or asked["path"]
    allowed = "system:authenticated" in spec["groups"] and (spec["user"], what) not in refused
    return msgspec.json.encode({**document, "status": {"allowed": allowed}})
