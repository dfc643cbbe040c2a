"""KEDA's external scaler, asked by a client made of KEDA's published messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from aliquot.client import AsyncPool
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.coordinator.core.books.demand import HOUR_MS, WHOLE
from aliquot.coordinator.core.commands import NoteDemand
from aliquot.kube.core.scaling.metrics_documents import CUSTOM
from aliquot.kube.core.scaling.signals import Signal
from aliquot.kube.core.scaling.triggers import parse_trigger
from aliquot.kube.core.scaling.usage import GPU_USE
from aliquot.kube.scaling.serving import Scaling
from aliquot.kube.wiring import now_ms
from tests.certificates import Authority
from tests.coordinator.pool import allocation, eventually
from tests.kube.making import make_namespace
from tests.kube.scaling.keda import Keda
from tests.kube.scaling.place import Place, certified, scaled, serving, settings_for


@contextlib.asynccontextmanager
async def channel(place: Place, *, name: str = "", authority: Authority | None = None) -> AsyncIterator[Any]:
    certificate = key = None
    if name:
        files = (authority or place.authority).certify(name)
        certificate, key = (path.read_bytes() for path in files)
    credentials = grpc.ssl_channel_credentials(place.authority.ca.read_bytes(), key, certificate)
    async with grpc.aio.secure_channel(f"localhost:{place.scaling.keda_port}", credentials) as found:
        yield found


async def refused(keda: Keda) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await keda.spec()
    return caught.value


async def test_what_waits_is_measured(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path, cards=1) as place, channel(place) as to:
        make_namespace(place.cluster.api, "research")
        held = (await place.cluster.pool.leases.Allocate(allocation("1", tenant="x"))).lease
        depth = Keda(to, "research", metric=Signal.QUEUE_DEPTH, target="2", queue="night")
        pushed = depth.stream()
        assert not await anext(pushed)
        assert await depth.spec() == (Signal.QUEUE_DEPTH, 2.0)
        assert (await depth.value(), await depth.active()) == (0.0, False)
        waiting = [held.lease_id]
        for gpu in ("0.5", "0.75"):
            fields = {"tenant": "research", "queue": "night", "wait_until": 1}
            waiting.append((await place.cluster.pool.leases.Allocate(allocation(gpu, **fields))).lease.lease_id)
        assert await anext(pushed)
        await eventually(lambda: _is(depth, 2.0), "both waiting")
        assert await depth.active()
        missing = Keda(to, "research", metric=Signal.MISSING_SHARE, target="0.5", activation="2")
        assert await missing.spec() == (Signal.MISSING_SHARE, 0.5)
        assert (await missing.value(), await missing.active()) == (1.25, False)
        oldest = Keda(to, "research", metric=Signal.OLDEST_WAIT, target="90s")
        assert await oldest.spec() == (Signal.OLDEST_WAIT, 90.0)
        assert await oldest.value() > 0
        elsewhere = Keda(to, "default", metric=Signal.QUEUE_DEPTH, target="1")
        assert await elsewhere.value() == 0.0
        everything = Keda(to, "kube-system", metric=Signal.QUEUE_DEPTH, target="1", scope="pool")
        assert await everything.value() == 2.0
        for lease_id in reversed(waiting):
            await place.cluster.pool.release(lease_id)
        assert not await anext(pushed)
        await pushed.aclose()


async def _is(keda: Keda, value: float) -> bool:
    return await keda.value() == value


async def test_an_owners_pods_are_measured_by_their_own_share(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place, channel(place) as to:
        for name in ("a", "b"):
            await place.pod(name, owner="web")
        await place.pod("neighbour", 50)
        use = Keda(to, metric=GPU_USE, target="60%", owner="Deployment/web")
        with pytest.raises(grpc.aio.AioRpcError, match="nothing is known of what the 2 pods of Deployment/web use"):
            await use.value()
        await place.uses(a=20, neighbour=50)
        # b is not measured yet: it counts as on target, so that it changes nothing.
        assert await use.spec() == (GPU_USE, 0.6)
        assert await use.value() == pytest.approx(0.8 + 0.6)
        await place.uses(a=20, b=5, neighbour=90)
        assert await use.value() == pytest.approx(0.8 + 0.2)
        none = Keda(to, metric=GPU_USE, target="60%", owner="Deployment/none")
        assert (await none.value(), await none.active()) == (0.0, False)


async def test_forecasts_are_told_where_the_pool_has_them(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path, cards=1) as place, channel(place) as to:
        make_namespace(place.cluster.api, "research")
        asked = Keda(to, "research", metric=Signal.FORECAST, target="2", hours="6")
        assert await asked.spec() == (Signal.FORECAST, 2.0)
        with pytest.raises(grpc.aio.AioRpcError, match="this pool offers no forecast") as caught:
            await asked.value()
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        leading = place.cluster.pool.leading
        last = place.scaling.follower.now_ms() // HOUR_MS - 1
        for hour in range(last - 8 * 24 + 1, last + 1):
            rows = ((WHOLE, 9_000), ("tenant/research", 3_000), ("tenant/research/vision", 1_000), ("tenant/x", 5_000))
            await leading.writer.submit(NoteDemand(hour, 1000, rows))
        assert leading.forecasting is not None
        assert await leading.forecasting.forecaster(leading.writer.submit).forecast_once()
        place.scaling.follower._forecast_due_s = 0.0  # it was asked for within this minute
        await eventually(lambda: place.scaling.follower.picture().forecasts, "forecasts")
        assert await asked.value() == pytest.approx(4.0, abs=0.5)
        everybody = Keda(to, "kube-system", metric=Signal.FORECAST, target="2", scope="pool")
        assert await everybody.value() == pytest.approx(9.0, abs=0.5)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"target": "1"}, "metadata.metric: '' is none"),
        ({"metric": "queue", "target": "1"}, "one of aliquot_queue_depth"),
        ({"metric": "aliquot_queue_depth"}, r"metadata.target.*such as 4"),
        ({"metric": "aliquot_queue_depth", "target": "0"}, "more than 0"),
        ({"metric": "aliquot_queue_depth", "target": "1", "qeue": "night"}, "metadata.qeue is nothing that is known"),
        ({"metric": "aliquot_queue_depth", "target": "1", "owner": "Deployment/x"}, "owner says nothing"),
        ({"metric": "aliquot_oldest_wait_seconds", "target": "90 parsecs"}, "such as 90s"),
        ({"metric": "aliquot_queue_depth", "target": "1", "scope": "everything"}, "metadata.scope"),
        ({"metric": GPU_USE, "target": "60%"}, "metadata.owner says whose pods"),
        ({"metric": GPU_USE, "target": "60%", "owner": "/x"}, "such as Deployment/web"),
        ({"metric": GPU_USE, "target": "60%", "owner": "Deployment/x", "queue": "q"}, "queue says nothing"),
    ],
)
def test_what_is_misspelt_is_refused(metadata: dict[str, str], says: str) -> None:
    with pytest.raises(AliquotError) as caught:
        parse_trigger(metadata)
    assert re.search(says, caught.value.explain(), re.DOTALL), caught.value.explain()


async def test_who_may_ask_what(authority: Authority, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"scaling_client_ca": authority.ca, "scaling_clients": ("keda-operator",)}
    async with scaled(authority, tmp_path, **fields) as place:
        make_namespace(place.cluster.api, "research")
        wanted = {"metric": str(Signal.QUEUE_DEPTH), "target": "1"}
        async with channel(place, name="keda-operator") as to:
            assert await Keda(to, **wanted).value() == 0.0
            nosy = await refused(Keda(to, "research", scope="pool", **wanted))
            assert nosy.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "may not ask for everybody's figures" in str(nosy.details())
            typo = await refused(Keda(to, metric="queue", target="1"))
            assert typo.code() is grpc.StatusCode.INVALID_ARGUMENT
            other = Keda(to, **wanted)
            with pytest.raises(grpc.aio.AioRpcError, match="asks for aliquot_queue_depth, not 's0-x'"):
                await other.value("s0-x")
        async with channel(place, name="somebody") as to:
            posing = await refused(Keda(to, **wanted))
            assert posing.code() is grpc.StatusCode.PERMISSION_DENIED
        strangers = Authority.create(tmp_path / "strangers")
        for name in ("", "keda-operator"):
            async with channel(place, name=name, authority=strangers) as to:
                assert (await refused(Keda(to, **wanted))).code() is grpc.StatusCode.UNAVAILABLE


async def test_answers_stand_while_the_coordinator_is_away(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path, cards=1) as place, channel(place) as to:
        await place.cluster.pool.leases.Allocate(allocation("1", tenant="x"))
        await place.cluster.pool.leases.Allocate(allocation("1", tenant="default", wait_until=1))
        depth = Keda(to, metric=Signal.QUEUE_DEPTH, target="1")
        await eventually(lambda: _is(depth, 1.0), "it waiting")
        await place.card.disconnect()
        place.cluster.pool.coordinator.stop()
        await eventually(lambda: place.scaling.follower.problem, "the outage")
        for _ in range(3):
            assert await depth.spec() == (Signal.QUEUE_DEPTH, 1.0)
            assert (await depth.value(), await depth.active()) == (1.0, True)
        # Who begins meanwhile knows nothing yet: it says so, and what it is to be asked for all the same.
        settings = settings_for(certified(authority, tmp_path / "second"), scaling_apis=())
        begun = Scaling(place.client, AsyncPool(place.cluster.pool.address), "test-cluster", settings, "x", now_ms)
        await begun.start()
        place.scaling, first = begun, place.scaling
        async with channel(place) as other:
            asked = Keda(other, metric=Signal.QUEUE_DEPTH, target="1")
            assert await asked.spec() == (Signal.QUEUE_DEPTH, 1.0)
            for question in (asked.value(), asked.active()):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await question
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        await begun.stop()
        place.scaling = first


async def test_nobody_is_served_who_can_not_be_known(authority: Authority, tmp_path: Path) -> None:
    folder = certified(authority, tmp_path / "tls")
    async with scaled(authority, tmp_path) as place:
        open_to_all = settings_for(folder, scaling_apis=(), scaling_host="0.0.0.0")
        with pytest.raises(ConfigError, match="could say that it is any namespace"):
            async with serving(place.cluster, place.client, open_to_all):
                pass
        strange = settings_for(folder, scaling_apis=("metrics.k8s.io",))
        with pytest.raises(ConfigError, match=f"some of {CUSTOM}|is none"):
            async with serving(place.cluster, place.client, strange):
                pass
