"""ComputePools show what the pool has; and the definitions of our kinds have the form that the API server wants."""

from __future__ import annotations

import asyncio
from typing import Any

import yaml

from aliquot.kube.controllers.compute_pools import ComputePoolController
from aliquot.kube.core import names
from tests.coordinator.pool import eventually
from tests.kube.cluster import kube_cluster, scheduling
from tests.kube.making import make_pod
from tests.kube.test_elastic_jobs import CRDS, VERSION


async def test_figures_follow_the_pool() -> None:
    async with kube_cluster(2, devices=2) as cluster, scheduling(cluster) as scheduler:
        kind = cluster.api.store.serve(VERSION, "computepools", "ComputePool", namespaced=False)
        listed = [one.pool async for one in cluster.extender.parts.pool.nodes()]
        cluster.api.store.create(kind, "", {"metadata": {"name": "lab"}, "spec": {"pool": listed[0]}})
        cluster.api.store.create(kind, "", {"metadata": {"name": "none"}, "spec": {}})
        parts = cluster.extender.parts
        controller = ComputePoolController(parts.client, parts.book, every_s=0.05)
        running = asyncio.create_task(controller.run())

        def status(name: str) -> dict[str, Any]:
            return dict(kind.items["", name].get("status") or {})

        try:
            await eventually(lambda: status("lab").get("totalMilli") == 4000, "its figures")
            since = status("lab")["conditions"][0]["lastTransitionTime"]
            make_pod(cluster.api, "a", {names.GPU_PERCENT: 25})
            assert await scheduler.cycle("a")
            await eventually(lambda: status("lab").get("allocatedMilli") == 250, "the lease")
            assert status("lab")["availableMilli"] == 3750
            assert status("lab")["conditions"][0]["lastTransitionTime"] == since
            assert status("none")["phase"] == "NotReady"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def test_every_field_is_described_and_columns_exist() -> None:
    for document in yaml.safe_load_all(CRDS.read_text()):
        names_ = document["spec"]["names"]
        assert document["metadata"]["name"] == f"{names_['plural']}.{document['spec']['group']}"
        for version in document["spec"]["versions"]:
            schema = version["schema"]["openAPIV3Schema"]
            for column in version["additionalPrinterColumns"]:
                path = column["jsonPath"].removeprefix(".").split(".")
                if path[0] == "metadata":
                    continue
                found = schema
                for part in path:
                    found = found["properties"][part]
                assert found["type"] == column["type"]
            for field in schema["properties"]["spec"]["properties"].values():
                assert field.get("description") or field.get("properties")
