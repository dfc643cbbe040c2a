"""The chart on every Kubernetes that it is for; upgrades are in `tests/kube/test_upgrade.py`."""

from __future__ import annotations

import json
import warnings
from functools import cache
from typing import Any

import pytest
import yaml

from tests.chart.conftest import FULL, Documents, documents
from tools import manifests

VERSIONS = [manifests.OLDEST, "1.33.0", manifests.NEWEST, "1.37.0"]
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "full": FULL,
    "agents only": {"coordinator": {"enabled": False}, "kube": {"enabled": False}, "node": {"enabled": False}},
    "otherwise": {
        "image": {"agent": {"pytorch": True}},
        "coordinator": {"service": {"type": "LoadBalancer", "annotations": {"internal": "true"}}},
        "console": {"enabled": True, "service": {"type": "NodePort"}},
        "ordering": {"enabled": True},
        "agent": {
            "kernelLog": True,
            "invitesSecret": "invites",
            "settings": {"enforcement": {"tiers": ["mps", "watchdog"]}},
            "vendors": {vendor: {"enabled": True} for vendor in ("intel", "gaudi", "tpu")},
        },
        "kube": {"remotePods": True},
        "webhook": {"tlsSecretName": "webhook"},
    },
    "without policies": {"networkPolicy": {"enabled": False}, "priorityClasses": [], "podDisruptionBudgets": False},
    **{
        f"profile {path.stem}": yaml.safe_load(path.read_text())
        for path in sorted((manifests.CHART / "profiles").glob("*.yaml"))
    },
}


def taken(found: Documents, version: str) -> None:
    """By the schemas of that version, without a field that it does not know."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in found:
            # Kinds of Prometheus' operator are not Kubernetes' own.
            if each["kind"] not in ("PodMonitor", "PrometheusRule"):
                _validate(json.dumps(each), ".".join(version.split(".")[:2]))


@cache
def _validate(text: str, minor: str) -> None:
    """Each object once for a version: most are the same in all variants, and the library reads all schemas anew."""
    library = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate: pip install 'aliquot[dev]'")
    library.validate(json.loads(text), minor, strict=True)


def there(found: Documents, kind: str) -> list[str]:
    return [each["metadata"]["name"] for each in found if each["kind"] == kind]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda name: name.replace(" ", "-"))
def test_kubernetes_takes_what_is_rendered_for_it(variant: str, version: str) -> None:
    found = documents(VARIANTS[variant], version)
    taken(found, version)
    webhook = "kube" not in VARIANTS[variant] or VARIANTS[variant]["kube"].get("enabled", True)
    assert there(found, "MutatingWebhookConfiguration") == (["aliquot-pods"] if webhook else [])


def test_the_oldest_that_it_is_for_is_said_by_the_chart() -> None:
    chart = yaml.safe_load((manifests.CHART / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">={manifests.OLDEST}-0"


@pytest.mark.parametrize(("enabled", "version", "expected"), [("auto", "1.36.2", 1), (False, "1.30.0", 0)])
def test_who_says_so_has_the_webhook_or_not(enabled: bool | str, version: str, expected: int) -> None:
    assert len(there(documents({"webhook": {"enabled": enabled}}, version), "MutatingWebhookConfiguration")) == expected


@pytest.mark.parametrize(
    ("version", "tag", "expected"),
    [
        ("1.30.0", "", "v1.30.0"),
        ("v1.33.5-gke.1014001", "", "v1.33.5"),
        ("v1.34.2+k3s1", "", "v1.34.2"),
        ("1.36.2", "v1.35.7", "v1.35.7"),
    ],
)
def test_the_scheduler_is_of_the_clusters_own_version(version: str, tag: str, expected: str) -> None:
    found = documents({"kube": {"scheduler": {"tag": tag}}} if tag else {}, version)
    (scheduler,) = [
        container["image"]
        for each in found
        if each["kind"] == "Deployment"
        for container in each["spec"]["template"]["spec"]["containers"]
        if container["name"] == "scheduler"
    ]
    assert scheduler == f"registry.k8s.io/kube-scheduler:{expected}"


def test_claims_are_refused_where_kubernetes_has_no_shared_capacity() -> None:
    claims = {"node": {"mode": "dra"}}
    for version in (manifests.NEWEST, "1.37.0"):
        taken(documents(claims, version), version)
    with pytest.raises(Exception, match=r"node.mode=dra needs Kubernetes 1.36.*v1.35.4.*set node.mode=classic"):
        documents(claims, "1.35.4")


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_applied_beside_the_chart_is_taken_as_far_as_its_comments_say(version: str) -> None:
    folder = manifests.REPOSITORY / "deploy" / "kube"
    found = [
        each for name in ("crds.yaml", "admission.yaml") for each in yaml.safe_load_all((folder / name).read_text())
    ]
    taken(found, version)
