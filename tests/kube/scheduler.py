"""What a stock kube-scheduler does with an extender: one cycle for one pod after another, binds beside the next cycle.

Its own filters are the nodes that suit a pod by `nodeSelector`; it knows `priority` for preemption. Everything that it
says to the extender is in the Go-cased form of k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any, Self

import aiohttp
import msgspec

from aliquot.kube.core import names
from tests.kube.fake_api.server import FakeApi
from tests.kube.fake_api.store import Object
from tests.kube.rights import scheduler_config


class StockScheduler:
    """`run` schedules what is pending, for ever; `cycle` one pod, once."""

    def __init__(self, api: FakeApi, extender_url: str, name: str = names.SCHEDULER) -> None:
        self.api = api
        self.name = name
        self.url = extender_url
        self.percentage = int(scheduler_config().get("percentageOfNodesToScore", 0))
        """Of nodes that suit a pod: so many are passed on. 0: a stock one's own sample, from 100 nodes on."""
        self._next = 0
        self.refusals: dict[str, str] = {}
        """The last reason why a pod (`NAMESPACE/NAME`) was not bound."""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession()
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def call(self, verb: str, document: Any) -> Any:
        """One call of the extender."""
        assert self._session is not None
        body = msgspec.json.encode(document)
        async with self._session.post(f"{self.url}/{verb}", data=body) as response:
            answer = await response.read()
            assert response.status == 200, answer
            return msgspec.json.decode(answer)

    def _nodes(self) -> dict[str, Object]:
        return {name: node for (_, name), node in self.api.store.kind("v1", "nodes").items.items()}

    def nodes_for(self, pod: Object) -> list[str]:
        """What its own filters leave: selectors, and resources where a node says how much it has."""
        nodes = self._nodes()
        suited = sorted(
            name for name, node in nodes.items() if _suits(node, pod) and _has_room(node, pod, self._on(name))
        )
        # As numFeasibleNodesToFind has it; each pod's look begins where the one before has ended.
        percentage = self.percentage or max(5, 50 - len(nodes) // 125)
        enough = max(100, len(nodes) * percentage // 100)
        begin, self._next = self._next, (self._next + enough) % max(1, len(suited))
        return [*suited[begin:], *suited[:begin]][:enough] if enough < len(suited) else suited

    def _on(self, node: str) -> list[Object]:
        """Pods of a node, the most urgent first."""
        found = [
            item
            for item in self.api.pods.items.values()
            if item["spec"].get("nodeName") == node and item["status"]["phase"] not in {"Succeeded", "Failed"}
        ]
        return sorted(found, key=lambda item: -item["spec"]["priority"])

    async def place(self, pod: Object) -> str:
        """Filter and prioritise; the node, or empty, with the reason in `refusals`."""
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        nodes = self.nodes_for(pod)
        if not nodes:
            self.refusals[key] = "insufficient resources"  # its extender is not asked then
            return ""
        args = {"Pod": pod, "Nodes": None, "NodeNames": nodes}
        found = await self.call("filter", args)
        if found.get("Error") or not found.get("NodeNames"):
            reasons = {**found.get("FailedNodes", {}), **found.get("FailedAndUnresolvableNodes", {})}
            self.refusals[key] = found.get("Error") or "; ".join(sorted(set(reasons.values()))) or "no node"
            return ""
        hosts = await self.call("prioritize", {**args, "NodeNames": found["NodeNames"]})
        return str(max(hosts, key=lambda host: (host["Score"], host["Host"]))["Host"])

    async def bind(self, pod: Object, node: str) -> bool:
        """The bind verb."""
        meta = pod["metadata"]
        args = {"PodName": meta["name"], "PodNamespace": meta["namespace"], "PodUID": meta["uid"], "Node": node}
        error = (await self.call("bind", args))["Error"]
        self.refusals[f"{meta['namespace']}/{meta['name']}"] = error
        return not error

    async def cycle(self, name: str, namespace: str = "default") -> bool:
        """Schedule one pod, once."""
        pod = self.api.pods.items[namespace, name]
        node = await self.place(pod)
        return bool(node) and await self.bind(pod, node)

    async def together(self, *names: str, namespace: str = "default") -> bool:
        """Schedule pods one after another, and bind them side by side; False where one has no node or is refused."""
        pods = [self.api.pods.items[namespace, name] for name in names]
        nodes = [await self.place(pod) for pod in pods]
        found = await asyncio.gather(*(self.bind(pod, node) for pod, node in zip(pods, nodes, strict=True) if node))
        return all(nodes) and all(found)

    async def preempt(self, name: str, namespace: str = "default") -> dict[str, set[str]]:
        """What the extender leaves of what the default plugin proposes; it is not asked about nothing.

        That takes all pods of lower priority off a node, and where the pod fits then by the node's own sums, reprieves
        as many as fit beside it. A node where that is everybody is left out: there it sees nothing to gain.
        """
        pod = self.api.pods.items[namespace, name]
        proposed: dict[str, Any] = {}
        for node, item in self._nodes().items():
            if not _suits(item, pod):
                continue
            there = self._on(node)
            stays = [each for each in there if each["spec"]["priority"] >= pod["spec"]["priority"]]
            if not _has_room(item, pod, stays):
                continue
            victims = []
            for each in there[len(stays) :]:
                if _has_room(item, pod, [*stays, each]):
                    stays.append(each)
                else:
                    victims.append({"UID": each["metadata"]["uid"]})
            if victims:
                proposed[node] = {"Pods": victims, "NumPDBViolations": 0}
        if not proposed or pod["spec"].get("preemptionPolicy") == "Never":
            return {}
        found = await self.call("preempt", {"Pod": pod, "NodeNameToMetaVictims": proposed})
        return {
            node: {victim["UID"] for victim in victims["Pods"]}
            for node, victims in found["NodeNameToMetaVictims"].items()
        }

    async def make_room(self, name: str, namespace: str) -> None:
        """Delete the victims on the cheapest node, as one does that may preempt."""
        found = await self.preempt(name, namespace)
        for uid in found[min(found, key=lambda node: (len(found[node]), node))] if found else ():
            pods = self.api.pods.items
            key = next((key for key, pod in pods.items() if pod["metadata"]["uid"] == uid), None)
            if key is not None:
                self.api.store.remove(self.api.pods, key)

    async def run(self, pause_s: float = 0.02, at_once: int = 1000, *, preempts: bool = False) -> None:
        """Schedule what is pending until cancelled: filters one by one, binds beside them."""
        busy: set[str] = set()
        tasks: set[asyncio.Task[None]] = set()

        async def bound(pod: Object, node: str) -> None:
            try:
                await self.bind(pod, node)
            except (aiohttp.ClientError, AssertionError) as error:
                self.refusals[pod["metadata"]["name"]] = str(error)
            finally:
                busy.discard(pod["metadata"]["uid"])

        try:
            while True:
                for pod in list(self.api.pods.items.values()):
                    uid = pod["metadata"]["uid"]
                    if not self._pending(pod) or uid in busy:
                        continue
                    try:
                        node = await self.place(pod)
                        if preempts and not node:
                            await self.make_room(pod["metadata"]["name"], pod["metadata"]["namespace"])
                    except (aiohttp.ClientError, AssertionError):
                        break  # the extender is away
                    if node:
                        busy.add(uid)
                        task = asyncio.create_task(bound(pod, node))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    while len(tasks) >= at_once:
                        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.sleep(pause_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _pending(self, pod: Object) -> bool:
        spec, meta = pod["spec"], pod["metadata"]
        alive = self.api.pods.items.get((meta["namespace"], meta["name"])) is pod
        return (
            alive
            and not spec.get("nodeName")
            and spec["schedulerName"] == self.name
            and "deletionTimestamp" not in meta
            and not spec.get("schedulingGates")
        )


def _suits(node: Object, pod: Object) -> bool:
    labels = node["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in (pod["spec"].get("nodeSelector") or {}).items())


def _has_room(node: Object, pod: Object, beside: Iterable[Object]) -> bool:
    """Whether a node's sums hold it beside these; one that says nothing of what it has holds everything."""
    has = (node.get("status") or {}).get("allocatable") or {}
    used = sum(map(_asked, beside), Counter[str]())
    return not has or all(used[name] + count <= int(has.get(name, 0)) for name, count in _asked(pod).items())


def _asked(pod: Object) -> Counter[str]:
    """Extended resources, which are whole."""
    found: Counter[str] = Counter()
    for container in pod["spec"]["containers"]:
        for name, value in ((container.get("resources") or {}).get("requests") or {}).items():
            if "/" in name:
                found[name] += int(value)
    return found
