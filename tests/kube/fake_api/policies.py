"""ValidatingAdmissionPolicies as far as we use them: resource rules, conditions, variables, validations, in CEL."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import celpy
from celpy.adapter import json_to_cel

from tests.kube.fake_api.store import ApiFailure, Kind, Object, Store

VERSION = "admissionregistration.k8s.io/v1"


@lru_cache(maxsize=256)
def _program(text: str) -> Any:
    environment = celpy.Environment()
    return environment.program(environment.compile(text))


def evaluate(text: str, **values: Any) -> Any:
    """The value of an expression."""
    return _program(text).evaluate({name: json_to_cel(value) for name, value in values.items()})


def _covers(policy: Object, resource: str, operation: str) -> bool:
    return any(
        resource in rule["resources"] and operation in rule["operations"]
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
    )


def check(store: Store, operation: str, resource: str, item: Object, old: Object | None, user: str) -> None:
    """Raises ApiFailure where a policy that is bound denies. `resource` is `pods` or `pods/binding`."""
    bound = {
        binding["spec"]["policyName"]
        for binding in store.kind(VERSION, "validatingadmissionpolicybindings").items.values()
        if "Deny" in binding["spec"]["validationActions"]
    }
    for policy in store.kind(VERSION, "validatingadmissionpolicies").items.values():
        if policy["metadata"]["name"] not in bound or not _covers(policy, resource, operation):
            continue
        values: dict[str, Any] = {
            "object": item,
            "oldObject": old or {},
            "request": {
                "operation": operation,
                "resource": {"resource": resource.partition("/")[0]},
                "userInfo": {"username": user, "extra": store.extra.get(user, {})},
            },
        }
        if not all(evaluate(one["expression"], **values) for one in policy["spec"].get("matchConditions", ())):
            continue
        values["variables"] = {}
        for variable in policy["spec"].get("variables", ()):
            values["variables"][variable["name"]] = evaluate(variable["expression"], **values)
        for validation in policy["spec"]["validations"]:
            if not evaluate(validation["expression"], **values):
                raise ApiFailure(
                    403 if validation.get("reason") == "Forbidden" else 422,
                    validation.get("reason", "Invalid"),
                    f"ValidatingAdmissionPolicy '{policy['metadata']['name']}' denied request: {validation['message']}",
                )


def admission(store: Store) -> Any:
    """What the store asks before each write."""

    def admit(operation: str, kind: Kind, item: Object, old: Object | None, user: str) -> None:
        verb, _, sub = operation.partition("/")
        check(store, verb, f"{kind.plural}/{sub}" if sub else kind.plural, item, old, user)

    return admit
