"""`aliquot autoscale`: what it reads, writes and says. What its metrics give is in `tests/monitoring`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aliquot.cli.main import main
from aliquot.common.errors import AliquotError
from aliquot.kube.core.autoscaling.grammar import (
    DEFAULT_TARGETS,
    GPU_USE,
    MEMORY_USE,
    QUEUE_DEPTH,
    Goal,
    parse_goals,
    parse_scaled,
)
from tests.kube.fake_api.server import fake_api
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
        assert item["spec"]["triggers"][0]["metadata"]["query"] == "sum(aliquot_tenant_queued{})"
        # KEDA makes an HPA of it, which is no second one.
        made = {"name": "keda-hpa-web", "ownerReferences": [{"kind": "ScaledObject", "name": "web"}]}
        api.store.create(hpas, "default", {"metadata": made, "spec": {"scaleTargetRef": reference, "maxReplicas": 4}})
        said = await autoscale(api.url, "create", "deploy/web", "--max", "9", "queue:1", "--keda")
        assert "ScaledObject default/web changed: 1 to 9" in said
        assert (await autoscale(api.url, "create", "deploy/web", "--max", "9", "queue:1", "--keda")).count("unchanged")
        said = await autoscale(api.url, "create", "deploy/web", "--max", "4", code=1)
        assert "ScaledObject default/web scales Deployment/web already" in said
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
        assert "no controller has looked at it yet" in said
        said = await autoscale(api.url, "status", "deploy/none", code=1)
        assert "nothing scales Deployment/none in namespace default" in said
        hpas = api.store.kind("autoscaling/v2", "horizontalpodautoscalers")
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}
        item: Any = {"metadata": {"name": "theirs"}, "spec": {"scaleTargetRef": reference, "maxReplicas": 3}}
        api.store.create(hpas, "default", item)
        ours = hpas.items["default", "web"]
        blind = {"type": "ScalingActive", "status": "False", "reason": "FailedGetPodsMetric", "message": "no answer"}
        most = {"type": "ScalingLimited", "status": "True", "reason": "TooManyReplicas", "message": ""}
        status = {"currentReplicas": 4, "desiredReplicas": 4, "conditions": [blind, most]}
        api.store.write(hpas, ("default", "web"), {**ours, "status": status}, "MODIFIED")
        said = await autoscale(api.url, "status", "deploy/web", code=1)
        assert "HorizontalPodAutoscaler default/theirs scales the same: they undo each other's work" in said
        assert "1 to 4 replicas, 4 now, 4 wanted" in said
        assert "it can't measure (FailedGetPodsMetric): no answer" in said
        assert "mend: needs prometheus-adapter" in said
        assert "it has its most, 4, and would like more" in said


def test_the_seeds_grammar_is_read_with_its_separators() -> None:
    wanted = (Goal("cpu", 70), Goal("memory", 80), Goal(GPU_USE, 600))
    for text in ("cpu:70% mem:80% gpu:60%", "cpu=70%,memory=80%;gpu=60%", "CPU: 70%; mem : 80, gpu:60", ""):
        assert parse_goals([text]) == wanted
    assert parse_goals(DEFAULT_TARGETS) == wanted
    assert parse_goals(["queue:4", "gpu-memory:62.5%"]) == (Goal(QUEUE_DEPTH, 4000), Goal(MEMORY_USE, 625))
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
        (["queue:soon"], "such as gpu:60% or queue:4"),
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
        (["deploy/web", "--max", "0", "--min", "0", "--keda", "queue:1"], "from 0 to 0 replicas"),
        (["deploy/web", "--max", "4", "--min", "5"], "from 5 to 4 replicas"),
        (["deploy/web", "--max", "10001"], "from 1 to 10001 replicas"),
        (["deploy/web", "--max", "3", "--min", "-1", "--keda", "queue:1"], "from -1 to 3 replicas"),
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


async def test_kedas_triggers_ask_prometheus_for_these_pods_and_this_queue(autoscale: Autoscale) -> None:
    said = await autoscale(
        "http://127.0.0.1:1", "create", "deploy/x", "--min", "0", "--max", "8", "cpu:70%", "gpu:60%", "queue:4",
        "--keda", "--queue", "night", "--prometheus", "http://p:9090", "--auth", "prom", "--dry-run",
    )  # fmt: skip
    found = yaml.safe_load(said)
    cpu, gpu, queue = found["spec"]["triggers"]
    assert cpu == {"type": "cpu", "metricType": "Utilization", "metadata": {"value": "70"}}
    assert (gpu["type"], gpu["metricType"], gpu["metadata"]["threshold"]) == ("prometheus", "Value", "0.6")
    assert gpu["metadata"]["query"] == ('avg(container_gpu_usage{namespace="default",pod=~"x-[a-z0-9]+-[a-z0-9]{5}"})')
    assert (queue["metricType"], queue["metadata"]["threshold"]) == ("AverageValue", "4")
    assert queue["metadata"]["query"] == 'sum(aliquot_tenant_queued{queue="night"})'
    for each in (gpu, queue):
        assert each["metadata"]["serverAddress"] == "http://p:9090"
        assert each["metadata"]["ignoreNullValues"] == "false", "what is not known is not zero"
        assert each["authenticationRef"] == {"kind": "ClusterTriggerAuthentication", "name": "prom"}


@pytest.mark.parametrize(
    ("fewest", "most", "more"), [(1, 1, []), (4, 4, []), (1, 10_000, []), (0, 1, ["queue:1", "--keda"])]
)
async def test_any_range_of_replicas_that_scales_is_taken(
    autoscale: Autoscale, fewest: int, most: int, more: list[str]
) -> None:
    asked = ["create", "deploy/web", "--min", str(fewest), "--max", str(most), *more, "--dry-run"]
    spec = yaml.safe_load(await autoscale("http://127.0.0.1:1", *asked))["spec"]
    assert [spec[name] for name in spec if name.startswith(("min", "max"))] == [fewest, most]
