"""The webhook's own certificate: made, shared by replicas, renewed before it ends, refused clearly if it can't be."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import json
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import yaml
from cryptography import x509

from aliquot.kube import webhook
from aliquot.kube.api import resources
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.core import names
from aliquot.kube.webhook_certificate import (
    AUTHORITY,
    CERTIFICATE,
    KEY,
    LIFE,
    SharedCertificate,
    due,
    issue,
    service_names,
)
from tests.coordinator.pool import eventually
from tests.kube.fake_api import policies
from tests.kube.fake_api.server import ADMIN, FakeApi, fake_api
from tests.kube.making import make_namespace, pod_document
from tests.kube.test_webhook import PATH, configuration

SERVICE: str = configuration()["webhooks"][0]["clientConfig"]["service"]["name"]
NAMESPACE: str = configuration()["webhooks"][0]["clientConfig"]["service"]["namespace"]
NOW = dt.datetime(2026, 11, 23, tzinfo=dt.UTC)


class Clock:
    """Moved by the test."""

    def __init__(self) -> None:
        self.now = dt.datetime.now(dt.UTC)

    def __call__(self) -> dt.datetime:
        return self.now


def replica(client: KubeClient, folder: Path, clock: Clock) -> SharedCertificate:
    folder.mkdir()
    return SharedCertificate(client, NAMESPACE, SERVICE, folder, now=clock)


def believed(bundle: bytes, certificate: bytes, at: dt.datetime, name: str = f"{SERVICE}.{NAMESPACE}.svc") -> bool:
    """Whether a client that trusts the bundle takes this certificate for that name."""
    store = x509.verification.Store(x509.load_pem_x509_certificates(bundle))
    verifier = x509.verification.PolicyBuilder().store(store).time(at).build_server_verifier(x509.DNSName(name))
    try:
        verifier.verify(x509.load_pem_x509_certificate(certificate), [])
    except x509.verification.VerificationError:
        return False
    return True


def test_a_certificate_is_believed_for_its_names_and_no_others() -> None:
    made = issue(service_names(SERVICE, NAMESPACE), NOW)
    assert believed(made[AUTHORITY], made[CERTIFICATE], NOW)
    assert not believed(made[AUTHORITY], made[CERTIFICATE], NOW, "kubernetes.default.svc")
    assert not believed(issue(["a"], NOW)[AUTHORITY], made[CERTIFICATE], NOW)


def test_it_is_due_before_it_ends_and_for_other_names() -> None:
    names_ = service_names(SERVICE, NAMESPACE)
    made = issue(names_, NOW)
    assert due({}, names_, NOW) == "there is none"
    assert not due(made, names_, NOW + LIFE / 2)
    assert "it ends at" in due(made, names_, NOW + LIFE * 0.7)
    assert "it is not for other" in due(made, ["other"], NOW)
    assert due({**made, CERTIFICATE: b"broken"}, names_, NOW)


def test_the_authority_before_stays_believed_until_it_ends_and_not_for_ever() -> None:
    names_ = service_names(SERVICE, NAMESPACE)
    made, at = [issue(names_, NOW)], NOW
    for _ in range(4):
        at += LIFE * 0.7
        made.append(issue(names_, at, made[-1][AUTHORITY]))
    last = made[-1][AUTHORITY]
    assert believed(last, made[-2][CERTIFICATE], at)
    assert len(x509.load_pem_x509_certificates(last)) <= 3
    assert not believed(last, made[0][CERTIFICATE], at)


async def test_replicas_share_one_and_renew_it_once(tmp_path: Path) -> None:
    clock = Clock()
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        make_namespace(api, NAMESPACE)
        replicas = [replica(client, tmp_path / str(number), clock) for number in range(3)]
        await asyncio.gather(*(one.refresh() for one in replicas))

        def held() -> set[bytes]:
            return {(tmp_path / str(number) / CERTIFICATE).read_bytes() for number in range(3)}

        (first,) = held()
        clock.now += LIFE * 0.7
        await replicas[0].refresh()
        assert len(held()) == 2
        # Who has not seen it yet is still believed by who trusts what is new.
        assert believed((tmp_path / "0" / AUTHORITY).read_bytes(), first, clock.now)
        await asyncio.gather(*(one.refresh() for one in replicas))
        (second,) = held()
        assert second != first
        key = tmp_path / "0" / KEY
        assert key.stat().st_mode & 0o077 == 0


async def test_a_secret_that_somebody_spoiled_is_written_again(tmp_path: Path) -> None:
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN)) as client:
        make_namespace(api, NAMESPACE)
        shared = replica(client, tmp_path / "a", Clock())
        await shared.refresh()
        path = resources.SECRETS.path(NAMESPACE, shared.name)
        await client.patch(path, {"data": {CERTIFICATE: base64.b64encode(b"nothing").decode()}})
        await shared.refresh()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "a" / CERTIFICATE, tmp_path / "a" / KEY)


def program(api: FakeApi, folder: Path, token: str = ADMIN) -> subprocess.Popen[str]:
    config = folder / "kubeconfig"
    context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
    document = {
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": context}],
        "current-context": "x",
    }
    config.write_text(yaml.safe_dump(document))
    flags = ("--kubeconfig", str(config))
    environment = {
        **os.environ,
        "ALIQUOT_KUBE_WEBHOOK_SERVICE": SERVICE,
        "ALIQUOT_KUBE_WEBHOOK_HOST": "127.0.0.1",
        "ALIQUOT_KUBE_WEBHOOK_PORT": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "aliquot.kube.program", "webhook", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


async def test_the_program_makes_its_certificate_and_is_believed(tmp_path: Path) -> None:
    async with fake_api() as api, KubeClient(Cluster(api.url, lambda: ADMIN), timeout_s=5.0) as client:
        for name in (NAMESPACE, "default"):
            make_namespace(api, name)
        kind = api.store.kind(policies.VERSION, "mutatingwebhookconfigurations")
        api.store.create(kind, "", configuration())
        process = program(api, tmp_path)
        try:
            assert process.stdout is not None
            line = await asyncio.to_thread(process.stdout.readline)
            port = json.loads(line.removeprefix("ready "))["address"].rpartition(":")[2]

            def trusted() -> Any:
                return kind.items["", webhook.CONFIGURATION]["webhooks"][0]["clientConfig"].get("caBundle")

            await eventually(trusted, "its authority")
            document = msgspec.json.decode(await client.get(resources.MUTATING_WEBHOOKS.path(name="aliquot-pods")))
            for each in document["webhooks"]:
                each["clientConfig"]["service"]["port"] = int(port)
            await client.put(resources.MUTATING_WEBHOOKS.path(name="aliquot-pods"), document)
            item = pod_document("a", {names.GPU_PERCENT: 25}, spec={"schedulerName": "default-scheduler"})
            made = msgspec.json.decode(await client.post(PATH, item))
            assert made["spec"]["schedulerName"] == names.SCHEDULER
        finally:
            process.terminate()
            await asyncio.to_thread(process.communicate)


async def test_the_program_says_which_right_it_lacks(tmp_path: Path) -> None:
    async with fake_api() as api:
        make_namespace(api, NAMESPACE)
        api.tokens["weak"] = "system:serviceaccount:aliquot-system:aliquot-webhook"
        api.faults.forbidden.add(("create", "secrets"))
        process = program(api, tmp_path, "weak")
        _, said = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 1
        assert 'cannot create resource "secrets"' in said
        assert "Traceback" not in said
