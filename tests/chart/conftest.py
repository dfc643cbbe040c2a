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
            found += read(text)
    return found


def read(text: str) -> Documents:
    """Every object of a manifest, by libyaml where there is one: Python's own takes ten times as long."""
    return [each for each in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if each]


FULL: dict[str, Any] = {
    "metrics": {"tokenSecret": "metrics", "serviceMonitors": True, "labels": {"release": "prometheus"}},
    "coordinator": {
        "replicas": 3,
        "journal": {
            "type": "postgres",
            "postgres": {"dsn": "host=db dbname=aliquot user=aliquot", "passwordSecret": {"name": "db"}},
        },
        "settings": {
            "forecast": False,
            "access": {
                "names": ["gpu.example.org"],
                "pods": {
                    "rules": [{"namespace": "training", "account": "trainer", "role": "user", "tenant": "vision"}]
                },
                "oidc": {"issuer": "https://login.example.org", "client_id": "aliquot"},
            },
            "mig": {"patience": "10s"},
        },
        "nodeSelector": {"zone": "a"},
        "tolerations": [{"operator": "Exists"}],
    },
    "node": {"release": True, "injection": "mounts"},
    "kube": {"replicas": 2, "settings": {"rules": [{"namespace_labels": {"team": "vision"}, "tenant": "all"}]}},
    "console": {
        "enabled": True,
        "replicas": 2,
        "ingress": {"enabled": True, "host": "gpus.example.org", "tlsSecretName": "gpus", "className": "nginx"},
    },
    "notices": {"enabled": True},
    "ordering": {"enabled": True, "provisioning": "check-capacity.autoscaling.x-k8s.io"},
    "monitoring": {"dashboards": True, "rules": True, "prometheusRule": True},
    "agent": {
        "settings": {"watchdog": {"stop_strays": False}, "hosting": {"ports": "40000-40003"}},
        "serveOutside": True,
        "vendors": {"amd": {"enabled": True}, "ascend": {"enabled": True, "settings": {"log_level": "debug"}}},
    },
    "tls": {"generate": True},
    "networkPolicy": {"clients": [{"gpu": "yes"}]},
    "image": {"agent": {"digest": "sha256:" + "0" * 64}, "pullSecrets": [{"name": "registry"}]},
}
"""Everything that can be switched on."""
