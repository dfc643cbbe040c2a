"""What goes wrong around us: rights that are missing, servers that say later or nothing, a policy that is gone."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import msgspec
import pytest

from aliquot.kube.core import names
from aliquot.kube.extender import binding
from tests.coordinator.pool import eventually
from tests.kube.cluster import IMPATIENT, KubeCluster, audit, kube_cluster, scheduling
from tests.kube.making import delete_pod, make_pod, set_phase
from tests.kube.reconcilers import round_of

QUARTER = {names.GPU_PERCENT: 25}
WEAK = "weak"


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= 30]


@contextlib.asynccontextmanager
async def without(cluster: KubeCluster, verb: str, what: str) -> AsyncIterator[None]:
    """With an extender whose account lacks this; then it has it."""
    cluster.api.tokens[WEAK] = "system:serviceaccount:aliquot-system:aliquot-kube"
    cluster.token = WEAK
    await cluster.extender.stop()
    await cluster.start_extender()
    cluster.api.faults.forbidden.add((verb, what))
    yield
    cluster.api.faults.forbidden.clear()


async def test_without_the_right_to_bind_nothing_is_held_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    async with kube_cluster(1) as cluster:
        make_pod(cluster.api, "a", QUARTER)
        async with without(cluster, "create", "pods/binding"), scheduling(cluster) as scheduler:
            for _ in range(3):
                assert not await scheduler.cycle("a")
                assert 'cannot create resource "pods/binding"' in scheduler.refusals["default/a"]
            await cluster.settled(0)
            (said,) = errors(caplog)
            assert 'cannot create resource "pods/binding"' in said
            assert "aliquot kube doctor" in said
            cluster.api.faults.forbidden.clear()
            await eventually(lambda: scheduler.cycle("a"), "its bind")
        await audit(cluster)


async def test_without_the_right_to_write_events_pods_are_placed_and_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kube_cluster(1) as cluster:
        async with without(cluster, "create", "events"), scheduling(cluster) as scheduler:
            for name in "abc":
                make_pod(cluster.api, name, annotations={names.REQUEST: f"a little {name}"})
                assert not await scheduler.cycle(name)
            teller = cluster.extender.parts.teller
            await eventually(lambda: teller.dropped == 3, "three events that could not be written")
            make_pod(cluster.api, "good", QUARTER)
            await eventually(lambda: scheduler.cycle("good"), "its bind")
            (said,) = errors(caplog)
            assert 'cannot create resource "events"' in said
            cluster.api.faults.forbidden.clear()
            make_pod(cluster.api, "d", annotations={names.REQUEST: "a little"})
            assert not await scheduler.cycle("d")
            await eventually(lambda: "AliquotRequestInvalid" in cluster.events(), "an event")
            cluster.api.faults.forbidden.add(("create", "events"))
            make_pod(cluster.api, "e", annotations={names.REQUEST: "a little"})
            assert not await scheduler.cycle("e")
            await eventually(lambda: len(errors(caplog)) == 2, "the right that was taken away again")
        await audit(cluster)


async def test_without_the_right_to_wake_or_delete_pods_it_is_said_once_of_each(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with kube_cluster(1) as cluster:
        make_pod(cluster.api, "holds", {names.GPU: 1})
        for name in "abc":
            make_pod(cluster.api, name, QUARTER)
        async with without(cluster, "patch", "pods"), scheduling(cluster) as scheduler:
            cluster.api.faults.forbidden.add(("delete", "pods"))
            await eventually(lambda: scheduler.cycle("holds"), "its bind")
            for name in "abc":
                assert not await scheduler.cycle(name)
            (lease,) = await cluster.leases()
            await cluster.extender.parts.pool.release(lease.lease_id, reason="an administrator")
            refused = ("PATCH", "/api/v1/namespaces/default/pods/"), ("DELETE", "/api/v1/namespaces/default/pods/holds")
            for method, path in refused:
                await eventually(
                    lambda method=method, path=path: (  # type: ignore[misc]
                        sum(one == method and where.startswith(path) for one, where in cluster.api.calls) >= 2
                    ),
                    f"several tries to {method}",
                )
            said = sorted(errors(caplog))
            assert len(said) == 2, said
            assert 'cannot delete resource "pods"' in said[0]
            assert 'cannot patch resource "pods"' in said[1]
            cluster.api.faults.forbidden.clear()
            await eventually(lambda: "deletionTimestamp" in cluster.pod("holds")["metadata"], "its deletion")


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_is_too_busy_is_asked_later_and_a_pod_bound_once(status: int) -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        pod = make_pod(cluster.api, "a", QUARTER)
        node = await scheduler.place(pod)
        cluster.api.faults.later = [(status, "0")] * 3
        assert await scheduler.bind(pod, node)
        assert not cluster.api.faults.later
        await audit(cluster)


async def test_a_server_that_is_too_busy_for_long_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binding, "BIND_S", 0.3)
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        pod = make_pod(cluster.api, "a", QUARTER)
        node = await scheduler.place(pod)
        cluster.api.faults.later = [(429, "0")] * 10_000
        assert not await scheduler.bind(pod, node)
        assert len(await cluster.leases()) == 1, "whether it is bound is not known"
        cluster.api.faults.later = []
        await eventually(lambda: scheduler.bind(pod, node), "its bind")
        assert len(await cluster.leases()) == 1
        await audit(cluster)


async def test_what_happened_while_the_api_server_was_frozen_and_forgot_is_caught_up_with() -> None:
    """Five minutes are longer than its memory: watches begin anew, from lists."""
    async with kube_cluster(2) as cluster, scheduling(cluster) as scheduler:
        for name in "abc":
            make_pod(cluster.api, name, QUARTER)
            await eventually(lambda name=name: scheduler.cycle(name), "its bind")  # type: ignore[misc]
        cluster.api.faults.frozen.clear()
        cluster.api.drop_watches()
        await round_of(cluster, IMPATIENT)
        assert len(await cluster.leases()) == 3, "nothing is released on the word of one that says nothing"
        delete_pod(cluster.api, "a")
        set_phase(cluster.api, "b", "Succeeded")
        make_pod(cluster.api, "new", QUARTER)
        cluster.api.store.compact()
        cluster.api.faults.frozen.set()
        await cluster.settled(1)
        await eventually(lambda: scheduler.cycle("new"), "a bind afterwards")
        assert cluster.extender.parts.pods.informer.relists
        await audit(cluster)


async def test_without_the_policy_a_forged_assignment_gives_nothing_and_ends_nobodys_lease() -> None:
    """Somebody has deleted it: what tenants write is overwritten by a Binding, or believed by nobody."""
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "victim", QUARTER)
        assert await scheduler.cycle("victim")
        (lease,) = await cluster.leases()
        stolen = {
            name: cluster.pod("victim")["metadata"]["annotations"][name] for name in (names.LEASE_ID, names.ASSIGNMENT)
        }
        make_pod(cluster.api, "asks", QUARTER, annotations=dict(stolen))
        await eventually(lambda: scheduler.cycle("asks"), "its bind")
        own = cluster.pod("asks")["metadata"]["annotations"][names.LEASE_ID]
        assert own != lease.lease_id
        assert cluster.assignment("asks")["lease"] == own
        await audit(cluster)
        make_pod(cluster.api, "takes", annotations=dict(stolen), spec={"nodeName": "node-0"})
        pods = cluster.extender.parts.pods
        uid = cluster.pod("takes")["metadata"]["uid"]
        await eventually(lambda: pods.by_uid(uid), "the pod to be known")
        delete_pod(cluster.api, "takes")
        await eventually(lambda: uid in pods.deleted, "its end to be known")
        await round_of(cluster, IMPATIENT)
        live = {each.lease_id for each in await cluster.leases()}
        assert live == {lease.lease_id, own}
        assert cluster.pod("victim") is not None
        said = msgspec.json.decode(cluster.pod("victim")["metadata"]["annotations"][names.ASSIGNMENT])
        assert said["lease"] == lease.lease_id
        await audit(cluster)
