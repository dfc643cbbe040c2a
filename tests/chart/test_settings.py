"""The chart's settings: what it writes is what our programs read, and every setting and program has its place."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.agent.settings import Settings as AgentSettings
from aliquot.coordinator.settings.config import Settings as CoordinatorSettings
from aliquot.kube.node.settings import InjectionMode
from aliquot.kube.node.settings import Settings as NodeSettings
from aliquot.kube.settings import Settings as KubeSettings
from tests.chart.conftest import FULL, documents
from tests.chart.rendering import containers, named, settings_of, workloads
from tools import chart_settings, manifests


@pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])
def test_agents_and_nodes_read_what_they_are_given(values: dict[str, Any], tmp_path: Path) -> None:
    found = documents(values)
    spec = named(found, "DaemonSet", "aliquot-agent")["spec"]["template"]["spec"]
    agent, node = (next(each for each in spec["containers"] if each["name"] == name) for name in ("agent", "node"))
    of_agent = settings_of(found, spec, agent, AgentSettings, tmp_path)
    assert of_agent.coordinator == (f"aliquot-coordinator.{manifests.NAMESPACE}.svc:7070",)
    assert of_agent.enforcement.tiers == ("mig", "driver", "preload", "watchdog")
    assert of_agent.watchdog.stop_strays is not bool(values), "false is a value, too"
    assert of_agent.node_name == "node-1"
    of_node = settings_of(found, spec, node, NodeSettings, tmp_path)
    assert of_node.agent_socket == of_agent.socket
    assert of_node.device_plugins == Path("/var/lib/kubelet/device-plugins")
    assert of_node.injection is InjectionMode(values.get("node", {}).get("injection", "cdi"))
    assert of_node.release is bool(values)
    # What containers mount lies at the same path on the node: the folders of the tiers, and the links to them.
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    for container in (agent, node):
        for mount in container["volumeMounts"]:
            assert paths.get(mount["name"], mount["mountPath"]) == mount["mountPath"]
    assert of_agent.enforcement_dir.is_relative_to(paths["state"])
    assert of_node.state_dir.is_relative_to(paths["state"])


@pytest.mark.parametrize("values", [{}, FULL], ids=["default", "full"])
def test_coordinators_and_controllers_read_what_they_are_given(values: dict[str, Any], tmp_path: Path) -> None:
    found = documents(values)
    spec = named(found, "StatefulSet", "aliquot-coordinator")["spec"]["template"]["spec"]
    read = settings_of(found, spec, spec["containers"][0], CoordinatorSettings, tmp_path)
    assert read.listen == "0.0.0.0:7070"
    assert read.journal.startswith("postgres:" if values else "sqlite:")
    assert read.forecast is not bool(values)
    rules = {(rule.account, rule.role) for rule in read.access.pods.rules}
    assert ("aliquot-kube", "user") in rules
    assert (("trainer", "user") in rules) is bool(values), "beside the chart's own"
    assert (("aliquot-agent", "operator") in rules) is bool(values), "only where nodes release"
    assert ("gpu.example.org" in read.access.names) is bool(values)
    assert f"aliquot-coordinator.{manifests.NAMESPACE}.svc" in read.access.names
    for name in ("aliquot-kube", "aliquot-scheduler"):
        spec = named(found, "Deployment", name)["spec"]["template"]["spec"]
        of_kube = settings_of(found, spec, spec["containers"][-1], KubeSettings, tmp_path)
        assert [rule.namespace_labels for rule in of_kube.rules] == ([{"team": "vision"}] if values else [])


@pytest.mark.parametrize("part", chart_settings.PARTS)
def test_every_setting_of_our_programs_is_a_value_or_said_by_the_chart(part: str) -> None:
    known = set(chart_settings.names(chart_settings.PARTS[part].settings))
    assert set(chart_settings.PARTS[part].said_by_the_chart) <= known, "what is there no more"
    schema = json.loads(chart_settings.SCHEMA.read_text())["definitions"][f"settings-{part}"]

    def values(of: dict[str, Any], prefix: str = "") -> Iterator[str]:
        for name, inner in of["properties"].items():
            yield from values(inner, f"{prefix}{name}.") if "properties" in inner else [f"{prefix}{name}"]

    assert {*values(schema), *chart_settings.PARTS[part].said_by_the_chart} == known
    assert chart_settings.SCHEMA.read_text() == chart_settings.document(), "run python -m tools.chart_settings"


def test_every_setting_that_the_page_of_operations_names_is_a_value() -> None:
    text = (manifests.REPOSITORY / "docs" / "operations.md").read_text()
    table = text.partition("## Settings and maintenance")[2].partition("The log names")[0]
    named_there = [
        name for line in table.splitlines() if line[:3] == "| `" for name in re.findall(r"`([a-z_.]+)`", line)
    ]
    assert len(named_there) > 10
    part = chart_settings.PARTS["coordinator"]
    assert set(named_there) <= set(chart_settings.names(part.settings)) - part.said_by_the_chart.keys()


def test_every_program_has_its_place_in_the_chart() -> None:
    found = documents({**FULL, "webhook": {"enabled": True}})
    started = {
        word
        for _, spec in workloads(found)
        for container in containers(spec)
        for script in [*container.get("command", ()), *container.get("args", ())]
        for word in script.split()
    }
    project = tomllib.loads((manifests.REPOSITORY / "pyproject.toml").read_text())["project"]
    assert set(project["scripts"]) <= started
    assert {"extender", "controllers", "webhook", "notify", "nodes"} <= started
