"""Roles as far as ours go: what an account may do, by group, resource, verb, name and namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self


class Asked(NamedTuple):
    """What somebody wants to do; `resource` may be `pods/binding`."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


class Rule(NamedTuple):
    """One rule of a role, as it was bound."""

    groups: frozenset[str]
    resources: frozenset[str]
    verbs: frozenset[str]
    names: frozenset[str]
    """Of objects; none: all."""
    namespace: str
    """Where it holds; empty: everywhere."""

    @classmethod
    def of(cls, rule: Mapping[str, Any], namespace: str) -> Self:
        """As a role has it."""
        return cls(
            frozenset(rule["apiGroups"]),
            frozenset(rule["resources"]),
            frozenset(rule["verbs"]),
            frozenset(rule.get("resourceNames", ())),
            namespace,
        )

    def allows(self, asked: Asked) -> bool:
        """Whether it is this that it is about."""
        return (
            asked.verb in self.verbs
            and asked.group in self.groups
            and asked.resource in self.resources
            and self.namespace in ("", asked.namespace)
            and (not self.names or asked.name in self.names)
        )
