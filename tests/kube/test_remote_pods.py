"""Pods with GPUs of other machines: the ticket comes as a Secret, follows the lease, and ends with the pod."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from aliquot.client.ticket import Ticket
from aliquot.kube.controllers.remote_pods import RemotePodController
from aliquot.kube.core import remote_pods
from tests.coordinator.pool import agents, eventually
from tests.coordinator.test_serving import Serving
from tests.coordinator.test_sessions import ready
from tests.kube.cluster import KubeCluster, kube_cluster
from tests.kube.making import delete_pod, make_pod, set_phase


@contextlib.asynccontextmanager
async def controller(cluster: KubeCluster) -> AsyncIterator[RemotePodController]:
    parts = cluster.extender.parts
    made = RemotePodController(parts)
    running = asyncio.create_task(made.loop.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def make(cluster: KubeCluster, name: str, asked: str = "0.25,10Gi", secret: str = "ticket-a") -> Any:
    return make_pod(
        cluster.api,
        name,
        spec={"schedulerName": "default-scheduler"},
        annotations={remote_pods.REMOTE: asked},
        labels={remote_pods.SECRET: secret},
    )


def secret(cluster: KubeCluster, name: str = "ticket-a") -> Any:
    return cluster.api.store.kind("v1", "secrets").items.get(("default", name))


def ticket(cluster: KubeCluster, name: str = "ticket-a") -> Ticket:
    return msgspec.json.decode(base64.b64decode(secret(cluster, name)["data"][remote_pods.FILE]), type=Ticket)


async def test_a_pod_gets_the_ticket_of_a_lease_elsewhere_and_both_end_together() -> None:
    async with kube_cluster(0) as cluster, agents(Serving(cluster.pool.address, "far")), controller(cluster):
        await ready(cluster.pool, "far")
        pod = make(cluster, "a")
        await eventually(lambda: secret(cluster) is not None, "its Secret")
        said = ticket(cluster)
        assert [part.endpoint for part in said.parts] == [Serving.endpoint]
        assert said.credential
        assert secret(cluster)["type"] == remote_pods.SECRET_TYPE
        assert secret(cluster)["metadata"]["ownerReferences"][0]["uid"] == pod["metadata"]["uid"]
        (lease,) = await cluster.leases()
        assert (lease.lease_id, lease.request.name, lease.request.tenant) == (said.lease_id, "default/a", "default")
        assert said.credential not in msgspec.json.encode(cluster.pod("a")).decode()
        set_phase(cluster.api, "a", "Succeeded")
        await cluster.settled(0)


async def test_a_lease_that_is_taken_back_is_told() -> None:
    async with kube_cluster(0) as cluster, agents(Serving(cluster.pool.address, "far")), controller(cluster):
        await ready(cluster.pool, "far")
        make(cluster, "a")
        await eventually(lambda: secret(cluster) is not None, "its Secret")
        await cluster.pool.release(ticket(cluster).lease_id)
        await eventually(lambda: bool(ticket(cluster).ending), "the ending")


async def test_pods_that_went_while_nobody_looked_hold_nothing() -> None:
    async with kube_cluster(0) as cluster, agents(Serving(cluster.pool.address, "far")):
        await ready(cluster.pool, "far")
        async with controller(cluster):
            make(cluster, "a")
            make(cluster, "b", secret="ticket-b")
            await eventually(lambda: secret(cluster) and secret(cluster, "ticket-b"), "their Secrets")
            first = ticket(cluster).lease_id
        delete_pod(cluster.api, "b")
        async with controller(cluster):
            await cluster.settled(1)
            assert ticket(cluster).lease_id == first, "who is asked again gives the same lease"
            delete_pod(cluster.api, "a")
            await cluster.settled(0)


async def test_nobody_elses_secret_is_written_over() -> None:
    async with kube_cluster(0) as cluster, agents(Serving(cluster.pool.address, "far")), controller(cluster):
        await ready(cluster.pool, "far")
        kind = cluster.api.store.kind("v1", "secrets")
        mine = {"metadata": {"name": "ticket-a"}, "type": "Opaque", "data": {"password": "eA=="}}
        cluster.api.store.create(kind, "default", mine)
        make(cluster, "a")
        await eventually(lambda: "AliquotSecretRefused" in cluster.events(), "an event")
        assert secret(cluster)["data"] == {"password": "eA=="}
        assert "ownerReferences" not in secret(cluster)["metadata"]


async def test_what_can_not_be_read_is_said() -> None:
    async with kube_cluster(0) as cluster, controller(cluster):
        make(cluster, "a", "a little")
        await eventually(lambda: "AliquotRequestInvalid" in cluster.events(), "an event")
        assert not await cluster.leases()
