"""Pods in other systems' words: what they ask for, what becomes of them at admission, and what `kube plan` says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.request import parse_request
from aliquot.kube import webhook
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import names, words
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.serving import serve
from tests.certificates import Authority
from tests.coordinator.pool import eventually
from tests.kube.cluster import kube_cluster
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import ADMIN, fake_api
from tests.kube.fake_api.webhooks import patched
from tests.kube.making import pod_document
from tests.kube.test_command import aliquot
from tests.kube.test_webhook import PATH, configuration, folder_of, install

# What reads CEL raises Python's recursion limit when it is first used, which Hypothesis minds within a test.
policies.evaluate("true", object={})


def pod(limits: dict[str, Any], annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "main", "resources": {"limits": limits, "requests": limits}}]
    meta = {"name": "p", **({"annotations": annotations} if annotations else {})}
    return {"metadata": meta, "spec": {"containers": containers, **spec}}


def raw(document: dict[str, Any]) -> RawPod:
    return msgspec.convert(document, RawPod)


CASES: list[tuple[dict[str, Any], dict[str, str], str]] = [
    ({"nvidia.com/gpu": 2}, {}, "2(nvidia)"),
    ({"nvidia.com/gpu": "1", "memory": "4Gi"}, {}, "1(nvidia)"),
    ({"nvidia.com/gpu": 4, "nvidia.com/gpu-memory": "128Gi"}, {}, "4x32Gi(nvidia)"),
    ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, {}, "0.3(nvidia),3000Mi"),
    ({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 3000}, {}, "2x3000Mi(nvidia)"),
    ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}, {}, "0.5(nvidia)"),
    ({}, {"gpu-fraction": "0.5"}, "0.5(nvidia)"),
    ({}, {"gpu-memory": "2000", "gpu-fraction-num-devices": "2"}, "2x2000Mi(nvidia)"),
    ({"nvidia.com/mig-1g.10gb": 2}, {}, "2x1g.10gb"),
    ({"nvidia.com/gpu.shared": 1}, {}, "0.25(nvidia)"),
    ({"amd.com/gpu": 1}, {}, "1(amd)"),
    ({"google.com/tpu": 4}, {}, "4(tpu)"),
]


@pytest.mark.parametrize(("limits", "annotations", "request_text"), CASES)
def test_what_other_words_are_here(limits: dict[str, Any], annotations: dict[str, str], request_text: str) -> None:
    found = words.translated(raw(pod(limits, annotations)), replica_percent=25)
    assert found is not None
    assert (found.request, found.problem) == (request_text, "")
    parse_request(found.request)


@pytest.mark.parametrize(
    ("limits", "annotations", "why"),
    [
        ({"nvidia.com/gpu.shared": 1}, {}, "replica_percent"),
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, {}, "amd and nvidia at once"),
        ({"nvidia.com/mig-1g.10gb": 1, "nvidia.com/gpu": 1}, {}, "beside something else"),
        ({"nvidia.com/mig-all-balanced": 1}, {}, "not a MIG profile"),
        ({"nvidia.com/gpu": "one"}, {}, "no whole number"),
        ({}, {"gpu-fraction": "half"}, "not a quantity"),
    ],
)
def test_what_can_not_be_said_here_is_left_with_its_reason(
    limits: dict[str, Any], annotations: dict[str, str], why: str
) -> None:
    document = pod(limits, annotations)
    found = words.translated(raw(document))
    assert found is not None
    assert why in found.problem
    made = patched(document, words.patch_of(raw(document), found, names.SCHEDULER))
    assert made["spec"] == document["spec"]
    assert why in made["metadata"]["annotations"][names.TRANSLATED]
    assert names.REQUEST not in made["metadata"]["annotations"]


def test_several_containers_that_ask_are_left_to_their_author() -> None:
    document = pod({"nvidia.com/gpu": 1})
    document["spec"]["containers"].append({"name": "second", "resources": {"limits": {"nvidia.com/gpu": 1}}})
    found = words.translated(raw(document))
    assert found is not None
    assert names.REQUEST in found.problem


_LIMITS = st.dictionaries(
    st.sampled_from([*words.RESOURCES, "nvidia.com/mig-1g.10gb", names.GPU_PERCENT, "cpu"]),
    st.integers(0, 9),
    max_size=3,
)
_ANNOTATIONS = st.dictionaries(
    st.sampled_from([*words.ANNOTATIONS, names.REQUEST, "other"]), st.just("0.5"), max_size=2
)


@given(_LIMITS, _ANNOTATIONS)
def test_the_api_server_asks_about_every_pod_that_is_changed_and_once_is_as_twice(
    limits: dict[str, Any], annotations: dict[str, str]
) -> None:
    document = pod(limits, annotations)
    found = words.translated(raw(document), replica_percent=10)
    (condition,) = {json.dumps(each["matchConditions"]) for each in by_label()}
    asked = all(policies.evaluate(one["expression"], object=document) for one in json.loads(condition))
    assert asked or found is None
    if found is None or not found.request:
        return
    made = patched(document, words.patch_of(raw(document), found, names.SCHEDULER))
    left = {name for field in ("limits", "requests") for name in made["spec"]["containers"][0]["resources"][field]}
    assert left <= {"cpu", *(name for name, amount in limits.items() if amount == 0)} - {*words.RESOURCES}
    assert made["metadata"]["annotations"][names.REQUEST] == found.request
    assert words.translated(raw(made), replica_percent=10) is None


def by_label() -> list[dict[str, Any]]:
    """The chart's webhooks that translate: by the namespace's label, and by the pod's own."""
    return [
        each for each in configuration()["webhooks"] if each["clientConfig"]["service"]["path"] == webhook.TRANSLATE
    ]


def test_only_who_says_so_is_asked_about() -> None:
    of_namespace, of_pod = by_label()
    assert of_namespace["namespaceSelector"]["matchLabels"] == {names.TRANSLATE: "true"}
    assert of_pod["objectSelector"]["matchLabels"] == {names.TRANSLATE: "true"}
    for each in (of_namespace, of_pod):
        (excluded,) = each["namespaceSelector"]["matchExpressions"]
        assert "kube-system" in excluded["values"]
    last = configuration()["webhooks"][-1]
    assert last["clientConfig"]["service"]["path"] == webhook.PATH, "what was translated is counted then"


async def test_a_pod_of_other_words_becomes_one_of_ours_where_a_label_says_so(
    authority: Authority, tmp_path: Path
) -> None:
    certificate = webhook.Certificate(folder_of(authority, tmp_path / "tls"))
    questions = webhook.questions(replica_percent=25)
    end, port = await serve(questions, "127.0.0.1", 0, tls=certificate.context)
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=5.0) as client:
        install(api, port)
        keeping = asyncio.create_task(webhook.keep(certificate, client, every_s=0.05))
        kind = api.store.kind(policies.VERSION, "mutatingwebhookconfigurations")
        await eventually(lambda: "caBundle" in str(kind.items), "its authority")
        spec = {"schedulerName": "kai-scheduler"}
        label = {names.TRANSLATE: "true"}
        item = pod_document("labelled", spec=spec, labels=label, annotations={"gpu-fraction": "0.5"})
        made = msgspec.json.decode(await client.post(PATH, item))
        assert made["metadata"]["annotations"][names.REQUEST] == "0.5(nvidia)"
        assert made["metadata"]["annotations"][names.TRANSLATED] == "gpu-fraction: 0.5 -> 0.5(nvidia)"
        assert made["spec"]["schedulerName"] == names.SCHEDULER
        assert made["spec"]["containers"][0]["env"], "as any pod of ours"
        other = msgspec.json.decode(await client.post(PATH, pod_document("other", {"nvidia.com/gpu": 1}, spec=spec)))
        assert other["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
        assert other["spec"]["schedulerName"] == "kai-scheduler"
        await client.post("/api/v1/namespaces", {"metadata": {"name": "theirs", "labels": label}})
        path = PATH.replace("default", "theirs")
        made = msgspec.json.decode(
            await client.post(path, pod_document("whole", {"nvidia.com/gpu": 2}, spec={"schedulerName": ""}))
        )
        limits = made["spec"]["containers"][0]["resources"]["limits"]
        assert "nvidia.com/gpu" not in limits
        assert limits[names.GPU_PERCENT] == "200"
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await end()


async def test_a_plan_says_what_it_is_what_it_would_be_and_what_to_write(tmp_path: Path) -> None:
    def deployment(name: str, limits: dict[str, Any]) -> dict[str, Any]:
        template = {"spec": pod(limits)["spec"]}
        return {"kind": "Deployment", "metadata": {"name": name}, "spec": {"replicas": 2, "template": template}}

    file = tmp_path / "theirs.yaml"
    file.write_text(
        yaml.safe_dump_all(
            [deployment("whole", {"nvidia.com/gpu": 1}), deployment("replica", {"nvidia.com/gpu.shared": 1})]
        )
    )
    async with kube_cluster(2) as cluster:
        code, text = await aliquot(cluster, "kube", "plan", "-f", str(file), "--json")
        assert code == 4, "of the second nobody knows what it is"
        whole, replica = json.loads(text)
        assert (whole["said"], whole["request"], whole["fits_now"]) == ("nvidia.com/gpu: 1", "1(nvidia)", True)
        assert "replica_percent" in replica["problem"]
        code, text = await aliquot(cluster, "kube", "plan", "-f", str(file), "--replica-percent", "50")
        assert code == 0
        assert "Deployment default/whole: 2 x 1(nvidia) would start now on" in text
        assert "now: nvidia.com/gpu: 1" in text
        assert f'write: annotations: {{{names.REQUEST}: "1(nvidia)"}}' in text
        assert f'write: annotations: {{{names.REQUEST}: "0.5(nvidia)"}}' in text
