"""Renders the chart by Helm itself, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tools import manifests

Documents = list[dict[str, Any]]


def documents(values: dict[str, Any] | None = None, kubernetes: str = manifests.NEWEST) -> Documents:
    """Every object of the chart."""
    pytest.importorskip("helm_python", reason="needs helm-python-sdk: pip install 'aliquot[dev]'")
    found: Documents = []
    for path, text in manifests.render(values, kubernetes=kubernetes).items():
        if path.endswith(".yaml"):
            found += [each for each in yaml.safe_load_all(text) if each]
    return found


FULL: dict[str, Any] = {
    "metrics": {"tokenSecret": "metrics", "serviceMonitors": True, "labels": {"release": "prometheus"}},
    "coordinator": {
        "replicas": 3,
        "journal": {
            "type": "postgres",
            "postgres": {"dsn": "host=db dbname=aliquot user=aliquot", "passwordSecret": {"name": "db"}},
        },
        "names": ["gpu.example.org"],
        "podRules": [{"namespace": "training", "account": "trainer", "role": "user", "tenant": "vision"}],
        "extraConfig": '[coordinator.mig]\npatience = "10s"',
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"operator": "Exists"}],
    },
    "node": {"release": True, "injection": "mounts"},
    "kube": {"replicas": 2, "rules": '[[kube.rules]]\nnamespace = "*"\ntenant = "all"'},
    "networkPolicy": {"clients": [{"gpu": "yes"}]},
    "image": {"agent": {"digest": "sha256:" + "0" * 64}, "pullSecrets": [{"name": "registry"}]},
}
"""Everything that can be switched on."""
