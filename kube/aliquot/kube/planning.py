"""`aliquot kube plan`: would what is in these manifests start now, where, and why not? Nothing is created.

Pods ask in four ways: by limits and annotations, by ResourceClaims, for a GPU of another machine, or as an ElasticJob.
Those in other systems' words are told as what they would be here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from aliquot.client import AsyncPool, Explanation, InvalidRequest, Request, Serve
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.files import read_text
from aliquot.common.limits import MAX_GANG_SIZE
from aliquot.common.request import format_request
from aliquot.kube.core import claims, elastic_jobs, names, remote_pods, words
from aliquot.kube.core.accounts import DEFAULT_RULES, Account, AccountRule, account_of
from aliquot.kube.core.asking import request_text
from aliquot.kube.core.pods import flatten
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.holding.requests import given_by

_COUNTS: Final = ("parallelism", "replicas", "numNodes", "size")
_DEPTH_MAX: Final = 12
_NOBODY: Final = Account("", "")


@dataclass(frozen=True, slots=True)
class Template:
    """Pods that are alike, as a manifest has them, and what each of them asks for."""

    where: str
    count: int = 1
    gang: bool = False
    gpu: str = ""
    """In the request grammar; empty: nothing of ours."""
    account: Account = _NOBODY
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request, as the SDK has them."""
    problem: str = ""
    """Why it can't be read."""
    said: str = ""
    """What it says in other systems' words, for which it gets nothing unless they are translated."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What would become of one template."""

    template: Template
    starting: int = 0
    """How many of its pods would start now; of a gang all or none."""
    explanation: Explanation | None = None
    """Of all together; where not even one fits, of that one. None: it asks for nothing, or can't be read."""


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


def templates(
    documents: Sequence[Mapping[str, Any]], rules: tuple[AccountRule, ...] = DEFAULT_RULES, *, replica_percent: int = 0
) -> Iterator[Template]:
    """The pods of objects of any kind: itself, or every `template` in it that has containers, with its count.

    What can't be read is a template with its problem, so that the others are told about all the same.
    `replica_percent` is what a time-sliced replica is of a card.
    """
    reader = _Reader(documents, rules, replica_percent)
    for document in documents:
        where = f"{document['kind']} {_namespace(document)}/{_name(document)}"
        if document["kind"] == "ElasticJob":
            yield reader.read(where, document, reader.of_job)
        elif document["kind"] == "Pod":
            yield reader.read(where, document, reader.of_pod)
        else:
            for named, pod, count in _within(document.get("spec"), where, 1, 0):
                meta = {**_meta(pod), "name": _name(document), "namespace": _namespace(document)}
                found = reader.read(named, {**pod, "metadata": meta}, reader.of_pod)
                yield replace(found, count=found.count if found.gang and found.count > 1 else count)


def _within(value: object, where: str, count: int, depth: int) -> Iterator[tuple[str, Mapping[str, Any], int]]:
    """Where a template of pods is, the template, and how many pods it is for."""
    if depth > _DEPTH_MAX:
        return
    if isinstance(value, list):
        for item in value:
            yield from _within(item, where, count, depth + 1)
        return
    if not isinstance(value, dict):
        return
    count *= next((number for key in _COUNTS if isinstance(number := value.get(key), int) and number > 0), 1)
    named = f"{where} {value['name']}" if isinstance(value.get("name"), str) else where
    for key, inner in value.items():
        spec = inner.get("spec") if key == "template" and isinstance(inner, dict) else None
        if isinstance(spec, dict) and spec.get("containers"):
            yield named, inner, count
        elif key != "containers":
            yield from _within(inner, named, count, depth + 1)


class _Reader:
    """What pods ask for, by each of the ways."""

    def __init__(
        self, documents: Sequence[Mapping[str, Any]], rules: tuple[AccountRule, ...], replica_percent: int
    ) -> None:
        self._rules = rules
        self._replica_percent = replica_percent
        self._claims = {
            (_namespace(each), _name(each)): each
            for each in documents
            if each["kind"] in {"ResourceClaim", "ResourceClaimTemplate"}
        }

    def read(self, where: str, document: Mapping[str, Any], how: Callable[[Mapping[str, Any]], Template]) -> Template:
        """By one of the ways below; of what can't be read its problem."""
        try:
            return replace(how(document), where=where)
        except AliquotError as error:
            return Template(where, problem=error.explain())
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # not of the form that Kubernetes takes
            return Template(where, problem=f"it can't be read: {error}")

    def of_job(self, document: Mapping[str, Any]) -> Template:
        """An ElasticJob: its fewest replicas start together. Raises AliquotError."""
        job = msgspec.convert(document, elastic_jobs.RawJob)
        spec, labels = job.spec, job.metadata.labels or {}
        least, _ = elastic_jobs.replicas_of(job)
        options = {"pool": spec.pool, "priority": spec.priority, "preemptible": spec.preemptible}
        account = account_of(self._rules, _namespace(document), {}, labels, spec.queue)
        return Template("", least, True, format_request(elastic_jobs.gpu_of(job)), account, options)

    def of_pod(self, document: Mapping[str, Any]) -> Template:
        """A pod, or a template of some. Raises AliquotError."""
        pod = msgspec.convert(document, RawPod)
        pod.metadata.namespace = _namespace(document)
        record, labels = flatten(pod), pod.metadata.labels or {}
        account = account_of(self._rules, record.namespace, {}, labels, labels.get(names.QUEUE, ""))
        options: dict[str, Any] = {"preemptible": True}
        remote = remote_pods.flatten(pod)
        if remote is not None:
            return Template("", 1, False, remote_pods.request_text(remote), account, {**options, "serve": Serve.REMOTE})
        if record.asked.anything:
            gang = record.gang is not None
            size = record.gang.size if record.gang is not None else 1
            options |= given_by(record.asked)
            return Template("", size or 1, gang, request_text(record.asked), account, options)
        found = words.translated(pod, self._replica_percent)
        if found is not None:
            problem = found.problem and f"{found.said}: {found.problem}"
            return Template("", 1, False, found.request, account, options, problem, found.said)
        return Template("", 1, False, self._of_claims(document), account, options)

    def _of_claims(self, document: Mapping[str, Any]) -> str:
        """What a pod's claims come to. Raises ClaimRefused where they are not among these objects."""
        for used in (document.get("spec") or {}).get("resourceClaims") or ():
            name = used.get("resourceClaimTemplateName") or used.get("resourceClaimName") or ""
            claim = self._claims.get((_namespace(document), name))
            if claim is None:
                raise claims.ClaimRefused(f"claim {name} is not among these manifests", hint="give its file, too")
            spec = claim["spec"].get("spec") or claim["spec"] if claim["kind"].endswith("Template") else claim["spec"]
            found = claims.asked_for(spec)
            if found:
                return found
        return ""


def _name(document: Mapping[str, Any]) -> str:
    return str(_meta(document).get("name", ""))


def _namespace(document: Mapping[str, Any]) -> str:
    return str(_meta(document).get("namespace") or "default")


def _meta(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get("metadata")
    return found if isinstance(found, dict) else {}


async def plan(pool: AsyncPool, template: Template, *, tenant: str = "") -> Plan:
    """Ask the pool. Pods of a gang are asked for together, of others how many could start. Raises PoolError."""
    if template.problem or not template.gpu:
        return Plan(template)
    request = Request(
        template.gpu,
        tenant=tenant or template.account.tenant,
        queue=template.account.queue,
        detached=True,
        **template.options,
    )
    if not template.gang:
        request = replace(request, same_card=True)  # they are nothing to one another
    most = min(template.count, MAX_GANG_SIZE)
    try:
        whole = await pool.explain(replace(request, gang_size=most))
        if whole.fits_now:
            return Plan(template, template.count, whole)
        if template.gang:
            return Plan(template, 0, whole)
        one = await pool.explain(request)
        if not one.fits_now:
            return Plan(template, 0, one)
        return Plan(template, await _how_many(pool, request, most), one)
    except InvalidRequest as error:
        return Plan(replace(template, problem=error.explain()))


async def _how_many(pool: AsyncPool, request: Request, most: int) -> int:
    """How many start now, of whom one does and all do not: halved each time."""
    some, too_many = 1, most
    while too_many - some > 1:
        middle = (some + too_many) // 2
        if (await pool.explain(replace(request, gang_size=middle))).fits_now:
            some = middle
        else:
            too_many = middle
    return some
