"""Which settings of our programs the chart takes as values, as a JSON schema made from the programs' own classes.

python -m tools.chart_settings     # write the definitions of deploy/chart/aliquot/values.schema.json anew

A setting is a value of the chart by the same name, or stands here with who says it instead.
"""

from __future__ import annotations

import enum
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from aliquot.agent.settings import Settings as AgentSettings
from aliquot.common.duration import DurationMs
from aliquot.common.quantity import ByteSize
from aliquot.console.settings import Settings as ConsoleSettings
from aliquot.coordinator.settings.config import Settings as CoordinatorSettings
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.settings import Settings as KubeSettings

SCHEMA: Final = Path(__file__).resolve().parents[1] / "deploy" / "chart" / "aliquot" / "values.schema.json"
_PORT: Final = "Services, probes and policies name the port"
_MOUNTED: Final = "a path within the pod"
_CERTIFICATE: Final = "from the Secret of tls.secretName"
_MOUNTS: Final = "a value of `node`, as it says what is mounted"


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the chart, whose program reads a file."""

    settings: type[Any]
    said_by_the_chart: Mapping[str, str]
    """Settings that are no values, by their dotted names, and why."""


PARTS: Final[Mapping[str, Part]] = {
    "coordinator": Part(
        CoordinatorSettings,
        {
            "listen": _PORT,
            "journal": "coordinator.journal, as a file has a volume and a database's password a Secret",
            "advertise": "each pod's own name",
            "metrics_port": _PORT,
            "metrics_host": "probes and Prometheus come from elsewhere",
            "metrics_token_file": "metrics.tokenSecret",
            "fsync_delay_ms": "for measurements only",
            "tls.certificate_file": _CERTIFICATE,
            "tls.key_file": _CERTIFICATE,
            "tls.client_ca_file": "the chart's own parts show tokens, and have no certificates",
            "access.dir": _MOUNTED,
            "access.admin_token_file": "the first login is within the coordinator's pod (NOTES)",
            "access.pods.api": "the cluster that it runs in",
            "access.pods.token_file": "the cluster that it runs in",
            "access.pods.ca_file": "the cluster that it runs in",
            "access.pods.audience": "that for which the chart's pods have their tokens",
        },
    ),
    "agent": Part(
        AgentSettings,
        {
            "coordinator": "the coordinator's Service",
            "state_dir": _MOUNTED,
            "socket": _MOUNTED,
            "metrics_host": "metrics.tokenSecret",
            "metrics_token_file": "metrics.tokenSecret",
            "metrics_port": _PORT,
            "node_name": "the Node's name, by which the scheduler knows it",
            "node_id": "made once, and kept on the node",
            "join_file": "agent.invitesSecret; without one the pod's own token",
            "tls.ca_file": _CERTIFICATE,
            "tls.certificate_file": "a node's own, from joining",
            "tls.key_file": "a node's own, from joining",
            "enforcement.directory": _MOUNTED,
            "kernel_log": "agent.kernelLog, as it needs more rights",
        },
    ),
    "node": Part(
        NodeSettings,
        {
            "node_name": "the Node's",
            "agent_socket": _MOUNTED,
            "state_dir": _MOUNTED,
            "mode": _MOUNTS,
            "device_plugins": _MOUNTS,
            "plugins": _MOUNTS,
            "plugins_registry": _MOUNTS,
            "pod_resources": _MOUNTS,
            "cgroup_root": _MOUNTS,
            "kubelet_cgroup_root": _MOUNTS,
            "injection": _MOUNTS,
            "cdi_dir": _MOUNTS,
            "preload": "whether preload is among the agent's enforcement.tiers",
            "kubeconfig": "the pod's account",
            "release": "node.release, as it needs a role in the pool",
            "alive_file": "the probe looks there",
        },
    ),
    "kube": Part(
        KubeSettings,
        {
            "scheduler": "kube.schedulerName, which the policies name, too",
            "listen_host": "the scheduler is in the same pod: who reaches the extender can bind pods",
            "listen_port": "the scheduler's configuration names the port",
            "webhook_host": "the API server comes from elsewhere",
            "webhook_port": _PORT,
            "webhook_tls": "webhook.tlsSecretName",
            "webhook_service": "the webhook's Service",
            "namespace": "the release's",
            "kubeconfig": "the pod's account",
            "remote_pods": "kube.remotePods, as it needs the right to write Secrets",
            "alive_file": "the probe looks there",
        },
    ),
    "console": Part(
        ConsoleSettings,
        {
            "host": "browsers come from elsewhere",
            "port": _PORT,
            "metrics_host": "metrics.tokenSecret",
            "metrics_port": _PORT,
            "metrics_token_file": "metrics.tokenSecret",
            "coordinator": "the coordinator's Service",
            "tls.certificate_file": _CERTIFICATE,
            "tls.key_file": _CERTIFICATE,
            "tls.coordinator_ca_file": _CERTIFICATE,
        },
    ),
}


def names(shape: type[Any], prefix: str = "") -> list[str]:
    """The dotted names of all settings of a class."""
    found = []
    for name, hint in get_type_hints(shape).items():
        found += names(hint, f"{prefix}{name}.") if _is_table(hint) else [f"{prefix}{name}"]
    return found


def schema(shape: type[Any], left_out: Mapping[str, str], prefix: str = "") -> dict[str, Any]:
    """A JSON schema of these settings."""
    fields = {}
    for name, hint in get_type_hints(shape).items():
        dotted = f"{prefix}{name}"
        if dotted in left_out:
            continue
        of_it = schema(hint, left_out, f"{dotted}.") if _is_table(hint) else _value(hint)
        if of_it.get("properties") != {}:
            fields[name] = of_it
    return {"type": "object", "additionalProperties": False, "properties": fields}


def _is_table(hint: Any) -> bool:  # noqa: ANN401
    return isinstance(hint, type) and (hasattr(hint, "__struct_fields__") or hasattr(hint, "__dataclass_fields__"))


def _value(hint: Any) -> dict[str, Any]:  # noqa: ANN401
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [each for each in get_args(hint) if each is not type(None)]
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    if get_origin(hint) is tuple:
        return {"type": "array", "items": _value(get_args(hint)[0])}
    if get_origin(hint) is not None and issubclass(get_origin(hint), Mapping):
        return {"type": "object", "additionalProperties": _value(get_args(hint)[1])}
    if _is_table(hint):  # a row of a list
        needed = [field.name for field in msgspec.structs.fields(hint) if field.required]
        return schema(hint, {}) | ({"required": needed} if needed else {})
    if issubclass(hint, enum.Enum):
        return {"enum": [member.name.lower() for member in hint]}
    if hint is DurationMs:
        return {"type": "string", "pattern": "^[0-9.]+ *[a-z]+$"}
    if hint is ByteSize:
        return {"type": ["string", "integer"]}
    return {"type": {bool: "boolean", int: "integer", float: "number"}.get(hint, "string")}


def document() -> str:
    """values.schema.json with its definitions as they should be."""
    found = json.loads(SCHEMA.read_text(encoding="utf-8"))
    for part, of_it in PARTS.items():
        found["definitions"][f"settings-{part}"] = schema(of_it.settings, of_it.said_by_the_chart)
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    SCHEMA.write_text(document(), encoding="utf-8")
    sys.stdout.write(f"wrote {SCHEMA.name}\n")
