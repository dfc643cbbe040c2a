"""custom.metrics.k8s.io and external.metrics.k8s.io through the API server: what pods use of their own, who may ask."""

from __future__ import annotations

import ssl
from pathlib import Path

import aiohttp
import msgspec
import pytest

from aliquot.common.duration import DurationMs
from aliquot.kube.api.errors import KubeError, KubeForbidden, KubeNotFound, KubeRefused, KubeUnavailable
from aliquot.kube.core import names
from aliquot.kube.core.scaling.metrics_documents import CUSTOM, EXTERNAL
from aliquot.kube.core.scaling.signals import Signal
from aliquot.kube.core.scaling.usage import GPU_USE, MEMORY_USE
from tests.certificates import Authority
from tests.coordinator.pool import allocation, eventually
from tests.kube.making import make_namespace, make_pod
from tests.kube.scaling.place import scaled

GIB = 1 << 30


async def test_pods_on_a_shared_card_are_told_apart(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path, cards=1) as place:
        await place.pod("a", 25, owner="web")
        await place.pod("b", 50, owner="train")
        await place.uses(a=10, b=50)
        assert await place.metrics(GPU_USE) == {"a": "400m", "b": "1"}
        assert await place.metrics(GPU_USE, version="v1beta1", labelSelector="app=web") == {"a": "400m"}
        # The neighbour leaves the card alone, and then takes what it can: nothing of it is the other's.
        for percent in (0, 90):
            await place.uses(a=10, b=percent)
            assert (await place.metrics(GPU_USE))["a"] == "400m"
        assert await place.metrics(GPU_USE, labelSelector="app in (train),!canary") == {"b": "1"}
        assert await place.metrics(MEMORY_USE, labelSelector="app=web") == {"a": "50m"}
        assert await place.metrics("container_nvidia_gpu_usage", labelSelector="app=web") == {"a": "400m"}
        assert await place.metrics("container_amd_gpu_usage") == {}
        one = await place.get(f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/b/{GPU_USE}")
        (item,) = one["items"]
        assert item["describedObject"] == {"kind": "Pod", "namespace": "default", "name": "b", "apiVersion": "/v1"}
        assert item["metric"] == {"name": GPU_USE}
        assert {"timestamp", "windowSeconds", "value"} <= item.keys()


async def test_what_is_not_known_is_left_out_and_never_zero(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place:
        await place.pod("seen")
        await place.pod("unseen")
        make_pod(place.cluster.api, "none-of-ours")
        await place.uses(seen=25)
        assert await place.metrics(GPU_USE) == {"seen": "1"}
        with pytest.raises(KubeNotFound, match="nothing is known of container_gpu_usage of pod default/unseen"):
            await place.get(f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/unseen/{GPU_USE}")


async def test_nobody_gets_anothers_figures_by_an_annotation(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place:
        make_namespace(place.cluster.api, "nosy")
        await place.pod("a")
        await place.uses(a=20)
        stolen = place.cluster.pod("a")["metadata"]["annotations"]
        make_pod(place.cluster.api, "thief", namespace="nosy", annotations=dict(stolen))
        await eventually(lambda: list(place.scaling.follower.pods.of("nosy")), "the pod seen")
        assert await place.metrics(GPU_USE, "nosy") == {}


async def test_queues_are_told_to_their_own(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path, cards=1) as place:
        make_namespace(place.cluster.api, "research")
        await place.cluster.pool.leases.Allocate(allocation("1", tenant="default", wait_until=2))
        for gpu, tenant, queue in (("1", "research", "night"), ("0.5", "research/vision", "day"), ("1", "default", "")):
            await place.cluster.pool.leases.Allocate(allocation(gpu, tenant=tenant, queue=queue, wait_until=1))
        make_pod(place.cluster.api, "waits", {names.GPU_PERCENT: 50}, namespace="research")
        make_pod(place.cluster.api, "never", annotations={names.REQUEST: "0.5(("}, namespace="research")

        async def seen() -> bool:
            await place.scaling.follower.look()
            return len(place.scaling.follower.picture().waiting) == 4

        await eventually(seen, "what waits")

        async def told(signal: Signal, namespace: str = "research", **params: str) -> str:
            path = f"/apis/{EXTERNAL}/v1beta1/namespaces/{namespace}/{signal}"
            (item,) = (await place.get(path, **params))["items"]
            assert item["metricName"] == signal
            return str(item["value"])

        assert await told(Signal.QUEUE_DEPTH) == "3"
        assert await told(Signal.MISSING_SHARE) == "2"
        assert await told(Signal.QUEUE_DEPTH, "default") == "1"
        assert await told(Signal.QUEUE_DEPTH, labelSelector="queue=night") == "1"
        assert await told(Signal.QUEUE_DEPTH, labelSelector="queue=none-of-that-name") == "0"
        assert await told(Signal.QUEUE_DEPTH, labelSelector="tenant=research/vision,queue in (day, night)") == "1"
        assert await told(Signal.OLDEST_WAIT) != "0"
        with pytest.raises(KubeRefused, match=r"there is no label colour.*labels are tenant, queue, pool, model"):
            await told(Signal.QUEUE_DEPTH, labelSelector="colour=red")
        with pytest.raises(KubeRefused, match="is no selector"):
            await told(Signal.QUEUE_DEPTH, labelSelector="queue=(")
        with pytest.raises(KubeNotFound, match="this pool offers no forecast"):
            await told(Signal.FORECAST)
        with pytest.raises(KubeNotFound, match=r"there is no metric aliquot_queue_dept; there are aliquot_queue_depth"):
            await place.get(f"/apis/{EXTERNAL}/v1beta1/namespaces/research/aliquot_queue_dept")
        with pytest.raises(KubeNotFound, match="there is no metric pods/container_gpu_use"):
            await place.get(f"/apis/{CUSTOM}/v1beta2/namespaces/research/pods/*/container_gpu_use")


async def test_discovery_says_what_there_is(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place:
        for version in ("v1beta1", "v1beta2"):
            found = await place.get(f"/apis/{CUSTOM}/{version}")
            assert found["groupVersion"] == f"{CUSTOM}/{version}"
            assert f"pods/{GPU_USE}" in {one["name"] for one in found["resources"]}
        external = await place.get(f"/apis/{EXTERNAL}/v1beta1")
        assert {one["name"] for one in external["resources"]} == set(Signal)
        assert all(one["namespaced"] and one["verbs"] == ["get"] for one in external["resources"])
        # Directly, as the API server's aggregator asks for what there is of groups and of OpenAPI.
        proxy = place.cluster.api.aggregation
        assert proxy is not None
        spec = place.cluster.api.store.kind("apiregistration.k8s.io/v1", "apiservices").items["", f"v1beta1.{EXTERNAL}"]
        for path, key in (("/apis", "groups"), (f"/apis/{CUSTOM}", "versions"), ("/openapi/v2", "paths")):
            # It has no group of its own.
            status, body = await proxy._call(spec["spec"], path, {}, "system:aggregator", [])
            assert status == 200, body
            assert msgspec.json.decode(body)[key]


async def test_who_calls_is_known_and_asked_for(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place:
        api = place.cluster.api
        await place.pod("a")
        await place.uses(a=10)
        api.tokens["hpa"] = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
        api.tokens["guest"] = "guest"
        api.refused.add(("guest", GPU_USE))
        path = f"/apis/{CUSTOM}/v1beta2/namespaces/default/pods/*/{GPU_USE}"
        assert (await place.get(path, "hpa"))["items"]
        with pytest.raises(KubeForbidden, match=f'User "guest" may not get {GPU_USE}'):
            await place.get(path, "guest")
        # Past the API server: by a token that it vouches for, by nobody, by who is not the front proxy.
        base = f"https://localhost:{place.scaling.metrics_port}"
        api.reviewable["direct"] = ("somebody", ["https://kubernetes"])
        api.reviewable["refused"] = ("guest", ["https://kubernetes"])
        other = authority.certify("not-the-proxy")
        context = ssl.create_default_context(cafile=str(authority.ca))
        posing = ssl.create_default_context(cafile=str(authority.ca))
        posing.load_cert_chain(*other)
        names_ = {"X-Remote-User": "system:admin", "X-Remote-Group": "system:masters"}
        async with aiohttp.ClientSession() as session:
            for headers, shown, status in (
                ({"Authorization": "Bearer direct"}, context, 200),
                ({"Authorization": "Bearer refused"}, context, 403),
                ({"Authorization": "Bearer unknown"}, context, 401),
                (names_, context, 401),
                (names_, posing, 401),
            ):
                async with session.get(base + path, headers=headers, ssl=shown) as response:
                    assert response.status == status, (headers, await response.text())
            async with session.get(f"{base}/readyz", ssl=context) as response:
                assert response.status == 200
            strangers = Authority.create(tmp_path / "strangers")
            foreign = ssl.create_default_context(cafile=str(authority.ca))
            foreign.load_cert_chain(*strangers.certify("front-proxy-client"))
            with pytest.raises((aiohttp.ClientError, OSError)):
                await session.get(base + path, headers=names_, ssl=foreign)


async def test_during_a_failover_the_last_answers_stand(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path, scaling_kept=DurationMs(60_000)) as place:
        await place.pod("a")
        await place.uses(a=10)
        await place.card.disconnect()
        place.cluster.pool.coordinator.stop()

        async def noticed() -> bool:
            return bool(place.scaling.follower.problem)

        await eventually(noticed, "the outage")
        assert await place.metrics(GPU_USE) == {"a": "400m"}
        path = f"/apis/{EXTERNAL}/v1beta1/namespaces/default/{Signal.QUEUE_DEPTH}"
        assert (await place.get(path))["items"][0]["value"] == "0"


async def test_what_is_too_old_is_not_told(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place:
        await place.pod("a")
        await place.uses(a=10)
        follower = place.scaling.follower
        was = follower.now_ms
        follower.now_ms = lambda: was() + 91_000
        assert await place.metrics(GPU_USE) == {}
        follower.now_ms = lambda: was() + 601_000
        follower.look = _never  # type: ignore[method-assign]
        with pytest.raises(KubeUnavailable, match="nothing has been known for"):
            await place.metrics(GPU_USE)
        assert issubclass(KubeUnavailable, KubeError)


async def _never() -> None:
    return None
