"""`aliquot kube plan`: would what is in these manifests start now, where, and why not? Nothing is created."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from aliquot.client import AsyncPool, Explanation, Request
from aliquot.common.errors import ConfigError
from aliquot.common.files import read_text
from aliquot.kube.core import names
from aliquot.kube.core.accounts import DEFAULT_RULES, AccountRule, account_of
from aliquot.kube.core.asking import request_text
from aliquot.kube.core.pods import flatten
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.holding.requests import given_by

_COUNTS: Final = ("parallelism", "replicas", "numNodes", "size")
_DEPTH_MAX: Final = 12


@dataclass(frozen=True, slots=True)
class Template:
    """Pods that are alike, as a manifest has them."""

    where: str
    pod: RawPod
    count: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What became of one template. `request` is empty where it asks for nothing of ours."""

    where: str
    count: int
    request: str
    gang: bool
    explanation: Explanation | None = None


def read(files: list[Path]) -> list[Mapping[str, Any]]:
    """The documents of some manifests. Raises ConfigError."""
    found: list[Mapping[str, Any]] = []
    for file in files:
        text = read_text(file)
        try:
            documents = list(yaml.safe_load_all(text))
        except yaml.YAMLError as error:
            raise ConfigError(f"{file}: no YAML: {error}") from error
        for document in documents:
            if document is None:
                continue
            if not isinstance(document, dict) or "kind" not in document:
                raise ConfigError(f"{file}: no Kubernetes object: it has no kind")
            several = document["items"] if document["kind"] == "List" else [document]
            for each in several:
                _refuse_gone(file, each)
            found += several
    return found


def _refuse_gone(file: Path, document: Mapping[str, Any]) -> None:
    """Versions that Kubernetes has taken back: an API server would not know the object."""
    group, _, version = str(document.get("apiVersion", "")).partition("/")
    if group == "scheduling.k8s.io" and version in {"v1alpha1", "v1alpha2"}:
        kind = document.get("kind", "")
        raise ConfigError(
            f"{file}: {kind} of {group}/{version}, which Kubernetes 1.37 no longer has",
            hint=f"write apiVersion: {group}/v1beta1; pods name their group in spec.schedulingGroup.podGroupName",
        )


def templates(document: Mapping[str, Any]) -> Iterator[Template]:
    """The pods of an object of any kind: itself, or every `template` in it that has containers, with its count."""
    meta = document.get("metadata") or {}
    where = f"{document['kind']} {meta.get('namespace', 'default')}/{meta.get('name', '')}"
    namespace = meta.get("namespace", "default")
    if document["kind"] == "Pod":
        yield Template(where, _pod(document, namespace, meta.get("name", "")), 1)
        return
    yield from _within(document.get("spec"), where, namespace, str(meta.get("name", "")), 1, 0)


def _within(value: object, where: str, namespace: str, name: str, count: int, depth: int) -> Iterator[Template]:
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, list):
        for item in value:
            yield from _within(item, where, namespace, name, count, depth + 1)
        return
    if not isinstance(value, dict):
        return
    count *= next((number for key in _COUNTS if isinstance(number := value.get(key), int) and number > 0), 1)
    named = f"{where} {value['name']}" if isinstance(value.get("name"), str) else where
    for key, inner in value.items():
        if key == "template" and isinstance(inner, dict) and (inner.get("spec") or {}).get("containers"):
            yield Template(named, _pod(inner, namespace, name), count)
        elif key != "containers":
            yield from _within(inner, named, namespace, name, count, depth + 1)


def _pod(document: Mapping[str, Any], namespace: str, name: str) -> RawPod:
    try:
        pod = msgspec.convert(document, RawPod)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{namespace}/{name}: no pod: {error}") from error
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, namespace=namespace, name=name))


async def plan(
    pool: AsyncPool, template: Template, *, tenant: str = "", rules: tuple[AccountRule, ...] = DEFAULT_RULES
) -> Plan:
    """Ask the pool. Pods of a gang are asked for together, others one by one. Raises PoolError, PodAskError."""
    record = flatten(template.pod)
    if not record.asked.anything:
        return Plan(template.where, template.count, "", gang=False)
    labels = template.pod.metadata.labels or {}
    account = account_of(rules, record.namespace, {}, labels, labels.get(names.QUEUE, ""))
    request = Request(
        request_text(record.asked),
        tenant=tenant or account.tenant,
        queue=account.queue,
        preemptible=True,
        detached=True,
        **given_by(record.asked),
    )
    gang = record.gang is not None
    size = (record.gang.size or template.count) if record.gang is not None else template.count
    # Pods that don't belong together could start one by one; that all of them start now is asked as if they did.
    explanation = await pool.explain(replace(request, gang_size=size))
    if not gang and not explanation.fits_now and size > 1:
        one = await pool.explain(request)
        summary = f"one starts now, not all {size}: {explanation.summary}" if one.fits_now else one.summary
        explanation = replace(one, summary=summary)
    return Plan(template.where, size, request.gpu, gang, explanation)
