"""The webhook: pods that ask for parts are counted whatever way they ask, and go to our scheduler, over TLS."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import AliquotError, ConfigError
from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeInvalid, KubeUnavailable
from aliquot.kube.core import names
from aliquot.kube.core.admission import LEASE_VARIABLE, AdmittedPod, patch_of
from aliquot.kube.core.asking import asked_by, request_text, require_counted
from aliquot.kube.core.shapes import RawPod
from aliquot.kube.serving import serve
from tests.certificates import Authority
from tests.chart.conftest import documents
from tests.coordinator.pool import eventually
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.fake_api.webhooks import patched
from tests.kube.making import pod_document

PATH = resources.PODS.path("default")
VALUE = {"fieldRef": {"fieldPath": f"metadata.annotations['{names.LEASE_ID}']"}}


def folder_of(authority: Authority, folder: Path, name: str = "localhost") -> Path:
    folder.mkdir(exist_ok=True)
    certificate, key = authority.certify(name)
    (folder / "tls.crt").write_bytes(certificate.read_bytes())
    (folder / "tls.key").write_bytes(key.read_bytes())
    (folder / "ca.crt").write_bytes(authority.ca.read_bytes())
    return folder


def configuration() -> dict[str, Any]:
    """The chart's."""
    found = documents({"webhook": {"enabled": True}})
    return next(each for each in found if each["kind"] == "MutatingWebhookConfiguration")


def to(document: dict[str, Any], port: int) -> None:
    """The configuration, of a webhook that is here and not behind a Service."""
    for each in document["webhooks"]:
        each["clientConfig"] = {"url": f"https://localhost:{port}{each['clientConfig']['service']['path']}"}


def install(api: FakeApi, port: int) -> None:
    document = configuration()
    to(document, port)
    api.store.create(api.store.kind(policies.VERSION, "mutatingwebhookconfigurations"), "", document)


async def test_pods_that_ask_for_parts_are_changed_on_their_way_in(authority: Authority, tmp_path: Path) -> None:
    certificate = webhook.Certificate(folder_of(authority, tmp_path / "tls"))
    end, port = await serve(webhook.questions(), "127.0.0.1", 0, tls=certificate.context)
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=5.0) as client:
        install(api, port)
        with pytest.raises(KubeUnavailable, match="failed calling webhook"):
            await client.post(PATH, pod_document("early", {names.GPU: 1}))  # nobody has said whom to trust
        keeping = asyncio.create_task(webhook.keep(certificate, client, every_s=0.05))
        kind = api.store.kind(policies.VERSION, "mutatingwebhookconfigurations")
        wanted = base64.b64encode(authority.ca.read_bytes()).decode()

        def trusted() -> bool:
            return bool(kind.items["", "aliquot-pods"]["webhooks"][-1]["clientConfig"].get("caBundle") == wanted)

        await eventually(trusted, "its authority")
        item = pod_document("a", {names.GPU_PERCENT: 25}, spec={"schedulerName": "default-scheduler"})
        made = msgspec.json.decode(await client.post(PATH, item))
        assert made["spec"]["schedulerName"] == names.SCHEDULER
        assert made["spec"]["containers"][0]["env"] == [{"name": LEASE_VARIABLE, "valueFrom": VALUE}]
        plain = msgspec.json.decode(await client.post(PATH, pod_document("b", spec={"schedulerName": "other"})))
        assert plain["spec"]["schedulerName"] == "other"
        # The certificate is renewed by another authority, while it serves.
        folder_of(Authority.create(tmp_path / "second"), tmp_path / "tls")
        wanted = base64.b64encode((tmp_path / "tls" / "ca.crt").read_bytes()).decode()
        await eventually(trusted, "its new authority")
        await client.post(PATH, pod_document("c", {names.GPU: 1}))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await end()
        with pytest.raises(KubeUnavailable):
            await client.post(PATH, pod_document("d", {names.GPU: 1}))
        await client.post(PATH, pod_document("e"))  # what is none of ours goes on without it


def test_a_webhook_without_a_certificate_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no tls"):
        webhook.Certificate(tmp_path)


@pytest.mark.parametrize(
    ("pod", "matches"),
    [
        (pod_document("a", {names.GPU_PERCENT: 25}), True),
        (pod_document("a", {names.GPU: 1}), True),
        (pod_document("a", annotations={names.REQUEST: "0.5"}), True),
        (pod_document("a", {"memory": 1}), False),
        (pod_document("a", {names.GPU: 1}, spec={"schedulerName": "volcano"}), False),
        (pod_document("a", {names.GPU: 1}, spec={"schedulerName": "default-scheduler"}), True),
    ],
)
def test_about_which_pods_it_is_asked(conditions: list[str], pod: dict[str, Any], matches: bool) -> None:
    assert asked_about(conditions, pod) is matches


def test_what_the_cluster_needs_to_start_is_left_alone() -> None:
    for hook in configuration()["webhooks"]:
        (excluded,) = hook["namespaceSelector"]["matchExpressions"]
        assert excluded["operator"] == "NotIn"
        assert {"kube-system", "aliquot-system"} <= set(excluded["values"])


@pytest.fixture(scope="module")
def conditions() -> list[str]:
    """Of the chart: which pods the API server asks it about."""
    return [each["expression"] for each in configuration()["webhooks"][-1]["matchConditions"]]


def asked_about(conditions: list[str], pod: dict[str, Any]) -> bool:
    return all(policies.evaluate(each, object=pod) for each in conditions)


_LIMITS = st.dictionaries(
    st.sampled_from([names.GPU, names.GPU_PERCENT, names.GPU_MEMORY_MIB, "memory", "nvidia.com/gpu"]), st.integers(1, 9)
)
_ENV = st.lists(st.sampled_from(["A", "B", LEASE_VARIABLE]), unique=True, max_size=3)


def _container(limits: dict[str, int], env: list[str], restarts: bool) -> dict[str, Any]:
    return {
        "resources": {"limits": limits, "claims": [{"name": "other"}]},
        **({"env": [{"name": name, "value": "x"} for name in env]} if env else {}),
        **({"restartPolicy": "Always"} if restarts else {}),
    }


_CONTAINERS = st.lists(st.builds(_container, _LIMITS, _ENV, st.booleans()), max_size=3)


def _pod(containers: Any, inits: Any, scheduler: str, annotations: dict[str, str]) -> dict[str, Any]:
    for number, each in enumerate([*containers, *inits]):
        each["name"] = f"c{number}"
    return {
        "metadata": {"name": "p", **({"annotations": annotations} if annotations else {})},
        "spec": {"containers": containers or [{"name": "c"}], "initContainers": inits, "schedulerName": scheduler},
    }


_POD = st.builds(
    _pod,
    _CONTAINERS,
    _CONTAINERS,
    st.sampled_from(["", "default-scheduler", names.SCHEDULER, "volcano"]),
    st.dictionaries(st.sampled_from([names.REQUEST, "other"]), st.sampled_from(["0.5", "2x0.333(A100),3Gi", "4Gi"])),
)


@given(pod=_POD)
def test_what_it_is_asked_about_is_counted_and_twice_is_as_once(conditions: list[str], pod: dict[str, Any]) -> None:
    matches = asked_about(conditions, pod)
    try:
        patch = patch_of(msgspec.convert(pod, AdmittedPod))
    except AliquotError:
        assert matches
        return
    if not matches:
        assert not patch
        return
    made = patched(pod, patch)
    assert made["spec"]["schedulerName"] == names.SCHEDULER
    for before, after in zip(pod["spec"]["containers"], made["spec"]["containers"], strict=True):
        was = {each["name"]: each for each in before.get("env", ())}
        assert {each["name"]: each for each in after["env"]} == {
            LEASE_VARIABLE: {"name": LEASE_VARIABLE, "valueFrom": VALUE},
            **was,
        }
    assert not patch_of(msgspec.convert(made, AdmittedPod))
    # It asks for what it asked for, is counted for that, and has what else its containers said.
    asked, before_asked = asked_by(msgspec.convert(made, RawPod)), asked_by(msgspec.convert(pod, RawPod))
    require_counted(asked)
    assert request_text(asked) == request_text(before_asked)
    for before, after in zip(_containers(pod), _containers(made), strict=True):
        ours = {names.GPU, names.GPU_PERCENT, names.GPU_MEMORY_MIB}
        has, had = after.get("resources", {}), before.get("resources", {})
        assert {name: str(value) for name, value in had.get("limits", {}).items() if name not in ours}.items() <= {
            name: str(value) for name, value in has.get("limits", {}).items()
        }.items()
        assert has.get("claims") == had.get("claims")


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod["spec"]["initContainers"], *pod["spec"]["containers"]]


def made_of(pod: dict[str, Any]) -> dict[str, list[dict[str, str]]]:
    """The limits of its containers, by what kind they are."""
    made = patched(pod, patch_of(msgspec.convert(pod, AdmittedPod)))
    return {
        kind: [each.get("resources", {}).get("limits", {}) for each in made["spec"].get(kind, ())]
        for kind in ("initContainers", "containers")
    }


@pytest.mark.parametrize(
    ("limits", "request_", "counted"),
    [
        ({names.GPU: 2}, "", {names.GPU_PERCENT: "200"}),
        ({}, "2", {names.GPU_PERCENT: "200"}),
        ({}, "2x0.25(A100),10Gi", {names.GPU_PERCENT: "50", names.GPU_MEMORY_MIB: "20480"}),
        ({}, "10G", {names.GPU_PERCENT: "1", names.GPU_MEMORY_MIB: "9537"}),
        ({}, "0.125", {names.GPU_PERCENT: "12"}),
        ({}, "0.005", {names.GPU_PERCENT: "1"}),
        ({}, "3g.40gb", {names.GPU_PERCENT: "42"}),
        ({}, "vir05_1c_16g", {names.GPU_PERCENT: "1"}),
        ({names.GPU_PERCENT: 25}, "", {names.GPU_PERCENT: 25}),
        ({names.GPU_PERCENT: 12}, "0.125,2Gi", {names.GPU_PERCENT: 12, names.GPU_MEMORY_MIB: "2048"}),
    ],
)
def test_whatever_way_a_pod_asks_it_is_counted_in_one(
    limits: dict[str, int], request_: str, counted: dict[str, Any]
) -> None:
    annotations = {names.REQUEST: request_} if request_ else None
    assert made_of(pod_document("a", limits, annotations=annotations))["containers"] == [counted]


def test_the_kubelet_asks_about_every_container_and_the_pod_has_no_more_for_it() -> None:
    names_of = [{"name": "main"}, {"name": "beside"}, {"name": "third"}]
    first = [{"name": "before"}, {"name": "along", "restartPolicy": "Always"}]
    pod = pod_document("a", annotations={names.REQUEST: "0.25"}, spec={"containers": names_of, "initContainers": first})
    made = made_of(pod)
    assert [each[names.GPU_PERCENT] for each in made["containers"]] == ["22", "1", "1"]
    assert [each[names.GPU_PERCENT] for each in made["initContainers"]] == ["1", "1"]


def test_memory_alone_is_counted_and_asks_for_no_other_share() -> None:
    pod = pod_document("a", {names.GPU_MEMORY_MIB: 8192})
    made = patched(pod, patch_of(msgspec.convert(pod, AdmittedPod)))
    assert made["metadata"]["annotations"] == {names.REQUEST: "8Gi"}
    assert request_text(asked_by(msgspec.convert(made, RawPod))) == "8Gi"


async def test_what_nobody_can_read_is_refused_to_whoever_creates_it(authority: Authority, tmp_path: Path) -> None:
    certificate = webhook.Certificate(folder_of(authority, tmp_path / "tls"))
    end, port = await serve(webhook.questions(), "127.0.0.1", 0, tls=certificate.context)
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=5.0) as client:
        install(api, port)
        await webhook.trust(client, authority.ca.read_bytes())
        with pytest.raises(KubeInvalid, match="multiple of 100"):
            await client.post(PATH, pod_document("a", {names.GPU_PERCENT: 130}))
        with pytest.raises(KubeInvalid, match="contradict"):
            await client.post(PATH, pod_document("a", {names.GPU_PERCENT: 1}, annotations={names.REQUEST: "2"}))
        await end()
