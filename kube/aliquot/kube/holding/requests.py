"""From a pod and the rules of its cluster to a request of the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aliquot.client import Request, Tier
from aliquot.common import tiers
from aliquot.common.limits import MAX_NAME_CHARS
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.objects import namespace_labels
from aliquot.kube.core.accounts import DEFAULT_RULES, Account, AccountRule, account_of, priority_of
from aliquot.kube.core.asking import Asked, asked_by, options_of, request_text, require_counted
from aliquot.kube.core.leases import labels_of
from aliquot.kube.core.names import QUEUE, WORKLOAD
from aliquot.kube.core.shapes import RawPod

_LABELS_KEPT_S = 30.0


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What is asked of the pool for a pod. `kind` is equal for pods that fit the same nodes."""

    request: Request
    kind: str


class Requests:
    """Makes requests. Labels of namespaces are read where a rule looks at them, and kept for half a minute."""

    def __init__(self, client: KubeClient, cluster: str, rules: Sequence[AccountRule] = DEFAULT_RULES) -> None:
        self.cluster = cluster
        self._client = client
        self._rules = rules or DEFAULT_RULES
        self._looks_at_namespaces = any(rule.namespace_labels for rule in self._rules)
        self._labels: dict[str, tuple[float, Mapping[str, str]]] = {}

    async def of(self, pod: RawPod, *, template: bool = False) -> PodRequest | None:
        """What a pod asks for; None: nothing of ours. Only a `template` may lack what admission writes.

        Raises PodAskError, RequestSyntaxError, NoAccount, and KubeError where labels of its namespace can't be read.
        """
        asked = asked_by(pod)
        if not asked.anything:
            return None
        if not template:
            require_counted(asked)
        meta = pod.metadata
        gpu, options = request_text(asked), given_by(asked)
        labels = meta.labels or {}
        account = await self.account(meta.namespace, labels, labels.get(QUEUE, ""))
        priority, workload = priority_of(pod.spec.priority or 0), labels.get(WORKLOAD, "")
        hint = {WORKLOAD: workload} if workload else {}
        request = Request(
            gpu,
            tenant=account.tenant,
            queue=account.queue,
            priority=priority,
            preemptible=True,
            detached=True,
            no_queue=True,
            name=f"{meta.namespace}/{meta.name}"[:MAX_NAME_CHARS],
            labels=labels_of(self.cluster, meta.namespace, pod_uid=meta.uid) | hint,
            **options,
        )
        return PodRequest(request, f"{gpu} {asked.options} {priority} {account.tenant} {account.queue} {workload}")

    async def account(self, namespace: str, labels: Mapping[str, str], queue: str) -> Account:
        """Who pays. Raises NoAccount, and KubeError where the namespace's labels can't be read."""
        return account_of(self._rules, namespace, await self._namespace(namespace), labels, queue)

    async def _namespace(self, name: str) -> Mapping[str, str]:
        if not self._looks_at_namespaces:
            return {}
        now = asyncio.get_running_loop().time()
        read_at, labels = self._labels.get(name, (-_LABELS_KEPT_S, {}))
        if now - read_at >= _LABELS_KEPT_S:
            labels = await namespace_labels(self._client, name)
            self._labels[name] = (now, labels)
        return labels


def given_by(asked: Asked) -> dict[str, Any]:
    """The fields of a request that a pod's annotations give, as the SDK has them. Raises PodAskError."""
    return {
        name: Tier(found.name) if isinstance(found, tiers.Tier) else found for name, found in options_of(asked).items()
    }
