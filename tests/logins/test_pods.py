"""Pods log in by Kubernetes' word: a small API server that reviews tokens stands in for a cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import grpc.aio
import pytest

from aliquot.cli._exits import Exit
from aliquot.cli.main import main
from aliquot.client import Pool, _sessions
from aliquot.common.clock import SystemClock
from aliquot.common.errors import ConfigError, SecurityError
from aliquot.coordinator.core.books.roles import Grant, Role
from aliquot.coordinator.errors import LoginRefused, LoginRuleMissing, Overloaded, ProviderUnavailable
from aliquot.coordinator.logins import pods
from aliquot.coordinator.logins.config import PodRule, PodSettings
from aliquot.coordinator.logins.pods import PodLogins
from aliquot.v1 import access_pb2, access_pb2_grpc
from tests.access.people import OWN, Person
from tests.coordinator.pool import running, settings_for
from tests.identity import access
from tests.logins.api_server import ApiServer, api_server
from tests.manual_clock import ManualClock


@pytest.fixture
def cluster() -> Iterator[ApiServer]:
    with api_server() as made:
        yield made


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock(0).now_ms())


def settings_of(cluster: ApiServer, folder: Path) -> PodSettings:
    (folder / "own").write_text(cluster.own_token + "\n")
    rules = (
        PodRule(namespace="training", role="user", tenant=OWN),
        PodRule(namespace="training", account="boss", role="manager", tenant=OWN),
    )
    return PodSettings(rules=rules, api=cluster.url, token_file=folder / "own")


@pytest.fixture
def logins(cluster: ApiServer, clock: ManualClock, tmp_path: Path) -> PodLogins:
    return PodLogins(settings_of(cluster, tmp_path), clock)


async def test_namespace_and_account_give_roles(cluster: ApiServer, logins: PodLogins) -> None:
    vouched = await logins.vouch(cluster.token("training", "trainer"))
    assert (vouched.principal, vouched.by) == ("sa/training/trainer", pods.BY)
    assert vouched.grants == (Grant(Role.USER, OWN),)
    boss = await logins.vouch(cluster.token("training", "boss"))
    assert boss.grants == (Grant(Role.USER, OWN), Grant(Role.MANAGER, OWN))
    with pytest.raises(LoginRuleMissing, match="trainer of namespace elsewhere"):
        await logins.vouch(cluster.token("elsewhere", "trainer"))


async def test_what_kubernetes_does_not_vouch_for(cluster: ApiServer, logins: PodLogins, clock: ManualClock) -> None:
    forged = cluster.token("training", "trainer", known=False)
    with pytest.raises(LoginRefused, match="does not take"):
        await logins.vouch(forged)
    cluster.knows_audiences = False
    with pytest.raises(LoginRefused, match="does not take"):
        await logins.vouch(cluster.token("training", "trainer"))
    asked = cluster.asked
    for text in (
        "nonsense",
        "x" * 20_000,
        cluster.token("training", "trainer", aud=["https://kubernetes.default.svc"]),
        cluster.token("training", "trainer", exp=None),
        cluster.token("training", "trainer", exp=clock.now_ms() // 1000 - 1),
        cluster.token("training", "trainer", sub="system:node:n1"),
    ):
        with pytest.raises(LoginRefused):
            await logins.vouch(text)
    assert cluster.asked == asked  # for those nobody is asked


async def test_a_verdict_is_kept_for_a_minute(cluster: ApiServer, logins: PodLogins, clock: ManualClock) -> None:
    token = cluster.token("training", "trainer")
    for _ in range(3):
        await logins.vouch(token)
    assert cluster.asked == 1
    cluster.known.clear()  # the pod is deleted
    clock.advance(pods.VERDICT_MS)
    with pytest.raises(LoginRefused):
        await logins.vouch(token)


async def test_a_cluster_that_can_not_be_asked(
    cluster: ApiServer, logins: PodLogins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").write_text("not ours")
    with pytest.raises(ProviderUnavailable, match="401") as refused:
        await logins.vouch(cluster.token("training", "trainer"))
    assert "auth-delegator" in refused.value.hint
    (tmp_path / "own").unlink()
    with pytest.raises(ProviderUnavailable):
        await logins.vouch(cluster.token("training", "trainer"))
    (tmp_path / "own").write_text(cluster.own_token)
    cluster.gate.clear()
    monkeypatch.setattr(pods, "WAITING_MAX", 1)
    waiting = asyncio.ensure_future(logins.vouch(cluster.token("training", "a")))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await logins.vouch(cluster.token("training", "b"))
    cluster.gate.set()
    await waiting


def test_rules_without_a_cluster(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="no pod"):
        PodLogins(PodSettings(rules=(PodRule(namespace="n", role="user"),)), clock)


async def test_a_pod_logs_in_and_asks_for_a_lease(
    cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "projected"
    token.write_text(cluster.token("training", "trainer") + "\n")
    monkeypatch.delenv("ALIQUOT_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with running(settings_for(access=access(pods=settings_of(cluster, tmp_path)))) as pool:
        await pool.declare()
        async with grpc.aio.insecure_channel(pool.address) as channel:
            door = access_pb2_grpc.AccessServiceStub(channel)
            assert (await door.DescribeLogin(access_pb2.DescribeLoginRequest())).pods_audience == "aliquot"
            answer = await door.Login(access_pb2.LoginRequest(service_account_token=token.read_text().strip()))
        lease = await Person("", answer.token, pool.channel).lease(OWN)
        assert lease.asked_by == "sa/training/trainer"
        command = ("login", "--service-account", str(token), "-c", pool.address)
        assert await asyncio.to_thread(main, command) == Exit.OK
        assert await asyncio.to_thread(main, ["ls"]) == Exit.OK


async def test_a_program_in_a_pod_opens_another_session_before_its_own_ends(
    cluster: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projected = tmp_path / "projected"
    projected.write_text(cluster.token("training", "trainer", exp=int(time.time()) + 10) + "\n")
    monkeypatch.delenv("ALIQUOT_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("ALIQUOT_SERVICE_ACCOUNT_FILE", str(projected))
    async with running(settings_for(access=access(pods=settings_of(cluster, tmp_path)))) as pool:
        own = await asyncio.to_thread(Pool, pool.address, tenant=OWN)
        first = (await asyncio.to_thread(own.access.whoami)).token_id
        projected.write_text(cluster.token("training", "trainer"))  # as Kubernetes does, in time
        seen = first
        identity = None
        while seen == first:
            identity = await asyncio.to_thread(own.access.whoami)
            assert identity.principal == "sa/training/trainer"
            seen = identity.token_id
        assert identity is not None
        assert identity.expires_ms > time.time() * 1000 + 60_000, "of the new token"

        # One that was taken away is opened again, as long as Kubernetes vouches for the pod.
        admin = access_pb2_grpc.AccessServiceStub(pool.channel)
        await asyncio.sleep(_sessions.REST_S)
        await admin.RevokeTokens(access_pb2.RevokeTokensRequest(principal="sa/training/trainer"))
        assert (await asyncio.to_thread(own.access.whoami)).token_id not in (first, seen)
        await asyncio.to_thread(own.close)


def test_a_pod_without_a_file_says_what_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALIQUOT_TOKEN", raising=False)
    for text in (None, " "):
        file = tmp_path / "projected"
        if text is not None:
            file.write_text(text)
        monkeypatch.setenv("ALIQUOT_SERVICE_ACCOUNT_FILE", str(file))
        with pytest.raises(ConfigError) as refused:
            Pool("127.0.0.1:1")
        assert "service account token" in refused.value.hint


def test_a_pods_token_is_not_sent_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ALIQUOT_TOKEN", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "projected").write_text("text")
    monkeypatch.setenv("ALIQUOT_SERVICE_ACCOUNT_FILE", str(tmp_path / "projected"))
    with pytest.raises(SecurityError, match="without TLS"):
        Pool("192.0.2.7:7070")
