"""`helm upgrade` from the chart's first version under pods that run, rehearsed on the fake API server.

What Helm would send is worked out as Helm does: from the release's manifest, the new one, and what is there. The server
refuses what a real one does; a coordinator, an extender and a scheduler stand for what the release's pods run.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeConflict, KubeRefused
from aliquot.kube.api.resources import Resource
from aliquot.kube.core import names
from tests.chart.conftest import FULL, Documents, documents, read
from tests.chart.test_versions import VERSIONS, taken
from tests.coordinator.pool import eventually
from tests.kube.cluster import audit, kube_cluster, scheduling
from tests.kube.fake_api.server import ADMIN, KINDS, FakeApi, fake_api
from tests.kube.making import delete_pod, make_pod
from tests.kube.rights import ACCOUNT, rules_of
from tools import manifests

FIRST = Path(__file__).parents[1] / "chart" / "first"
"""Of the first version: its values, and two releases as Helm rendered them."""
POSTGRES = {
    "coordinator": {
        "replicas": 3,
        "journal": {
            "type": "postgres",
            "postgres": {"dsn": "host=db dbname=aliquot user=aliquot", "passwordSecret": {"name": "db"}},
        },
    },
    "kube": {"replicas": 2},
}
RELEASES: dict[str, dict[str, Any]] = {"default": {}, "postgres": POSTGRES}


def first(release: str) -> Documents:
    """What the first version has made."""
    return read((FIRST / f"{release}.yaml").read_text())


class Helm:
    """Installs and upgrades one release, by HTTP."""

    def __init__(self, api: FakeApi) -> None:
        self._api = api
        self._release: dict[str, tuple[str, dict[str, Any]]] = {}
        """Of each object of the release its path, and how the manifest has it."""
        self._plurals = {(version, kind): (plural, namespaced) for version, plural, kind, namespaced in KINDS}

    async def upgrade(self, found: Documents) -> None:
        """Create, change and delete, in this order. Raises KubeError."""
        now = {}
        async with KubeClient(Cluster(self._api.url, lambda: ADMIN), timeout_s=5.0) as client:
            for each in found:
                if "helm.sh/hook" in each["metadata"].get("annotations", {}):
                    continue  # made by `helm test` only
                plural, namespaced = self._plurals[each["apiVersion"], each["kind"]]
                kind = Resource(each["apiVersion"], plural, namespaced)
                namespace = each["metadata"].get("namespace", manifests.NAMESPACE) if namespaced else ""
                path = kind.path(namespace, each["metadata"]["name"])
                now[path] = kind.path(namespace), each
                if path not in self._release:
                    await client.post(kind.path(namespace), each)
                    continue
                live = self._api.store.kind(kind.version, plural).items[namespace, each["metadata"]["name"]]
                changed = laid_over(self._release[path][1], each, live)
                if changed != live:
                    await client.put(path, changed)
            for path in self._release.keys() - now.keys():
                await client.delete(path)
        self._release = now


def laid_over(old: Any, new: Any, live: Any) -> Any:
    """What is there, with what the new manifest says, and without what only the old one said."""
    if not (isinstance(new, dict) and isinstance(live, dict)):
        return copy.deepcopy(new)
    before = old if isinstance(old, dict) else {}
    kept = {name: value for name, value in live.items() if name in new or name not in before}
    return kept | {name: laid_over(before.get(name), value, live.get(name)) for name, value in new.items()}


def merged(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays values over one another."""
    found = dict(values)
    for name, value in more.items():
        found[name] = merged(found.get(name, {}), value) if isinstance(value, dict) else value
    return found


@pytest.mark.parametrize("release", RELEASES)
async def test_pods_that_run_keep_their_leases_and_limits(release: str) -> None:
    new = documents(RELEASES[release])
    async with kube_cluster(3, devices=2) as cluster, scheduling(cluster, loop=True):
        helm = Helm(cluster.api)
        await helm.upgrade(first(release))
        gang: dict[str, Any] = {"labels": {names.GANG: "g"}, "annotations": {names.GANG_SIZE: "2"}}
        make_pod(cluster.api, "part", {names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 8192})
        for number in range(2):
            make_pod(cluster.api, f"g-{number}", {names.GPU: 1}, **gang)
        running = ("part", "g-0", "g-1")
        await eventually(lambda: all(cluster.node_of(pod) for pod in running), "all bound")
        before = {pod: copy.deepcopy(cluster.pod(pod)) for pod in running}, await cluster.leases()

        await helm.upgrade(new)
        # As its Deployment does: a new extender, which may do what the roles that are there now say.
        await cluster.extender.stop()
        bound = [
            each
            for kind in ("roles", "clusterroles", "rolebindings", "clusterrolebindings")
            for each in cluster.api.store.kind("rbac.authorization.k8s.io/v1", kind).items.values()
        ]
        cluster.api.rules[cluster.api.tokens[cluster.token]] = rules_of(bound, ACCOUNT)
        await cluster.start_extender()

        make_pod(cluster.api, "later", {names.GPU_PERCENT: 25})
        await eventually(lambda: cluster.node_of("later"), "a pod of after the upgrade to be bound")
        assert {pod: cluster.pod(pod) for pod in running} == before[0]
        leases = {lease.lease_id: lease for lease in await cluster.leases()}
        for lease in before[1]:
            assert leases[lease.lease_id].slices == lease.slices
        await audit(cluster)
        delete_pod(cluster.api, "g-1")
        delete_pod(cluster.api, "part")
        await cluster.settled(2)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("release", RELEASES)
async def test_every_kubernetes_takes_the_upgrade(release: str, version: str) -> None:
    """Of who has copied the whole file of values of that version; then what came later is switched on, and off."""
    values = merged(yaml.safe_load((FIRST / "values.yaml").read_text()), RELEASES[release])
    async with fake_api() as api:
        helm = Helm(api)
        await helm.upgrade(first(release))
        for more in ({}, {"console": FULL["console"], "notices": FULL["notices"], "node": FULL["node"]}, {}):
            found = documents(merged(values, more), version)
            taken(found, version)
            await helm.upgrade(found)


CHANGES: list[tuple[str, str, tuple[str, ...], Any]] = [
    ("Deployment", "aliquot-kube", ("spec", "selector", "matchLabels", "more"), "x"),
    ("DaemonSet", "aliquot-agent", ("spec", "selector", "matchLabels", "more"), "x"),
    ("StatefulSet", "aliquot-coordinator", ("spec", "serviceName"), "x"),
    ("Service", "aliquot-coordinator", ("spec", "clusterIP"), "None"),
    ("ClusterRoleBinding", "aliquot-kube", ("roleRef", "name"), "x"),
    ("PriorityClass", "aliquot-high", ("value",), 1),
    ("CustomResourceDefinition", "elasticjobs.aliquot.dev", ("spec", "scope"), "Cluster"),
    ("CustomResourceDefinition", "elasticjobs.aliquot.dev", ("spec", "versions"), []),
]


@pytest.mark.parametrize(("kind", "name", "path", "value"), CHANGES, ids=lambda value: str(value)[:40])
async def test_what_can_not_change_is_refused(kind: str, name: str, path: tuple[str, ...], value: Any) -> None:
    found = documents()
    async with fake_api() as api:
        helm = Helm(api)
        await helm.upgrade(found)
        (place,) = [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]
        for field in path[:-1]:
            place = place[field]
        place[path[-1]] = value
        with pytest.raises(KubeRefused, match=r"immutable|must appear"):
            await helm.upgrade(found)


async def test_what_is_there_already_is_not_taken_over() -> None:
    async with fake_api() as api:
        await Helm(api).upgrade(first("default"))
        with pytest.raises(KubeConflict):
            await Helm(api).upgrade(documents())
