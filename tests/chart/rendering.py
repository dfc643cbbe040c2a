"""What tests of the chart look for in what it renders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aliquot.agent.settings import ENV_PREFIX as AGENT_PREFIX
from aliquot.agent.settings import Settings as AgentSettings
from aliquot.common import config
from aliquot.console.settings import Settings as ConsoleSettings
from aliquot.coordinator.settings.config import Settings as CoordinatorSettings
from aliquot.kube.node.settings import ENV_PREFIX as NODE_PREFIX
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.settings import Settings as KubeSettings
from tests.chart.conftest import Documents


def named(found: Documents, kind: str, name: str) -> dict[str, Any]:
    return next(each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))


def workloads(found: Documents) -> list[tuple[str, dict[str, Any]]]:
    kinds = ("Deployment", "StatefulSet", "DaemonSet")
    return [(each["metadata"]["name"], each["spec"]["template"]["spec"]) for each in found if each["kind"] in kinds]


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec["containers"], *spec.get("initContainers", [])]


def environment(container: dict[str, Any]) -> dict[str, str]:
    """What a container has in its environment; of the Node it is said by the node."""
    return {
        each["name"]: each.get("value", "the node's" if "hostIP" in str(each) else "node-1")
        for each in container.get("env", ())
    }


PROGRAMS: dict[type[Any], tuple[str, str]] = {
    CoordinatorSettings: ("ALIQUOT_COORDINATOR_", "coordinator"),
    AgentSettings: (AGENT_PREFIX, "agent"),
    NodeSettings: (NODE_PREFIX, "kube_node"),
    KubeSettings: ("ALIQUOT_KUBE_", "kube"),
    ConsoleSettings: ("ALIQUOT_CONSOLE_", "console"),
}


def settings_of(
    found: Documents, spec: dict[str, Any], container: dict[str, Any], shape: type[Any], folder: Path
) -> Any:
    """What its program reads, from the file that is mounted where it is told to look, and its environment."""
    words = [word for script in container["args"] for word in script.split()]
    path = Path(words[words.index("--config") + 1])
    mount = next(each for each in container["volumeMounts"] if path.is_relative_to(each["mountPath"]))
    volume = next(each for each in spec["volumes"] if each["name"] == mount["name"])
    file = folder / path.name
    file.write_text(named(found, "ConfigMap", volume["configMap"]["name"])["data"][path.name])
    prefix, table = PROGRAMS[shape]
    env = environment(container)
    return config.load(shape, env_prefix=prefix, file=file, table=table, env=env, flags={}).settings
