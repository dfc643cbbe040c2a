"""The chart as rendered: what its accounts may do, which the fake API server holds our parts to, and its scheduler."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import yaml

from tests.kube.fake_api.rights import Rule
from tests.kube.fake_api.server import ADMIN, FakeApi
from tools import manifests

ACCOUNT = "aliquot-kube"


@cache
def _documents() -> list[dict[str, Any]] | None:
    """Of all parts whose roles are of use here; None where there is no Helm to render the chart."""
    try:
        rendered = manifests.render({"kube": {"remotePods": True}, "ordering": {"enabled": True}})
    except ModuleNotFoundError:
        return None
    parts = (rendered[f"{part}.yaml"] for part in ("kube", "ordering"))
    return [each for part in parts for each in yaml.safe_load_all(part) if each]


def scheduler_config() -> dict[str, Any]:
    """The chart's KubeSchedulerConfiguration; empty without Helm."""
    maps = [each for each in _documents() or () if each["kind"] == "ConfigMap"]
    found: dict[str, Any] = yaml.safe_load(maps[0]["data"]["scheduler.yaml"]) if maps else {}
    return found


@cache
def chart_rules(account: str = ACCOUNT) -> tuple[Rule, ...] | None:
    """What an account may; None where there is no Helm to render the chart."""
    documents = _documents()
    return None if documents is None else rules_of(documents, account)


def rules_of(documents: Iterable[dict[str, Any]], account: str) -> tuple[Rule, ...]:
    """What an account may do, by what is rendered."""
    documents = list(documents)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in documents if each["kind"].endswith("Role")}
    found: list[Rule] = []
    for binding in documents:
        if not binding["kind"].endswith("RoleBinding") or binding["subjects"][0]["name"] != account:
            continue
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        if role is not None:  # others are Kubernetes' own, for the stock scheduler
            namespace = binding["metadata"].get("namespace", "") if binding["kind"] == "RoleBinding" else ""
            found += [Rule.of(rule, namespace) for rule in role["rules"]]
    return tuple(found)


def limited(api: FakeApi, account: str = ACCOUNT) -> str:
    """The token of an account of the chart's, which may there what its roles say; without Helm the administrator's."""
    rules = chart_rules(account)
    if rules is None:
        return ADMIN
    user, token = f"system:serviceaccount:{manifests.NAMESPACE}:{account}", f"token-of-{account}"
    api.tokens[token] = user
    api.rules[user] = rules
    return token
