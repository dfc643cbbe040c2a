"""What Pod Security says of the chart: agents need a namespace that allows `privileged`, and nobody else does."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart.conftest import FULL, documents
from tests.chart.rendering import containers, workloads
from tools import manifests

_BASELINE_CAPABILITIES = frozenset(
    [
        "AUDIT_WRITE",
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "MKNOD",
        "NET_BIND_SERVICE",
        "SETFCAP",
        "SETGID",
        "SETPCAP",
        "SETUID",
        "SYS_CHROOT",
    ]
)
_RESTRICTED_VOLUMES = frozenset(
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"]
)
LABEL = "pod-security.kubernetes.io/enforce=privileged"


def against_baseline(spec: dict[str, Any]) -> set[str]:
    """Which of the standard's rules a pod breaks."""
    found = {name for name in ("hostPID", "hostIPC", "hostNetwork") if spec.get(name)}
    found |= {"hostPath" for volume in spec.get("volumes", ()) if "hostPath" in volume}
    for container in containers(spec):
        security = container.get("securityContext") or {}
        found |= {"privileged"} if security.get("privileged") else set()
        found |= {"hostPorts" for port in container.get("ports", ()) if port.get("hostPort")}
        if set((security.get("capabilities") or {}).get("add", ())) - _BASELINE_CAPABILITIES:
            found.add("capabilities")
    return found


def against_restricted(spec: dict[str, Any]) -> set[str]:
    found = against_baseline(spec)
    found |= {name for volume in spec.get("volumes", ()) for name in volume.keys() - {"name"} - _RESTRICTED_VOLUMES}
    whole = spec.get("securityContext") or {}
    for container in containers(spec):
        security = whole | (container.get("securityContext") or {})
        rules = {
            "runAsNonRoot": security.get("runAsNonRoot") is True and security.get("runAsUser") != 0,
            "allowPrivilegeEscalation": security.get("allowPrivilegeEscalation") is False,
            "drop": (security.get("capabilities") or {}).get("drop") == ["ALL"],
            "add": set((security.get("capabilities") or {}).get("add", ())) <= {"NET_BIND_SERVICE"},
            "seccompProfile": (security.get("seccompProfile") or {}).get("type") in ("RuntimeDefault", "Localhost"),
        }
        found |= {name for name, kept in rules.items() if not kept}
    return found


@pytest.mark.parametrize("values", [{}, FULL, {"node": {"mode": "dra"}}], ids=["default", "full", "claims"])
def test_agents_need_a_privileged_namespace_and_all_else_is_content_with_restricted(values: dict[str, Any]) -> None:
    specs = workloads(documents(values))
    agents = {name for name, _ in specs if name.startswith("aliquot-agent")}
    assert agents
    for name, spec in specs:
        if name in agents:
            assert {"hostPID", "hostPath"} <= against_baseline(spec), name
        else:
            assert not against_restricted(spec), name


def test_whoever_installs_agents_is_told_so_and_nobody_else() -> None:
    label = f"kubectl label namespace {manifests.NAMESPACE} {LABEL}"
    assert label in manifests.render()["NOTES.txt"]
    assert label not in manifests.render({"agent": {"enabled": False}}).get("NOTES.txt", "")
    docs = manifests.REPOSITORY / "docs"
    assert label in (docs / "kubernetes.md").read_text(), "before `helm install`, or its pods are refused"
    assert "pod-security.kubernetes.io/enforce" in (docs / "kubernetes-chart.md").read_text()


def test_plain_manifests_are_for_the_same_namespace() -> None:
    """They make none, so that nobody's labels are written over."""
    for path in manifests.PARTS:
        kinds = {each["kind"] for each in yaml.safe_load_all((manifests.REPOSITORY / path).read_text()) if each}
        assert "Namespace" not in kinds
