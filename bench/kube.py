"""What Kubernetes gets through the extender: binds a second, filter latencies, gangs, and the cost of following pods.

    python bench/kube.py --json

A real coordinator process, a real extender process, a fake API server process (`tests/kube/fake_api`), and here what a
stock kube-scheduler does: filter and prioritise one pod after another, binds beside them. Bars: `pods_bound_per_s`
>= 300; `same_node_40_s` (40 parts of one node) < 1; `filter_p99_ms_1000` <= 10 and `filter_p99_ms_5000` <= 25 (with a
bind between every ten); `follow_rss_mb` <= 150 and `follow_cores` <= 0.3 for 50,000 pods with 1,000 changes a second;
`gang_512_s` (from the last creation until all are bound) <= 5; `impossible_gang_s` (until its pods are told) <= 1.
Without bars: `refused_per_pod` (binds that the pool refused, whose pods went round again), and the processor time that
each pod that is bound costs each process (`extender_ms_per_pod`, ...), which is what to compare on a busy machine.
The last line is one JSON object. None of it was run against a real API server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.common.runtime import event_loop_factory
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.resources import PODS
from aliquot.kube.core import names
from bench.lib.http_caller import Caller
from bench.lib.pool import coordinator, cpu_s_of, declare, declared_nodes, in_process, percentile
from tests.identity import ADMIN_TOKEN
from tests.kube.fake_api.server import ADMIN
from tests.kube.making import admitted, pod_document

Document = dict[str, Any]
_AT_ONCE = 32
_QUARTER = {names.GPU_PERCENT: 25}


@contextlib.contextmanager
def program(*arguments: str, environment: dict[str, str] | None = None) -> Iterator[tuple[int, str]]:
    """A process that is ended at the end; gives its id and first line."""
    popen = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        cwd=Path(__file__).parents[1],
    )
    try:
        assert popen.stdout is not None
        line = popen.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{arguments} did not start")
        yield popen.pid, line
    finally:
        popen.terminate()
        popen.wait(20)


class Scheduler:
    """As a stock one: cycles one by one, binds beside them."""

    def __init__(self, caller: Caller, nodes: list[str]) -> None:
        self.nodes = nodes
        self.filter_s: list[float] = []
        self.refused = 0
        """Binds that were refused, whose pods were then scheduled again."""
        self._caller = caller
        self._named: dict[int, tuple[list[str], msgspec.Raw]] = {}

    async def call(self, verb: str, document: object) -> Any:  # noqa: ANN401 - JSON
        """One verb."""
        return msgspec.json.decode(await self._caller.post(f"/{verb}", msgspec.json.encode(document)))

    async def place(self, pod: Document, nodes: list[str] | None = None) -> str:
        """Filter and prioritise."""
        args = {"Pod": pod, "Nodes": None, "NodeNames": self._names(nodes or self.nodes)}
        begun = time.perf_counter()
        found = await self.call("filter", args)
        self.filter_s.append(time.perf_counter() - begun)
        fitting = found.get("NodeNames") or []
        if len(fitting) < 2:
            return fitting[0] if fitting else ""
        # A stock scheduler scores at most a sample of what fits.
        hosts = await self.call("prioritize", {**args, "NodeNames": fitting[:100]})
        return str(max(hosts, key=lambda host: host["Score"])["Host"])

    def _names(self, nodes: list[str]) -> msgspec.Raw:
        """Encoded once: what is measured is the other side."""
        known = self._named.get(id(nodes))
        if known is None:
            known = self._named[id(nodes)] = nodes, msgspec.Raw(msgspec.json.encode(nodes))
        return known[1]

    async def bind(self, pod: Document, node: str) -> bool:
        """Bind."""
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        refused = bool((await self.call("bind", args))["Error"])
        self.refused += refused
        return not refused

    async def schedule(self, pods: list[Any], deadline_s: float = 120.0, at_once: int = _AT_ONCE) -> float:
        """Until all are bound, with so many binds beside one another; returns the seconds."""
        begun = time.perf_counter()
        waiting = list(pods)
        while waiting:
            if time.perf_counter() - begun > deadline_s:
                raise RuntimeError(f"{len(waiting)} of {len(pods)} were not bound")
            tasks: dict[asyncio.Task[bool], Any] = {}
            again: list[Any] = []

            def collect(done: set[asyncio.Task[bool]], tasks: dict[Any, Any] = tasks, again: list[Any] = again) -> None:
                again += [pod for task in done if not task.result() for pod in [tasks[task]]]
                for task in done:
                    del tasks[task]

            for pod in waiting:
                node = await self.place(pod)
                if not node:
                    again.append(pod)
                    continue
                tasks[asyncio.create_task(self.bind(pod, node))] = pod
                if len(tasks) >= at_once:
                    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                    collect(done)
            if tasks:
                done, _ = await asyncio.wait(tasks)
                collect(done)
            waiting = again
        return time.perf_counter() - begun


async def create(client: KubeClient, prefix: str, count: int, limits: dict[str, int], **fields: Any) -> list[Any]:  # noqa: ANN401 - fields of metadata
    """Pods, through the API."""
    found: list[Any] = []
    for begin in range(0, count, 64):
        some = [pod_document(f"{prefix}-{number}", limits, **fields) for number in range(begin, min(count, begin + 64))]
        found += await asyncio.gather(*(client.post(PODS.path("default"), admitted(pod)) for pod in some))
    return [msgspec.json.decode(item) for item in found]


async def delete(client: KubeClient, pods: list[Any]) -> None:
    """Gone."""
    for begin in range(0, len(pods), 64):
        some = [pod["metadata"]["name"] for pod in pods[begin : begin + 64]]
        await asyncio.gather(*(client.delete(PODS.path("default", name), {"gracePeriodSeconds": 0}) for name in some))


async def filters(client: KubeClient, scheduler: Scheduler, tag: str, count: int) -> float:
    """The 99th percentile of filters, with a bind between every ten, in ms. The first of a kind is not counted."""
    pods = await create(client, f"filter-{tag}", count, _QUARTER)
    await scheduler.place(pods[0])
    scheduler.filter_s.clear()
    for number, pod in enumerate(pods):
        node = await scheduler.place(pod)
        if number % 10 == 0:
            await scheduler.bind(pod, node)
    times = sorted(scheduler.filter_s)
    await delete(client, pods)
    return percentile(times, 0.99) * 1000


async def measure(arguments: argparse.Namespace, url: str, pool: str, extender: str) -> dict[str, float]:
    """All but the cost of following."""
    result: dict[str, float] = {}
    devices = 8
    await declare(pool, declared_nodes(5000, devices))
    every = [f"bench-{number:05d}" for number in range(5000)]
    host, _, port = extender.rpartition(":")
    async with KubeClient(Cluster(url, lambda: ADMIN)) as client:
        caller = Caller(host, int(port))
        scheduler = Scheduler(caller, every[:500])
        warm = await create(client, "warm", 100, _QUARTER)
        await scheduler.schedule(warm)
        await asyncio.sleep(arguments.warm_up)
        await delete(client, warm)

        pods = await create(client, "many", arguments.pods, _QUARTER)
        cpu_s = {name: cpu_s_of(pid) for name, pid in arguments.pids.items()}
        scheduler.refused = 0
        took_s = await scheduler.schedule(pods)
        result["refused_per_pod"] = round(scheduler.refused / len(pods), 3)
        result["pods_bound_per_s"] = round(len(pods) / took_s, 1)
        for name, pid in arguments.pids.items():
            result[f"{name}_ms_per_pod"] = round((cpu_s_of(pid) - cpu_s[name]) * 1000 / len(pods), 2)
        await delete(client, pods)
        await asyncio.sleep(2)

        scheduler.nodes = every[4000:4001]
        pods = await create(client, "forty", 40, {names.GPU_PERCENT: 20})
        result["same_node_40_s"] = round(await scheduler.schedule(pods), 3)
        await delete(client, pods)

        for count in (1000, 5000):
            scheduler.nodes = every[:count]
            result[f"filter_p99_ms_{count}"] = round(await filters(client, scheduler, str(count), arguments.filters), 2)

        scheduler.nodes = every[:1000]
        gang = {"labels": {names.GANG: "g"}, "annotations": {names.GANG_SIZE: "512"}}
        pods = await create(client, "gang", 512, {names.GPU: 1}, **gang)
        # As many binds as a stock scheduler has under way: members wait there for one another.
        result["gang_512_s"] = round(await scheduler.schedule(pods, at_once=len(pods)), 3)
        await delete(client, pods)

        gang = {"labels": {names.GANG: "x"}, "annotations": {names.GANG_SIZE: "512", names.REQUEST: "9(A100)"}}
        pods = await create(client, "impossible", 512, {}, **gang)
        begun = time.perf_counter()
        args = {"Pod": pods[0], "Nodes": None, "NodeNames": scheduler.nodes}
        while not (await scheduler.call("filter", args)).get("FailedAndUnresolvableNodes"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        result["impossible_gang_s"] = round(time.perf_counter() - begun, 3)
        caller.close()
    return result


async def run(arguments: argparse.Namespace) -> dict[str, float]:
    """Everything."""
    with (
        tempfile.TemporaryDirectory() as folder,
        coordinator("--journal", f"sqlite:{folder}/journal") as pool,
        program("-m", "tests.kube.fake_api") as (api_pid, url),
    ):
        config = Path(folder) / "kubeconfig"
        cluster = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {"token": ADMIN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        config.write_text(yaml.safe_dump(cluster))
        environment = {"ALIQUOT_COORDINATOR": pool.address, "ALIQUOT_TOKEN": ADMIN_TOKEN}
        flags = ("-m", "aliquot.kube.program", "extender", "--kubeconfig", str(config), "--listen-port", "0")
        with program(*flags, "--log-level", "error", environment=environment) as (pid, line):
            arguments.pids = {
                "extender": pid,
                "api": api_pid,
                "coordinator": pool.popen.pid,
                "scheduler": os.getpid(),
            }
            extender = json.loads(line.removeprefix("ready "))["address"]
            result = await measure(arguments, url, pool.address, extender)
    full = ("-m", "tests.kube.fake_api", "--pods", str(arguments.follow), "--events-per-s", "1000")
    with program(*full) as (_, url):
        result |= await in_process("kube_follow.py", url, str(arguments.seconds))
    return result


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1500, help="that are bound one after another")
    parser.add_argument("--filters", type=int, default=400)
    parser.add_argument("--follow", type=int, default=50_000, help="pods that are followed")
    parser.add_argument("--seconds", type=float, default=10.0, help="of following")
    parser.add_argument("--warm-up", type=float, default=5.0, help="for what the coordinator compiles once")
    parser.add_argument("--json", action="store_true", help="nothing but the last line")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        result = runner.run(run(arguments))
    if not arguments.json:
        for name, value in result.items():
            print(f"{name:24} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
