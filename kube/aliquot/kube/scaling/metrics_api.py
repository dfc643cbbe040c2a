"""custom.metrics.k8s.io and external.metrics.k8s.io, as the API server and its autoscaler ask for them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
from aiohttp import web

from aliquot.common.errors import AliquotError
from aliquot.kube.api.errors import KubeError
from aliquot.kube.core.scaling import metrics_documents as documents
from aliquot.kube.core.scaling.callers import NotKnown
from aliquot.kube.core.scaling.metrics_documents import CUSTOM, Asked, Document
from aliquot.kube.core.scaling.selectors import SelectorError, parse_selector
from aliquot.kube.core.scaling.signals import NotOffered, Signal
from aliquot.kube.core.scaling.usage import POD_METRICS
from aliquot.kube.scaling.answers import Answers
from aliquot.kube.scaling.authenticating import Callers
from aliquot.kube.scaling.following import Unknown

log = logging.getLogger(__name__)

_ALWAYS: Final = frozenset({"/healthz", "/livez", "/readyz"})


class _Failed(Exception):
    """An answer of 4xx or 5xx."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.document = documents.failure(code, reason, message)


class MetricsApi:
    """The groups that it serves, for callers who may. `ready` says why it is not; empty: it is."""

    def __init__(self, answers: Answers, callers: Callers, groups: Sequence[str], ready: Callable[[], str]) -> None:
        self._answers = answers
        self._callers = callers
        self._groups = tuple(groups)
        self._ready = ready

    def application(self) -> web.Application:
        """For aiohttp."""
        app = web.Application(client_max_size=1 << 16)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        if request.path in _ALWAYS:
            why = self._ready() if request.path == "/readyz" else ""
            return web.Response(status=503 if why else 200, text=why or "ok")
        try:
            code, document = 200, await self._answer(request)
        except _Failed as failed:
            code, document = failed.code, failed.document
        return web.Response(status=code, body=msgspec.json.encode(document), content_type="application/json")

    async def _answer(self, request: web.Request) -> Document:
        asked = documents.parse_path(request.raw_path.partition("?")[0], self._groups)
        await self._permit(request, asked)
        if request.path == "/openapi/v2":
            return documents.openapi(self._groups)
        if request.path == "/openapi/v3":
            return {"paths": {}}
        if asked is None:
            raise _Failed(404, "NotFound", "the server could not find the requested resource")
        if request.method != "GET":
            raise _Failed(405, "MethodNotAllowed", "metrics are only read")
        if not asked.group:
            return documents.group_list(self._groups)
        if not asked.version:
            return documents.group_document(asked.group)
        if not asked.metric:
            return documents.resource_list(asked.group, asked.version)
        try:
            return await (self._pods(request, asked) if asked.group == CUSTOM else self._external(request, asked))
        except (Unknown, KubeError) as error:
            raise _Failed(503, "ServiceUnavailable", _text(error)) from error
        except NotOffered as error:
            raise _Failed(404, "NotFound", _text(error)) from error
        except SelectorError as error:
            raise _Failed(400, "BadRequest", _text(error)) from error

    async def _permit(self, request: web.Request, asked: Asked | None) -> None:
        try:
            caller = await self._callers.of(request)
            allowed = await self._callers.may(caller, request.path, asked)
        except NotKnown as error:
            raise _Failed(401, "Unauthorized", error.message) from error
        except KubeError as error:
            raise _Failed(503, "ServiceUnavailable", f"nobody can be let in now: {error.message}") from error
        if not allowed:
            what = asked.metric if asked is not None and asked.metric else request.path
            raise _Failed(403, "Forbidden", f'User "{caller.name}" may not get {what}')

    async def _pods(self, request: web.Request, asked: Asked) -> Document:
        if asked.resource != "pods" or asked.metric not in POD_METRICS:
            known = ", ".join(f"pods/{name}" for name in POD_METRICS)
            text = f"there is no metric {asked.resource}/{asked.metric}; there are {known}"
            raise _Failed(404, "NotFound", text)
        selector = parse_selector(request.query.get("labelSelector", ""))
        if request.query.get("metricLabelSelector"):
            raise SelectorError(f"{asked.metric} has no labels of its own", hint="choose pods by their labels")
        readings = self._answers.pods(asked.namespace, asked.name, selector, asked.metric)
        if not readings and asked.name != documents.ALL:
            text = f"nothing is known of {asked.metric} of pod {asked.namespace}/{asked.name}"
            raise _Failed(404, "NotFound", text)
        window_s = max(1, round(self._answers.follower.every_s))
        return documents.pod_values(asked.version, asked.namespace, asked.metric, readings, window_s)

    async def _external(self, request: web.Request, asked: Asked) -> Document:
        try:
            signal = Signal(asked.metric)
        except ValueError:
            text = f"there is no metric {asked.metric}; there are {', '.join(Signal)}"
            raise _Failed(404, "NotFound", text) from None
        selector = parse_selector(request.query.get("labelSelector", ""))
        value, at_ms = await self._answers.waiting(asked.namespace, signal, selector)
        return documents.external_value(asked.metric, selector.equalities, value, at_ms)


def _text(error: AliquotError) -> str:
    return f"{error.message} ({error.hint})" if error.hint else error.message
