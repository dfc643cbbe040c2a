"""Who calls the metrics APIs, and whether they may: the API server's word for both, kept for some seconds."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections import OrderedDict
from typing import Any, Final, Generic, TypeVar

import msgspec
from aiohttp import web

from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.core.scaling.callers import (
    CONFIG_MAP,
    MASTERS,
    Caller,
    FrontProxy,
    NotKnown,
    authenticated,
    front_proxy,
    review_of,
)
from aliquot.kube.core.scaling.metrics_documents import Asked

_KEPT_S: Final = 10.0
_KEPT_MOST: Final = 2000
_TOKEN_CHARS_MAX: Final = 16_384

V = TypeVar("V")


async def read_front_proxy(client: KubeClient) -> FrontProxy:
    """Whom the API server's front proxy is known by. Raises ConfigError, KubeError."""
    path = resources.CONFIG_MAPS.path("kube-system", CONFIG_MAP)
    return front_proxy(msgspec.json.decode(await client.get(path)).get("data") or {})


class _Kept(Generic[V]):
    """Answers of the last seconds, the latest asked last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, V]] = OrderedDict()

    def get(self, key: str) -> V | None:
        at, value = self._kept.get(key, (float("-inf"), None))
        return value if asyncio.get_running_loop().time() - at < _KEPT_S else None

    def put(self, key: str, value: V) -> None:
        self._kept[key] = (asyncio.get_running_loop().time(), value)
        self._kept.move_to_end(key)
        while len(self._kept) > _KEPT_MOST:
            self._kept.popitem(last=False)


class Callers:
    """Knows callers: by the front proxy's certificate and headers, else by their token."""

    def __init__(self, client: KubeClient, proxy: FrontProxy) -> None:
        self._client = client
        self._proxy = proxy
        self._tokens: _Kept[Caller] = _Kept()
        self._allowed: _Kept[bool] = _Kept()

    async def of(self, request: web.Request) -> Caller:
        """Who calls. Raises NotKnown, KubeError."""
        certified = _common_name(request)
        if certified is not None:
            return self._proxy.caller(certified, list(request.headers.items()))
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token or len(token) > _TOKEN_CHARS_MAX:
            raise NotKnown("no certificate of the front proxy, and no token")
        return await self._by_token(token.strip())

    async def _by_token(self, token: str) -> Caller:
        key = hashlib.sha256(token.encode()).hexdigest()
        known = self._tokens.get(key)
        if known is not None:
            return known
        answer = await self._client.post(resources.TOKEN_REVIEWS.path(), {"spec": {"token": token}})
        status = msgspec.json.decode(answer).get("status") or {}
        if not status.get("authenticated"):
            raise NotKnown("the API server does not know this token")
        user: dict[str, Any] = status["user"]
        extra = {name: tuple(values) for name, values in (user.get("extra") or {}).items()}
        caller = authenticated(user["username"], user.get("groups") or (), extra)
        self._tokens.put(key, caller)
        return caller

    async def may(self, caller: Caller, path: str, asked: Asked | None) -> bool:
        """Whether the caller may have that. Raises KubeError."""
        if MASTERS in caller.groups:
            return True
        review = review_of(caller, path, asked)
        key = hashlib.sha256(msgspec.json.encode(review, order="deterministic")).hexdigest()
        known = self._allowed.get(key)
        if known is None:
            answer = await self._client.post(resources.SUBJECT_REVIEWS.path(), review)
            known = bool((msgspec.json.decode(answer).get("status") or {}).get("allowed"))
            self._allowed.put(key, known)
        return known


def _common_name(request: web.Request) -> str | None:
    """Of the certificate that the caller has shown, which was checked at the handshake; None: it has shown none."""
    if request.transport is None:
        return None
    shown: ssl.SSLObject | None = request.transport.get_extra_info("ssl_object")
    certificate = shown.getpeercert() if shown is not None else None
    if not certificate:
        return None
    subject: Any = certificate.get("subject", ())
    return next((value for row in subject for key, value in row if key == "commonName"), "")
