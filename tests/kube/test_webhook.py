"""The webhook for API servers without mutating policies: the same pods, changed in the same way, over TLS."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.errors import ConfigError
from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeUnavailable
from aliquot.kube.core import names
from aliquot.kube.core.admission import LEASE_VARIABLE, AdmittedPod, patch_of
from tests.certificates import Authority
from tests.chart.conftest import documents
from tests.coordinator.pool import eventually
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.fake_api.webhooks import patched
from tests.kube.making import pod_document
from tests.kube.test_admission import documents as admission

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


def install(api: FakeApi, port: int) -> None:
    document = configuration()
    document["webhooks"][0]["clientConfig"] = {"url": f"https://localhost:{port}{webhook.PATH}"}
    api.store.create(api.store.kind(policies.VERSION, "mutatingwebhookconfigurations"), "", document)


async def test_pods_that_ask_for_parts_are_changed_on_their_way_in(authority: Authority, tmp_path: Path) -> None:
    certificate = webhook.Certificate(folder_of(authority, tmp_path / "tls"))
    end, port = await webhook.serve(webhook.application(), "127.0.0.1", 0, certificate.context)
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=5.0) as client:
        install(api, port)
        with pytest.raises(KubeUnavailable, match="failed calling webhook"):
            await client.post(PATH, pod_document("early", {names.GPU: 1}))  # nobody has said whom to trust
        keeping = asyncio.create_task(webhook.keep(certificate, client, every_s=0.05))
        kind = api.store.kind(policies.VERSION, "mutatingwebhookconfigurations")
        wanted = base64.b64encode(authority.ca.read_bytes()).decode()

        def trusted() -> bool:
            return bool(kind.items["", "aliquot-pods"]["webhooks"][0]["clientConfig"].get("caBundle") == wanted)

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


def test_webhook_and_policy_are_asked_for_the_same_pods() -> None:
    (policy,) = [each for each in admission() if each["kind"] == "MutatingAdmissionPolicy"]
    hook = configuration()["webhooks"][0]
    assert hook["matchConditions"] == policy["spec"]["matchConditions"]
    assert hook["rules"] == policy["spec"]["matchConstraints"]["resourceRules"]
    assert hook["namespaceSelector"] == policy["spec"]["matchConstraints"]["namespaceSelector"]
    for field in ("failurePolicy", "reinvocationPolicy"):
        assert hook[field] == policy["spec"][field]
    text = str(policy["spec"]["mutations"])
    assert LEASE_VARIABLE in text
    assert f"metadata.annotations['{names.LEASE_ID}']" in text.replace("\\'", "'")
    assert f"schedulerName: '{names.SCHEDULER}'" in text.replace("\\'", "'")


_LIMITS = st.dictionaries(
    st.sampled_from([names.GPU, names.GPU_PERCENT, "memory", "nvidia.com/gpu"]), st.integers(1, 9)
)
_ENV = st.lists(st.sampled_from(["A", "B", LEASE_VARIABLE]), unique=True, max_size=3)
_CONTAINER = st.builds(
    lambda limits, env: {
        "name": "c",
        "resources": {"limits": limits},
        **({"env": [{"name": name, "value": "x"} for name in env]} if env else {}),
    },
    _LIMITS,
    _ENV,
)
_POD = st.builds(
    lambda containers, inits, scheduler, annotations: {
        "metadata": {"name": "p", **({"annotations": annotations} if annotations else {})},
        "spec": {"containers": containers, "initContainers": inits, "schedulerName": scheduler},
    },
    st.lists(_CONTAINER, min_size=1, max_size=3),
    st.lists(_CONTAINER, max_size=2),
    st.sampled_from(["", "default-scheduler", names.SCHEDULER, "volcano"]),
    st.dictionaries(st.sampled_from([names.REQUEST, "other"]), st.just("0.5")),
)


@given(_POD)
def test_both_decide_alike_and_twice_is_as_once(pod: dict[str, Any]) -> None:
    (policy,) = [each for each in admission() if each["kind"] == "MutatingAdmissionPolicy"]
    matches = all(policies.evaluate(one["expression"], object=pod) for one in policy["spec"]["matchConditions"])
    patch = patch_of(msgspec.convert(pod, AdmittedPod))
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
    assert made["spec"]["initContainers"] == pod["spec"]["initContainers"]
    assert not patch_of(msgspec.convert(made, AdmittedPod))
