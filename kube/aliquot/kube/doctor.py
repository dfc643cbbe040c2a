"""What on a cluster is missing or in the way, each with the command that mends it."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final

import msgspec

from aliquot.client import AsyncPool, PoolError, Request
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_NODE_IDS_PER_REQUEST
from aliquot.kube.api import objects, resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.errors import KubeError, KubeForbidden, KubeNotFound
from aliquot.kube.api.resources import Resource
from aliquot.kube.core import kueue, names
from aliquot.kube.core.pods import flatten
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.core.surroundings import CLAIMS_MINOR, Finding, Machine, Mark, Wants, gates, look_around
from aliquot.kube.rights import EXTENDER, NEEDED, NODE, program_of
from aliquot.kube.webhook import CONFIGURATION

_FOREIGN: Final = ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/gpu.shared")
_OLDEST_MINOR: Final = 30
"""From which on validating policies are there."""
_KUBELETS_ASKED: Final = 64
_POD_SECURITY: Final = "pod-security.kubernetes.io/enforce"
_TOOLKIT: Final = "container-toolkit"
"""In the name of the image by which NVIDIA's operator installs it."""


class _NodeFile(msgspec.Struct):
    kube_node: Wants


class Doctor:
    """Looks at a cluster and its pool. Changes nothing."""

    def __init__(self, client: KubeClient, pool: AsyncPool, *, scheduler: str = names.SCHEDULER) -> None:
        self._client = client
        self._pool = pool
        self._scheduler = scheduler
        self._minor = 0
        self._account_of: dict[str, str] = {}
        """By program, as policies name it; of those that were found here."""
        self._wants = Wants()
        self._toolkit = ""
        self._ours: dict[str, tuple[Any, str]] = {}
        """Nodes of this cluster that are in the pool, and what their agents say of their drivers."""

    async def findings(self) -> AsyncIterator[Finding]:
        """One after another; what can't be looked at is a finding, too."""
        for look in (
            self._server,
            self._accounts,
            self._policies,
            self._coordinator,
            self._nodes,
            self._surroundings,
            self._claims,
            self._controllers,
            self._kueue,
            self._pods,
        ):
            try:
                async for finding in look():
                    yield finding
            except AliquotError as error:
                yield Finding(Mark.BAD, look.__name__.strip("_"), error.message, error.hint)

    async def _server(self) -> AsyncIterator[Finding]:
        found = msgspec.json.decode(await self._client.get("/version"))
        self._minor = int("".join(filter(str.isdigit, str(found["minor"]))) or 0)
        old = self._minor < _OLDEST_MINOR
        mend = "upgrade the cluster" if old else ""
        yield Finding(Mark.BAD if old else Mark.GOOD, "kubernetes", str(found["gitVersion"]), mend)

    async def _accounts(self) -> AsyncIterator[Finding]:
        """Whether our programs run here, and their accounts may do what they must."""
        for kind in (resources.DEPLOYMENTS, resources.DAEMON_SETS):
            for item in msgspec.json.decode(await self._client.get(kind.path()))["items"]:
                spec = item["spec"]["template"]["spec"]
                for container in spec["containers"]:
                    program = program_of(container)
                    if _TOOLKIT in container.get("image", ""):
                        self._toolkit = container["image"].rpartition("/")[2]
                    if program == NODE:
                        await self._read_settings(item["metadata"]["namespace"], spec.get("volumes") or ())
                        async for finding in self._pod_security(item["metadata"]["namespace"]):
                            yield finding
                    if program:
                        where = item["metadata"]["namespace"], spec.get("serviceAccountName", "default")
                        self._account_of[program] = "system:serviceaccount:{}:{}".format(*where)
                        yield await self._rights(program, *where)
        if EXTENDER not in self._account_of:
            text = f"nothing here runs `{EXTENDER}`: pods are placed only if it runs elsewhere"
            yield Finding(Mark.BAD, "accounts", text, "helm install aliquot deploy/chart/aliquot")

    async def _read_settings(self, namespace: str, volumes: Iterable[Any]) -> None:
        """Of our part on the nodes, as far as the chart has written them, and we may read it."""
        for name in (each["configMap"]["name"] for each in volumes if "configMap" in each):
            with contextlib.suppress(KubeForbidden, KubeNotFound):
                found = msgspec.json.decode(await self._client.get(resources.CONFIG_MAPS.path(namespace, name)))["data"]
                if "node.toml" in found:
                    self._wants = msgspec.toml.decode(found["node.toml"], type=_NodeFile).kube_node

    async def _pod_security(self, namespace: str) -> AsyncIterator[Finding]:
        """Agents see the host's processes and mount its folders: their namespace must let them."""
        level = (await objects.namespace_labels(self._client, namespace)).get(_POD_SECURITY, "privileged")
        if level != "privileged":
            text = f"Pod Security in {namespace} is {level}: it refuses agents"
            mend = f"kubectl label --overwrite namespace {namespace} {_POD_SECURITY}=privileged"
            yield Finding(Mark.BAD, "accounts", text, mend)

    async def _rights(self, program: str, namespace: str, account: str) -> Finding:
        user = f"system:serviceaccount:{namespace}:{account}"
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        missing = []
        for right in NEEDED[program]:
            for verb in right.verbs:
                asked = {"user": user, "groups": groups, "resourceAttributes": right.attributes(verb, namespace)}
                answer = msgspec.json.decode(await self._client.post(resources.ACCESS_REVIEWS.path(), {"spec": asked}))
                if not answer["status"]["allowed"]:
                    missing.append(f"{verb} {'/'.join(filter(None, (right.resource.plural, right.subresource)))}")
        if missing:
            text = f"{namespace}/{account} of `{program}` may not: {', '.join(missing)}"
            return Finding(Mark.BAD, "accounts", text, "helm upgrade aliquot deploy/chart/aliquot: its roles have them")
        return Finding(Mark.GOOD, "accounts", f"{namespace}/{account} may do what `{program}` does")

    async def _policies(self) -> AsyncIterator[Finding]:
        yield await self._webhook()
        name, resource = "aliquot-assignments", resources.VALIDATING_POLICIES
        bindings = Resource(resource.version, "validatingadmissionpolicybindings", namespaced=False)
        there = [await self._there(kind, name) for kind in (resource, bindings)]
        account = self._account_of.get(EXTENDER, "")
        if not all(there):
            what = "its binding is missing" if there[0] else "it is missing"
            text = f"{name}: {what}; tenants could write assignments themselves"
            yield Finding(Mark.BAD, "policies", text, "kubectl apply -f deploy/kube/admission.yaml")
        elif account not in await self._conditions(resource, name):
            text = f"{name} is about another account than {account}: it denies us our own assignments"
            yield Finding(Mark.BAD, "policies", text, f"write {account} in its matchConditions")
        else:
            yield Finding(Mark.GOOD, "policies", f"{name} is in force")

    async def _conditions(self, resource: Resource, name: str) -> str:
        """Of a policy, as text."""
        found = msgspec.json.decode(await self._client.get(resource.path(name=name)))
        return " ".join(each["expression"] for each in found["spec"].get("matchConditions") or ())

    async def _webhook(self) -> Finding:
        """What counts pods' asks."""
        try:
            found = msgspec.json.decode(await self._client.get(resources.MUTATING_WEBHOOKS.path(name=CONFIGURATION)))
        except KubeNotFound:
            text = f"{CONFIGURATION} is missing: no pod is placed that does not say {names.GPU_PERCENT} itself"
            return Finding(
                Mark.BAD, "webhook", text, "helm upgrade aliquot deploy/chart/aliquot --set webhook.enabled=true"
            )
        if not all(each["clientConfig"].get("caBundle") for each in found["webhooks"]):
            text = "the webhook has not said yet which authority its certificate is of: pods with parts are refused"
            return Finding(Mark.BAD, "webhook", text, "kubectl -n aliquot-system logs deployment/aliquot-webhook")
        return Finding(Mark.GOOD, "webhook", "pods that ask for parts are counted, and go to our scheduler")

    async def _coordinator(self) -> AsyncIterator[Finding]:
        try:
            status = await self._pool.status()
        except PoolError as error:
            yield Finding(Mark.BAD, "pool", error.message, error.hint or "set ALIQUOT_COORDINATOR; aliquot login")
            return
        text = f"{sum(status.nodes_by_state.values())} nodes, {status.leases} leases"
        if status.granting:
            yield Finding(Mark.GOOD, "pool", text)
        else:
            yield Finding(Mark.BAD, "pool", f"nothing is granted: {status.not_granting_reason}", "aliquot status")

    async def _nodes(self) -> AsyncIterator[Finding]:
        found = msgspec.json.decode(await self._client.get(resources.NODES.path()))["items"]
        ours = {node.name: node.driver_version async for node in self._pool.nodes(with_devices=False)}
        self._ours = {name: (item, ours[name]) for item in found if (name := item["metadata"]["name"]) in ours}
        there = {item["metadata"]["name"]: (item.get("status") or {}).get("allocatable") or {} for item in found}
        for name in sorted(ours.keys() - there.keys()):
            text = f"{name} is in the pool and no node of this cluster has that name"
            yield Finding(
                Mark.NOTE, "nodes", text, f"start its agent with --name as `kubectl get nodes` has it: {name}"
            )
        for name, allocatable in sorted(there.items()):
            foreign = [one for one in _FOREIGN if int(allocatable.get(one) or 0)]
            if foreign and name in ours:
                text = f"{name} has two owners of its GPUs: aliquot and whoever advertises {', '.join(foreign)}"
                mend = f"kubectl label node {name} nvidia.com/gpu.deploy.device-plugin=false"
                yield Finding(Mark.BAD, "nodes", text, mend)
            elif name in ours and not int(allocatable.get(names.GPU_PERCENT) or 0):
                text = f"{name} is in the pool and offers no {names.GPU_PERCENT}"
                yield Finding(
                    Mark.BAD, "nodes", text, f"kubectl -n aliquot-system get pods --field-selector spec.nodeName={name}"
                )
            elif name in ours:
                yield Finding(Mark.GOOD, "nodes", f"{name} offers {allocatable[names.GPU_PERCENT]} percent")
        if not self._ours:
            yield Finding(Mark.BAD, "nodes", "no node of this cluster is in the pool", "aliquot node invite NODE")
            return
        # As the extender asks: by the names that this cluster has for them.
        some = sorted(self._ours)[:MAX_NODE_IDS_PER_REQUEST]
        explanation = await self._pool.explain(Request("0.01", node_ids=tuple(some)))
        if explanation.impossible:
            text = f"the pool can place nothing on {', '.join(some[:3])}: {explanation.summary}"
            yield Finding(Mark.BAD, "nodes", text, "aliquot nodes; aliquot devices")

    async def _surroundings(self) -> AsyncIterator[Finding]:
        machines: list[Machine] = []
        refused = ""
        for name, (item, driver) in sorted(self._ours.items()):
            if len(machines) == _KUBELETS_ASKED:
                refused = refused or f"no more than {_KUBELETS_ASKED} kubelets are asked"
            kubelet: Mapping[str, Any] | str = refused
            if not refused:
                path = f"{resources.NODES.path(name=name)}/proxy/configz"
                try:
                    kubelet = msgspec.json.decode(await self._client.call("GET", path, retry=False))["kubeletconfig"]
                except KubeForbidden:
                    kubelet = refused = "you may not `get nodes/proxy`"
                except (KubeError, KeyError, msgspec.MsgspecError):
                    kubelet = "the API server does not reach its kubelet"
            info, labels = (item.get("status") or {}).get("nodeInfo") or {}, item["metadata"].get("labels") or {}
            machines.append(Machine(name, info, labels, driver, kubelet))
        for finding in look_around(machines, self._wants, self._minor, self._toolkit):
            yield finding

    async def _claims(self) -> AsyncIterator[Finding]:
        """What node.mode=dra needs of the API server."""
        if self._wants.mode != "dra":
            return
        try:
            await self._client.get(f"/apis/{resources.RESOURCE_CLAIMS.version}")
        except KubeNotFound:
            text = f"{resources.RESOURCE_CLAIMS.version} is not served, and node.mode=dra needs it"
            mend = f"upgrade to 1.{CLAIMS_MINOR}, or helm upgrade aliquot deploy/chart/aliquot --set node.mode=classic"
            yield Finding(Mark.BAD, "feature gates", text, mend)
            return
        metrics = b""
        with contextlib.suppress(KubeError):
            metrics = await self._client.call("GET", "/metrics", retry=False)
        for finding in gates(metrics.decode(), self._wants):
            yield finding

    async def _controllers(self) -> AsyncIterator[Finding]:
        answer = msgspec.json.decode(await self._client.get(resources.LEASES.path()))["items"]
        leases = [one for one in answer if one["metadata"]["name"] == names.CONTROLLERS_LEASE]
        if not leases or not leases[0]["spec"].get("holderIdentity"):
            text = "no controllers lead: nothing is cleared away while the extender is down, and Kueue is not answered"
            yield Finding(Mark.BAD, "controllers", text, "kubectl -n aliquot-system get deployments")
            return
        spec = leases[0]["spec"]
        renewed = dt.datetime.fromisoformat(spec["renewTime"])
        silent_s = (dt.datetime.now(dt.UTC) - renewed).total_seconds()
        if silent_s > 4 * spec["leaseDurationSeconds"]:
            yield Finding(
                Mark.BAD,
                "controllers",
                f"{spec['holderIdentity']} has not renewed its Lease for {silent_s:.0f} s",
                "kubectl -n aliquot-system get pods",
            )
        else:
            yield Finding(Mark.GOOD, "controllers", f"{spec['holderIdentity']} leads")

    async def _kueue(self) -> AsyncIterator[Finding]:
        try:
            found = msgspec.json.decode(await self._client.get(resources.ADMISSION_CHECKS.path()))["items"]
        except KubeNotFound:
            yield Finding(Mark.NOTE, "kueue", "Kueue (v1beta2) is not installed; gangs go by label")
            return
        ours = [one for one in found if one["spec"].get("controllerName") == kueue.CONTROLLER]
        if not ours:
            mend = f"kubectl create an AdmissionCheck with controllerName: {kueue.CONTROLLER} (docs/kubernetes.md)"
            yield Finding(Mark.NOTE, "kueue", "no AdmissionCheck of ours: Kueue admits what the pool can't place", mend)
        for one in ours:
            conditions = (one.get("status") or {}).get("conditions") or ()
            active = any(each["type"] == "Active" and each["status"] == "True" for each in conditions)
            name = one["metadata"]["name"]
            mend = "" if active else "kubectl -n aliquot-system logs deployment/aliquot-kube"
            text = f"AdmissionCheck {name} is {'active' if active else 'not active: no controllers have seen it'}"
            yield Finding(Mark.GOOD if active else Mark.BAD, "kueue", text, mend)

    async def _pods(self) -> AsyncIterator[Finding]:
        answer = await self._client.get(resources.PODS.path(), {"fieldSelector": "spec.nodeName="})
        items: list[Any] = msgspec.json.decode(answer).get("items") or []
        waiting = 0
        for item in items:
            pod = msgspec.convert(item, RawPod)
            if not flatten(pod).asked.anything:
                continue
            meta, scheduler = pod.metadata, pod.spec.scheduler_name
            if scheduler != self._scheduler:
                text = f"{meta.namespace}/{meta.name} asks for parts and is {scheduler}'s: it gets none"
                yield Finding(Mark.BAD, "pods", text, f"set spec.schedulerName: {self._scheduler}")
                continue
            conditions = (item.get("status") or {}).get("conditions") or ()
            if any(one["type"] == "PodScheduled" for one in conditions):
                waiting += 1
            else:
                text = f"no scheduler has looked at {meta.namespace}/{meta.name} yet"
                mend = "kubectl -n aliquot-system get deployment aliquot-scheduler"
                yield Finding(Mark.NOTE, "pods", text, mend)
        yield Finding(Mark.GOOD, "pods", f"{waiting} wait for capacity")

    async def _there(self, resource: Resource, name: str) -> bool:
        try:
            await self._client.get(resource.path(name=name))
        except KubeNotFound:
            return False
        return True
