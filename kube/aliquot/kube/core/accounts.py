"""Who pays for a pod and where it waits, by rules that the cluster's administrators write; and its priority.

A rule looks at the namespace's name and labels, which administrators set, and at the pod's labels, which its author
sets: so a pod's labels only choose among what its namespace allows. Nothing on a pod names a tenant by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_PRIORITY


class NoAccount(AliquotError):
    """No rule gives this pod a tenant."""


class AccountRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first rule that matches counts. Names may have `*`; `{namespace}` in the tenant stands for it."""

    namespace: str = "*"
    namespace_labels: dict[str, str] = {}
    pod_labels: dict[str, str] = {}
    tenant: str = "{namespace}"
    queue: str = ""
    """Where it waits; empty: what the pod's label `aliquot.dev/queue` says, else the tenant's default."""


@dataclass(frozen=True, slots=True)
class Account:
    """Who pays, and where it waits (empty: the tenant's default queue)."""

    tenant: str
    queue: str


DEFAULT_RULES = (AccountRule(),)
"""Each namespace is a tenant of its own."""


def account_of(
    rules: Sequence[AccountRule],
    namespace: str,
    namespace_labels: Mapping[str, str],
    pod_labels: Mapping[str, str],
    queue: str = "",
) -> Account:
    """Who pays for a pod. Raises NoAccount."""
    for rule in rules:
        if (
            fnmatchcase(namespace, rule.namespace)
            and _has(namespace_labels, rule.namespace_labels)
            and _has(pod_labels, rule.pod_labels)
        ):
            return Account(rule.tenant.replace("{namespace}", namespace), rule.queue or queue)
    raise NoAccount(
        f"no rule gives pods of namespace {namespace} a tenant",
        hint="add one to [[kube.rules]]; an administrator's, for namespaces and labels",
    )


def _has(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


def priority_of(value: int) -> int:
    """A PriorityClass' value (-2·10⁹..2·10⁹) as ours (-1000..1000), in the same order.

    Each decade is a hundred: 10 is 100, 1,000 is 300, 1,000,000 is 600, what is the system's own 900 and more. Values
    that are close to one another in a large decade may become equal, and then don't preempt each other.
    """
    size = abs(value)
    if size < 10:
        ours = size * 10
    else:
        decade = len(str(size)) - 1
        ours = 100 * decade + (size - 10**decade) * 100 // (9 * 10**decade)
    return min(ours, MAX_PRIORITY) if value >= 0 else -min(ours, MAX_PRIORITY)
