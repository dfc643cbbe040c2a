"""The first page of docs/kubernetes.md, command by command: its own words are what is run.

Helm renders the chart, and what Helm would create is put into the fake API server. A real coordinator, the extender, a
scheduler and the webhook stand for what the pods of that would run; kubectl is what is below.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import MERGE, KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.serving import serve
from tests.certificates import Authority
from tests.chart.conftest import documents
from tests.coordinator.pool import eventually
from tests.kube.cluster import KubeCluster, audit, kube_cluster, scheduling
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import ADMIN, KINDS
from tests.kube.making import make_namespace
from tests.kube.test_command import aliquot
from tests.kube.test_webhook import folder_of, to
from tools import manifests

PAGE = (manifests.REPOSITORY / "docs" / "kubernetes.md").read_text()
FIRST = PAGE.partition("## Two pods on one card")[2].partition("\n## ")[0]


def commands(section: str) -> list[tuple[list[str], str]]:
    """The words of each command in a section's blocks of the shell, and what it is given to read."""
    found = []
    for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL):
        lines = iter(block.replace("\\\n", " ").splitlines())
        for line in lines:
            command, _, end = line.partition("<<")
            given = ""
            if end:
                for each in lines:
                    if each == end.strip("'"):
                        break
                    given += each + "\n"
            if command.strip():
                found.append((shlex.split(command), given))
    return found


class Shell:
    """Helm and kubectl, as far as the page uses them. What it does not know is an error."""

    def __init__(self, cluster: KubeCluster, client: KubeClient, port: int) -> None:
        self._cluster = cluster
        self._client = client
        self._port = port
        self.installed: list[dict[str, Any]] = []

    async def run(self, words: list[str], given: str) -> str:
        """Its output."""
        program, *rest = words
        if program == "helm":
            self._install(rest)
            hooks = self._cluster.api.store.kind(policies.VERSION, "mutatingwebhookconfigurations")
            await eventually(lambda: "caBundle" in str(hooks.items), "the webhook to be ready")
            return ""
        assert program == "kubectl", words
        match _without_namespace(rest):
            case ["create", "namespace", name]:
                make_namespace(self._cluster.api, name)
            case ["label", "namespace", name, label]:
                await self._label(resources.NAMESPACES.path(name=name), label)
            case ["label", "node", "--all", label]:
                for _, name in list(self._cluster.api.store.kind("v1", "nodes").items):
                    await self._label(resources.NODES.path(name=name), label)
            case ["apply", "-f", "-"]:
                for each in yaml.safe_load_all(given):
                    await self._client.post(resources.PODS.path("default"), each)
            case ["wait", "--for=condition=PodScheduled", *pods]:
                for pod in pods:
                    await self._scheduled(pod.removeprefix("pod/"))
            case ["get", "pod", *pods, "-o", columns]:
                return "\n".join([self._columns(pod, columns) for pod in pods])
            case ["exec", place, "-c", container, "--", *command]:
                kind, _, name = place.partition("/")
                (found,) = [
                    each
                    for each in self.installed
                    if each["metadata"]["name"] == name and each["kind"].lower().startswith(kind[:6])
                ]
                inside = {each["name"] for each in found["spec"]["template"]["spec"]["containers"]}
                assert container in inside
                assert command[0] == "aliquot"
                code, text = await aliquot(self._cluster, *command[1:])
                assert code == 0, text
                return text
            case ["delete", "pod", *pods]:
                for pod in pods:
                    await self._client.delete(resources.PODS.path("default", pod), {"gracePeriodSeconds": 0})
            case _:
                raise AssertionError(f"what does {shlex.join(words)} do?")
        return ""

    def _install(self, words: list[str]) -> None:
        install, release, chart, *flags = words
        assert (install, release, flags[-1]) == ("install", "aliquot", "--wait")
        assert (manifests.REPOSITORY / chart) == manifests.CHART
        assert flags[flags.index("-n") + 1] == manifests.NAMESPACE
        values = yaml.safe_load((manifests.REPOSITORY / flags[flags.index("-f") + 1]).read_text())
        known = {(version, kind): plural for version, plural, kind, _ in KINDS}
        self.installed = documents(values)
        for each in self.installed:
            plural = known.get((each["apiVersion"], each["kind"]))
            if plural is None or each["metadata"]["name"].endswith("-test"):
                continue  # of others' controllers, or run by `helm test`
            if each["kind"] == "MutatingWebhookConfiguration":
                to(each, self._port)
            kind = self._cluster.api.store.kind(each["apiVersion"], plural)
            self._cluster.api.store.create(kind, each["metadata"].get("namespace", ""), each)

    async def _label(self, path: str, label: str) -> None:
        name, _, value = label.partition("=")
        await self._client.patch(path, {"metadata": {"labels": {name: value}}}, MERGE)

    async def _scheduled(self, pod: str) -> None:
        def done() -> bool:
            conditions = self._cluster.pod(pod)["status"].get("conditions", ())
            return any((each["type"], each["status"]) == ("PodScheduled", "True") for each in conditions)

        await eventually(done, f"{pod} to be scheduled")

    def _columns(self, pod: str, columns: str) -> str:
        assert columns.startswith("custom-columns=")
        found = []
        for column in columns.partition("=")[2].split(","):
            value = self._cluster.pod(pod)
            for name in re.split(r"(?<!\\)\.", column.partition(":")[2])[1:]:
                value = value[name.replace("\\.", ".")]
            found.append(str(value))
        return "   ".join(found)


def _without_namespace(words: list[str]) -> list[str]:
    if words[0] != "-n":
        return words
    assert words[1] == manifests.NAMESPACE
    return words[2:]


@contextlib.asynccontextmanager
async def shell(cluster: KubeCluster, authority: Authority, folder: Path) -> AsyncIterator[Shell]:
    """With the webhook that the chart would start, and that is trusted once there is its configuration."""
    certificate = webhook.Certificate(folder_of(authority, folder / "tls"))
    end, port = await serve(webhook.questions(), "127.0.0.1", 0, tls=certificate.context)
    async with KubeClient(Cluster(cluster.api.url, lambda: ADMIN), timeout_s=5.0) as client:
        keeping = asyncio.create_task(webhook.keep(certificate, client, every_s=0.05))
        try:
            yield Shell(cluster, client, port)
        finally:
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)
            await end()


async def test_the_page_leads_to_two_pods_on_one_card(authority: Authority, tmp_path: Path) -> None:
    pytest.importorskip("helm_python", reason="needs helm-python-sdk: pip install 'aliquot[dev]'")
    told: dict[str, str] = {}
    async with (
        kube_cluster(1, devices=2) as cluster,
        scheduling(cluster, loop=True),
        shell(cluster, authority, tmp_path) as at,
    ):
        for words, given in commands(FIRST):
            if words[:2] == ["kubectl", "delete"]:
                devices = {part["device"] for pod in words[3:] for part in cluster.assignment(pod)["slices"]}
                assert len(devices) == 1, "on one card"
                await audit(cluster)
            told[" ".join(words[:2])] = await at.run(words, given)
        (node,) = cluster.api.store.kind("v1", "nodes").items.values()
        (agents,) = [each for each in at.installed if each["kind"] == "DaemonSet"]
        wanted = agents["spec"]["template"]["spec"]["nodeSelector"]
        assert wanted.items() <= node["metadata"]["labels"].items(), "agents come to the nodes that were labelled"
        assert all(pod in told["kubectl get"] for pod in ("quarter", "half"))
        assert "0.25" in told["kubectl -n"]
        await cluster.settled(0, "leases to end with their pods")
