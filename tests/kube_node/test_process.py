"""The process itself, against the fake API server over HTTP, a kubelet, a real agent and a real coordinator's pool."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.kube.core import names
from aliquot.kube.node.objects import CONDITION, NODE_CONDITION
from tests.agent.harness import ROOT, auntil
from tests.kube.fake_api.server import ADMIN, FakeApi
from tests.kube.making import delete_pod, make_node, pod_document
from tests.kube_node.conftest import NODE, Place
from tests.kube_node.test_pods import environment_of

pytestmark = pytest.mark.root("to make cgroups")


def kubeconfig(folder: Path, url: str) -> Path:
    path = folder / "kubeconfig"
    text = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": ADMIN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(text))
    return path


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as server:
        make_node(server, NODE)
        yield server


def bound_pod(api: FakeApi, place: Place, name: str, lease_id: str) -> dict[str, Any]:
    item = pod_document(name, {names.GPU_PERCENT: 25}, annotations=place.annotations(lease_id))
    item["spec"]["nodeName"] = NODE
    item["status"] = {"phase": "Pending"}
    made: dict[str, Any] = api.store.create(api.pods, "default", item)
    return made


def said(item: Any, kind: str) -> dict[str, str]:
    found = ((item or {}).get("status") or {}).get("conditions") or []
    return next((each for each in found if each["type"] == kind), {})


def started(environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        command = [sys.executable, "-m", "aliquot.kube.node.main"]
        return subprocess.Popen(command, env=environment, cwd=ROOT, stdout=output, stderr=output)


def environment_for(place: Place, api: FakeApi) -> dict[str, str]:
    settings = place.settings
    return {
        **{key: text for key, text in os.environ.items() if not key.startswith(("ALIQUOT_", "KUBERNETES_"))},
        "PYTHONPATH": "",
        "ALIQUOT_KUBE_NODE_NODE_NAME": NODE,
        "ALIQUOT_KUBE_NODE_AGENT_SOCKET": str(settings.agent_socket),
        "ALIQUOT_KUBE_NODE_STATE_DIR": str(settings.state_dir),
        "ALIQUOT_KUBE_NODE_DEVICE_PLUGINS": str(settings.device_plugins),
        "ALIQUOT_KUBE_NODE_POD_RESOURCES": str(settings.pod_resources),
        "ALIQUOT_KUBE_NODE_CGROUP_ROOT": str(settings.cgroup_root),
        "ALIQUOT_KUBE_NODE_KUBELET_CGROUP_ROOT": settings.kubelet_cgroup_root,
        "ALIQUOT_KUBE_NODE_CDI_DIR": str(settings.cdi_dir),
        "ALIQUOT_KUBE_NODE_KUBECONFIG": str(kubeconfig(settings.state_dir, api.url)),
    }


async def test_a_second_process_is_refused_and_says_whom_by(place: Place, api: FakeApi) -> None:
    log = place.settings.state_dir / "log"
    process = await asyncio.to_thread(started, environment_for(place, api), log)
    try:
        assert await asyncio.to_thread(process.wait, 60) == 1
        said = await asyncio.to_thread(log.read_text)
        assert "is served by aliquot-kube-node already" in said
        assert "ready {" not in said
        assert place.kubelet.allocatable == 200
    finally:
        process.kill()
        process.wait()


async def test_the_process_serves_a_kubelet_and_speaks_to_an_api_server(place: Place, api: FakeApi) -> None:
    await place.stop()
    await place.lease("l-1")
    settings = place.settings
    process = await asyncio.to_thread(started, environment_for(place, api), settings.state_dir / "log")
    try:
        await auntil(lambda: place.kubelet.allocatable == 200, "it has registered")
        nodes = api.store.kind("v1", "nodes").items
        await auntil(lambda: names.GPU_MEMORY_MIB in nodes["", NODE]["status"].get("allocatable", {}), "memory")
        assert said(nodes["", NODE], NODE_CONDITION)["status"] == "True"
        item = bound_pod(api, place, "a", "l-1")
        pod = await place.kubelet.admit("a", item["metadata"]["uid"], {"main": 25})
        job = await place.kubelet.run(pod, "main", ["sleep", "60"])
        assert "ALIQUOT_LEASE_ID=l-1" in environment_of(job)
        await auntil(lambda: said(api.pods.items["default", "a"], CONDITION).get("reason") == "Preload", "the tier")
        place.kubelet.remove(pod)
        delete_pod(api, "a")
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0, (settings.state_dir / "log").read_text()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        sys.stdout.write(await asyncio.to_thread((settings.state_dir / "log").read_text))
