"""`aliquot autoscale`, and that what it writes scales by a lease's own use on a shared card."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.main import main
from aliquot.common.errors import AliquotError
from aliquot.kube.core.scaling.grammar import DEFAULT_TARGETS, Goal, parse_goals, parse_scaled
from aliquot.kube.core.scaling.signals import Signal
from aliquot.kube.core.scaling.triggers import parse_trigger
from aliquot.kube.core.scaling.usage import GPU_USE, MEMORY_USE
from tests.certificates import Authority
from tests.coordinator.pool import allocation, eventually
from tests.kube.fake_api.server import fake_api
from tests.kube.scaling.autoscaler import Controllers, make_deployment
from tests.kube.scaling.place import NAMESPACE, scaled
from tests.kube.test_command import kubeconfig


class Autoscale:
    """The command, in this process."""

    def __init__(self, folder: Path, written: pytest.CaptureFixture[str]) -> None:
        self._folder = folder
        self._written = written

    async def __call__(self, url: str, *arguments: str, code: int = 0) -> str:
        """What it writes to stdout; of an error what it writes to stderr."""
        config = kubeconfig(self._folder / "config", url)
        self._written.readouterr()
        words = ["autoscale", *arguments, "--kubeconfig", str(config), "-n", "default"]
        found = await asyncio.to_thread(main, words)
        out, err = self._written.readouterr()
        assert found == code, (out, err)
        return out if not code or out else err


@pytest.fixture
def autoscale(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Autoscale:
    monkeypatch.setenv("COLUMNS", "200")
    return Autoscale(tmp_path, capsys)


async def test_replicas_follow_a_leases_own_use_whatever_its_neighbour_does(
    authority: Authority, tmp_path: Path, autoscale: Autoscale
) -> None:
    async with scaled(authority, tmp_path, cards=2) as place:
        url = place.cluster.api.url
        make_deployment(place, "web", 2, 20)
        controllers = Controllers(place)
        first = await controllers.pods("web")
        await place.pod("neighbour", 40)
        said = await autoscale(url, "create", "deploy/web", "--max", "4", "gpu:60%")
        assert "default/web created: 1 to 4 of Deployment/web" in said
        # On target: nothing changes, though the neighbour takes all that is left of the card.
        for load in (0, 40, 90):
            await place.uses(**dict.fromkeys(first, 12), neighbour=load)
            await controllers.once()
            assert controllers.replicas("web") == 2
        # Their own load rises: more of them, up to the most.
        await place.uses(**dict.fromkeys(first, 20), neighbour=0)
        await controllers.once()
        assert controllers.replicas("web") == 4
        pods = await controllers.pods("web")
        await place.uses(**dict.fromkeys(pods, 20), neighbour=0)
        await controllers.once()
        assert controllers.replicas("web") == 4
        said = await autoscale(url, "status", "deploy/web", code=1)
        assert "1 to 4 replicas, 4 now, 4 wanted" in said
        assert "container_gpu_usage 1000m/600m" in said
        assert "it has its most, 4, and would like more" in said
        # It falls, while the neighbour is at its loudest: fewer, down to the fewest.
        await place.uses(**dict.fromkeys(pods, 2), neighbour=90)
        await controllers.once()
        assert controllers.replicas("web") == 1
        (last,) = await controllers.pods("web")
        # Of one of which nothing is known yet nothing is guessed.
        await place.uses(**{last: 14}, neighbour=90)
        deployments = place.cluster.api.store.kind("apps/v1", "deployments")
        deployments.items["default", "web"]["spec"]["replicas"] = 2
        await controllers.pods("web")
        await controllers.once()
        assert controllers.replicas("web") == 2


async def test_replicas_follow_what_waits(authority: Authority, tmp_path: Path, autoscale: Autoscale) -> None:
    async with scaled(authority, tmp_path, cards=1) as place:
        url = place.cluster.api.url
        make_deployment(place, "drain", 1, 20)
        controllers = Controllers(place)
        await controllers.pods("drain")
        await autoscale(url, "create", "deploy/drain", "queue:2", "--max", "4", "--queue", "night")
        for _ in range(5):
            fields = {"tenant": "default", "queue": "night", "wait_until": 1}
            await place.cluster.pool.leases.Allocate(allocation("1", **fields))
        await place.cluster.pool.leases.Allocate(allocation("1", tenant="default", queue="day", wait_until=1))

        async def known() -> bool:
            await place.scaling.follower.look()
            return len(place.scaling.follower.picture().waiting) == 6

        await eventually(known, "what waits")
        await controllers.once()
        assert controllers.replicas("drain") == 3


async def test_two_that_scale_the_same_are_refused_with_both_names(autoscale: Autoscale) -> None:
    async with fake_api() as api:
        scaled_objects = api.store.serve("keda.sh/v1alpha1", "scaledobjects", "ScaledObject")
        hpas = api.store.kind("autoscaling/v2", "horizontalpodautoscalers")
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        others = {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": reference, "maxReplicas": 3}}
        api.store.create(hpas, "default", others)
        said = await autoscale(api.url, "create", "deploy/web", "--max", "4", code=1)
        assert "HorizontalPodAutoscaler default/theirs scales Deployment/web already" in said
        assert "HorizontalPodAutoscaler default/web would fight with it" in said
        said = await autoscale(api.url, "delete", "deploy/web", code=1)
        assert "default/theirs scales Deployment/web, and is not ours" in said
        said = await autoscale(api.url, "create", "deploy/x", "--max", "4", "--name", "theirs", code=1)
        assert "HorizontalPodAutoscaler default/theirs is there, and not ours" in said
        api.store.remove(hpas, ("default", "theirs"))

        await autoscale(api.url, "create", "deploy/web", "--max", "4", "queue:1", "--keda")
        (item,) = scaled_objects.items.values()
        parse_trigger(item["spec"]["triggers"][0]["metadata"])
        # KEDA makes an HPA of it, which is no second one.
        made = {"name": "keda-hpa-web", "ownerReferences": [{"kind": "ScaledObject", "name": "web"}]}
        api.store.create(hpas, "default", {"metadata": made, "spec": {"scaleTargetRef": reference, "maxReplicas": 4}})
        said = await autoscale(api.url, "create", "deploy/web", "--max", "9", "queue:1", "--keda")
        assert "ScaledObject default/web changed: 1 to 9" in said
        assert (await autoscale(api.url, "create", "deploy/web", "--max", "9", "queue:1", "--keda")).count("unchanged")
        said = await autoscale(api.url, "create", "deploy/web", "--max", "4", code=1)
        assert "ScaledObject default/web scales Deployment/web already" in said
        shown = json.loads(await autoscale(api.url, "ls", "--json"))
        assert [(one["autoscaler"]["name"], one["most"]) for one in shown] == [("web", 9)]
        said = await autoscale(api.url, "delete", "deploy/web")
        assert "ScaledObject default/web deleted" in said
        assert not scaled_objects.items


async def test_what_others_set_stays_when_ours_is_changed_in_place(autoscale: Autoscale) -> None:
    async with fake_api() as api:
        hpas = api.store.kind("autoscaling/v2", "horizontalpodautoscalers")
        await autoscale(api.url, "create", "deploy/web", "--max", "4")
        item = hpas.items["default", "web"]
        uid = item["metadata"]["uid"]
        behaviour = {"scaleDown": {"stabilizationWindowSeconds": 60}}
        api.store.write(hpas, ("default", "web"), {**item, "spec": {**item["spec"], "behavior": behaviour}}, "MODIFIED")
        await autoscale(api.url, "create", "deploy/web", "--max", "6", "gpu=50%")
        changed = hpas.items["default", "web"]
        assert changed["metadata"]["uid"] == uid
        assert changed["spec"]["behavior"] == behaviour
        assert changed["spec"]["maxReplicas"] == 6
        assert [one["type"] for one in changed["spec"]["metrics"]] == ["Pods"]


async def test_the_status_says_why_nothing_scales(autoscale: Autoscale) -> None:
    async with fake_api() as api:
        await autoscale(api.url, "create", "deploy/web", "--max", "4", "gpu:60%")
        said = await autoscale(api.url, "status", "deploy/web", code=1)
        assert "what it scales does not exist" in said
        assert "nobody serves custom.metrics.k8s.io" in said
        assert "no controller has looked at it yet" in said
        # Somebody else's API, as prometheus-adapter leaves one behind.
        kind = api.store.kind("apiregistration.k8s.io/v1", "apiservices")
        service = {"namespace": "monitoring", "name": "prometheus-adapter"}
        spec = {"group": "custom.metrics.k8s.io", "version": "v1beta1", "service": service}
        api.store.create(kind, "", {"metadata": {"name": "v1beta1.custom.metrics.k8s.io"}, "spec": spec})
        said = await autoscale(api.url, "status", "deploy/web", code=1)
        assert "v1beta1.custom.metrics.k8s.io is of monitoring/prometheus-adapter and not available" in said
        said = await autoscale(api.url, "status", "deploy/none", code=1)
        assert "nothing scales Deployment/none in namespace default" in said
        hpas = api.store.kind("autoscaling/v2", "horizontalpodautoscalers")
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        item: Any = {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": reference, "maxReplicas": 3}}
        api.store.create(hpas, "default", item)
        said = await autoscale(api.url, "status", "deploy/web", code=1)
        assert "HorizontalPodAutoscaler default/theirs scales the same: they undo each other's work" in said


def test_the_seeds_grammar_is_read_with_its_separators() -> None:
    wanted = (Goal("cpu", 70), Goal("memory", 80), Goal(GPU_USE, 600))
    for text in ("cpu:70% mem:80% gpu:60%", "cpu=70%,memory=80%;gpu=60%", "CPU: 70%; mem : 80, gpu:60", ""):
        assert parse_goals([text]) == wanted
    assert parse_goals(DEFAULT_TARGETS) == wanted
    assert parse_goals(["wait:2m", "queue:4", "missing:2.5", "gpu-memory:62.5%", "amd:50%"]) == (
        Goal(Signal.OLDEST_WAIT, 120_000),
        Goal(Signal.QUEUE_DEPTH, 4000),
        Goal(Signal.MISSING_SHARE, 2500),
        Goal(MEMORY_USE, 625),
        Goal("container_amd_gpu_usage", 500),
    )
    assert str(parse_scaled("deploy/web")) == str(parse_scaled("Deployments/web")) == "Deployment/web"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gpu"], "'gpu' is no target"),
        (["gpus:60%"], "'gpus' is nothing that is measured"),
        (["gpu:60%", "gpu=70%"], "has a target already"),
        (["mem:80%", "memory:70%"], "has a target already"),
        (["gpu:100%"], "nothing would ever be added"),
        (["gpu:0%"], "a target is more than 0"),
        (["cpu:0%"], "percent of what is requested"),
        (["cpu:lots"], "percent of what is requested"),
        (["wait:soon"], "such as 90s"),
        (["queue:-1"], "negative"),
    ],
)
def test_what_can_not_be_a_target_is_refused(arguments: list[str], says: str) -> None:
    with pytest.raises(AliquotError) as caught:
        parse_goals(arguments)
    assert says in caught.value.explain()


@given(st.lists(st.text(max_size=20), max_size=4))
def test_any_text_is_read_or_refused(texts: list[str]) -> None:
    try:
        goals = parse_goals(texts)
    except AliquotError as error:
        assert error.message
    else:
        assert goals
        assert all(goal.amount >= 1 for goal in goals)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["deploy/web", "--max", "0"], "from 1 to 0 replicas"),
        (["deploy/web", "--max", "3", "--min", "0"], "an HPA keeps one replica at least"),
        (["deploy/web", "--max", "3", "--min", "0", "--keda"], "nothing leads back"),
        (["deploy/web", "--max", "3", "--queue", "q"], "queue choose among what waits"),
        (["web", "--max", "3"], "'web' is nothing that can be scaled"),
        (["pod/web", "--max", "3"], "'pod/web' is nothing that can be scaled"),
    ],
)
async def test_what_nothing_would_come_of_is_refused(autoscale: Autoscale, arguments: list[str], says: str) -> None:
    said = await autoscale("http://127.0.0.1:1", "create", *arguments, "--dry-run", code=1)
    assert says in said


async def test_a_dry_run_prints_the_object_and_asks_nobody(autoscale: Autoscale) -> None:
    said = await autoscale(
        "http://127.0.0.1:1", "create", "deploy/x", "--min", "1", "--max", "8", "cpu:70%", "mem:80%", "gpu:60%",
        "--dry-run",
    )  # fmt: skip
    found = yaml.safe_load(said)
    assert found["kind"] == "HorizontalPodAutoscaler"
    assert [one["type"] for one in found["spec"]["metrics"]] == ["Resource", "Resource", "Pods"]
    validate = pytest.importorskip(
        "kubernetes_validate", reason="needs kubernetes-validate: pip install 'aliquot[dev]'"
    )
    validate.validate(found, "1.34", strict=True)


async def test_a_second_owner_of_an_api_is_refused_at_the_start(authority: Authority, tmp_path: Path) -> None:
    async with scaled(authority, tmp_path) as place:
        kind = place.cluster.api.store.kind("apiregistration.k8s.io/v1", "apiservices")
        item = kind.items["", "v1beta1.custom.metrics.k8s.io"]
        service = {"namespace": "monitoring", "name": "prometheus-adapter", "port": 443}
        place.cluster.api.store.write(
            kind,
            ("", "v1beta1.custom.metrics.k8s.io"),
            {**item, "spec": {**item["spec"], "service": service}},
            "MODIFIED",
        )
        registration = place.scaling._registration
        assert registration is not None
        await eventually(lambda: registration.problem, "the other owner")
        assert "v1beta1.custom.metrics.k8s.io is of monitoring/prometheus-adapter" in registration.problem
        assert f"we are {NAMESPACE}/aliquot-scaling" in registration.problem
        with pytest.raises(AliquotError, match=r"prometheus-adapter, and we are aliquot-system/aliquot-scaling"):
            await registration.refuse_if_taken()
        # What it is trusted for is never written into another's.
        assert kind.items["", "v1beta1.custom.metrics.k8s.io"]["spec"]["service"] == service
