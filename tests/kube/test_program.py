"""Our processes as they are started in a cluster: they serve, lead one at a time, and end in order."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aliquot.kube.core import names
from tests.coordinator.pool import eventually
from tests.identity import ADMIN_TOKEN
from tests.kube.cluster import KubeCluster, audit, kube_cluster
from tests.kube.making import delete_pod, make_pod
from tests.kube.scheduler import StockScheduler
from tests.kube.test_command import kubeconfig


@contextlib.asynccontextmanager
async def program(cluster: KubeCluster, folder: Path, *arguments: str) -> AsyncIterator[dict[str, Any]]:
    """One that has said that it is ready; ended by a signal, in order."""
    config = kubeconfig(folder / "config", cluster.api.url)
    environment = {**os.environ, "ALIQUOT_COORDINATOR": cluster.pool.address, "ALIQUOT_TOKEN": ADMIN_TOKEN}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aliquot.kube.program", *arguments, "--kubeconfig", str(config)),
        *("--cluster", "test-cluster", "--log-level", "error"),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    line = await process.stdout.readline()
    assert line.startswith(b"ready "), line
    try:
        yield json.loads(line.removeprefix(b"ready "))
    finally:
        process.terminate()
        assert await process.wait() == 0


async def test_an_extender_serves_as_a_process(tmp_path: Path) -> None:
    async with kube_cluster(1) as cluster:
        await cluster.extender.stop()
        async with (
            program(cluster, tmp_path, "extender", "--listen-port", "0") as ready,
            StockScheduler(cluster.api, f"http://{ready['address']}") as scheduler,
        ):
            make_pod(cluster.api, "a", {names.GPU_PERCENT: 25})
            await eventually(lambda: scheduler.cycle("a"), "its bind")
            await audit(cluster)
            delete_pod(cluster.api, "a")
            await cluster.settled(0)


async def test_controllers_lead_and_hand_over(tmp_path: Path) -> None:
    async with kube_cluster(1) as cluster:
        await cluster.extender.stop()
        kind = cluster.api.store.kind("coordination.k8s.io/v1", "leases")
        async with program(cluster, tmp_path, "controllers") as ready:
            assert ready == {"leading": True, "epoch": 1}
        (lease,) = kind.items.values()
        assert lease["spec"]["holderIdentity"] == ""
        async with program(cluster, tmp_path, "controllers") as ready:
            assert ready["epoch"] == 2
