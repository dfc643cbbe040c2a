"""The token of every call: found where the user has it, never sent where others could read it, exchanged meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from aliquot.client import ClientTls, NotLoggedIn, NotPermitted, Pool
from aliquot.client.credentials import Credential, CredentialsFile
from aliquot.common.connection_string import decode
from aliquot.common.errors import ConfigError, SecurityError
from tests.certificates import Authority
from tests.client.scripted_coordinator import Fault, ScriptedCoordinator
from tests.polling import eventually

TOKEN = "alq_0123456789ab_" + "5" * 64
NEWER = "alq_ba9876543210_" + "6" * 64


def keep(path: Path, token: str) -> Path:
    path.touch(mode=0o600)
    path.write_text(token)
    return path


@pytest.fixture
def credentials(tmp_path: Path) -> CredentialsFile:
    """Those of the tests' user."""
    return CredentialsFile.of({"XDG_CONFIG_HOME": str(tmp_path / "config")})


# ------------------------------------------------------------------------------------------------------- every call


def test_it_goes_with_every_kind_of_call(connect: Callable[..., Any], coordinator: ScriptedCoordinator) -> None:
    coordinator.accepted = {TOKEN}
    pool = connect(coordinator.address, token=TOKEN)
    with pool.lease("1", ttl_s=1) as lease:
        coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] >= 1)
        events = pool.watch(after_seq=1)
        assert next(events)
        events.close()
        assert [each.lease_id for each in pool.leases()] == [lease.lease_id]
    for call in ("Allocate", "KeepAlive", "Watch", "List", "Release"):
        assert set(coordinator.shown[call]) == {TOKEN}, call


def test_without_one_the_coordinator_says_so_and_the_error_how_to_get_one(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator
) -> None:
    coordinator.accepted = {TOKEN}
    with pytest.raises(NotLoggedIn) as refused:
        connect(coordinator.address).status()
    assert refused.value.stated_reason == "TOKEN_MISSING"
    assert "aliquot login" in refused.value.hint
    assert "aliquot access bootstrap" in refused.value.hint
    assert coordinator.calls["GetStatus"] == 1


def test_one_that_does_not_count_is_not_sent_again_and_its_place_is_named(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, tmp_path: Path
) -> None:
    coordinator.accepted = set()
    file = keep(tmp_path / "token", TOKEN)
    with pytest.raises(NotLoggedIn) as refused:
        connect(coordinator.address, token_file=file).status()
    assert str(file) in refused.value.hint
    assert TOKEN not in refused.value.explain()
    assert coordinator.calls["GetStatus"] == 1


def test_expired_is_not_forbidden(connect: Callable[..., Any], coordinator: ScriptedCoordinator) -> None:
    coordinator.fail("GetStatus", Fault(grpc.StatusCode.UNAUTHENTICATED, "TOKEN_EXPIRED", "ann's token has expired"))
    coordinator.fail(
        "GetStatus",
        Fault(
            grpc.StatusCode.PERMISSION_DENIED,
            "ROLE_MISSING",
            "needs user on vision; you are viewer",
            metadata={"hint": "aliquot access grant ann user --tenant vision"},
        ),
    )
    pool = connect(coordinator.address, token=TOKEN)
    with pytest.raises(NotLoggedIn, match="has expired"):
        pool.status()
    with pytest.raises(NotPermitted, match="needs user on vision") as refused:
        pool.status()
    assert refused.value.hint == "aliquot access grant ann user --tenant vision"
    assert coordinator.calls["GetStatus"] == 2


# --------------------------------------------------------------------------------------------------- where it is from


def test_an_argument_beats_variables_beat_the_file_beats_the_credentials(
    coordinator: ScriptedCoordinator, credentials: CredentialsFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def shown(**options: Any) -> str:
        with Pool(coordinator.address, agent_sockets=[], **options) as pool:
            pool.status()
        return coordinator.shown["GetStatus"][-1]

    assert shown() == ""
    credentials.put(Credential((coordinator.address,), "kept"))
    assert shown() == "kept"
    config = tmp_path / "config" / "aliquot" / "config.toml"
    config.write_text(f'[client]\ntoken_file = "{keep(tmp_path / "configured", "of-config")}"\n')
    assert shown() == "of-config"
    monkeypatch.setenv("ALIQUOT_TOKEN", "of-variable")
    assert shown() == "of-variable"
    monkeypatch.setenv("ALIQUOT_TOKEN_FILE", str(keep(tmp_path / "named", "of-named-file")))
    assert shown() == "of-named-file"
    assert shown(token_file=keep(tmp_path / "given", "of-given-file")) == "of-given-file"
    assert shown(token="given") == "given"
    assert shown(token="") == ""


def test_a_token_is_for_its_pool(
    coordinator: ScriptedCoordinator, credentials: CredentialsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials.put(Credential(("elsewhere:7070",), TOKEN), current=True)
    with Pool(coordinator.address) as pool:
        pool.status()
    assert coordinator.shown["GetStatus"] == [""]


def test_where_none_is_named_the_coordinator_is_that_of_the_last_login(
    coordinator: ScriptedCoordinator, credentials: CredentialsFile
) -> None:
    coordinator.accepted = {TOKEN}
    credentials.put(Credential((coordinator.address,), TOKEN), current=True)
    with Pool() as pool:
        assert pool.addresses == (coordinator.address,)
        assert pool.status().granting
        assert pool.token_origin == str(credentials.path)


def test_on_the_coordinators_machine_whoever_may_read_its_token_has_it(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("aliquot.client.local.MACHINE_STATE", tmp_path)
    (tmp_path / "coordinator.db.access").mkdir(0o700)
    file = keep(tmp_path / "coordinator.db.access" / "admin.token", TOKEN)
    with Pool(coordinator.address) as pool:
        pool.status()
    assert coordinator.shown["GetStatus"] == [TOKEN]
    with Pool("gpu-a:7070") as elsewhere:
        assert elsewhere.token_origin != str(file)


def test_a_configuration_file_is_no_place_for_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config" / "aliquot" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[client]\ntoken = "{TOKEN}"\n')
    with pytest.raises(ConfigError, match="no place") as refused:
        Pool()
    assert TOKEN not in refused.value.explain()


def test_a_token_and_a_file_with_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        Pool("localhost", token=TOKEN, token_file=tmp_path)


# ------------------------------------------------------------------------------------------------------- in the clear


@pytest.mark.parametrize("address", ["gpu-a:7070", "10.0.0.1:7070", "0.0.0.0:7070", "dns:///gpu-a:7070", "[::]:7070"])
def test_it_is_not_sent_in_the_clear_beyond_this_machine(address: str, connect: Callable[..., Any]) -> None:
    with pytest.raises(SecurityError, match="without TLS") as refused:
        connect(address, token=TOKEN)
    assert "aliquot login" in refused.value.hint
    assert TOKEN not in refused.value.explain()
    assert connect(address).addresses  # nothing to lose
    assert connect(address, token=TOKEN, tls=ClientTls()).addresses


def test_nor_where_another_coordinator_names_as_the_leader(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator
) -> None:
    away = Fault(grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", metadata={"leader": "gpu-b:7070"})
    coordinator.fail("GetStatus", away)
    pool = connect(coordinator.address, token=TOKEN)
    with pytest.raises(SecurityError, match="gpu-b:7070"):
        pool.status()
    assert pool.status().granting  # the next call asks again whom it knows
    coordinator.fail("Watch", away)
    with pytest.raises(SecurityError, match="gpu-b:7070"):
        next(pool.watch())


def test_keeping_a_lease_alive_outlives_a_leader_to_whom_it_can_not_go(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator
) -> None:
    coordinator.fail("KeepAlive", Fault(grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", metadata={"leader": "gpu-b:7070"}))
    with connect(coordinator.address, token=TOKEN).lease("1", ttl_s=1) as lease:
        coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] >= 1)


def test_the_authority_of_the_login_makes_tls_by_itself(
    connect: Callable[..., Any], authority: Authority, credentials: CredentialsFile
) -> None:
    certificate, key = authority.certify("server")
    server = ScriptedCoordinator(
        credentials=grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    )
    server.accepted = {TOKEN}
    server.start()
    try:
        credentials.put(Credential((server.address,), TOKEN, authority.ca.read_text()))
        pool = connect(server.address)
        assert pool.status().granting
        said = decode(pool.connection_string(NEWER, addresses=["gpu-a"]))
        assert said.addresses == ("gpu-a:7070",)
        assert (said.token, said.ca_pem) == (NEWER, authority.ca.read_text())
    finally:
        server.stop()


# --------------------------------------------------------------------------------------------- exchanged while it runs


@pytest.fixture
def rotating(coordinator: ScriptedCoordinator, tmp_path: Path) -> Path:
    """A file whose token is about to be exchanged."""
    coordinator.accepted = {TOKEN}
    return keep(tmp_path / "token", TOKEN)


def test_a_file_is_read_again_when_its_token_is_refused_and_another_one_is_there(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, rotating: Path
) -> None:
    pool = connect(coordinator.address, token_file=rotating)
    assert pool.status().granting
    coordinator.accepted = {NEWER}
    keep(rotating, NEWER)
    assert pool.status().granting
    assert pool.status().granting
    assert coordinator.shown["GetStatus"] == [TOKEN, TOKEN, NEWER, NEWER]


def test_once(connect: Callable[..., Any], coordinator: ScriptedCoordinator, rotating: Path) -> None:
    pool = connect(coordinator.address, token_file=rotating)
    coordinator.accepted = set()
    keep(rotating, NEWER)
    with pytest.raises(NotLoggedIn):
        pool.status()
    assert coordinator.shown["GetStatus"] == [TOKEN, NEWER]
    rotating.unlink()
    with pytest.raises(NotLoggedIn):
        pool.status()
    assert coordinator.shown["GetStatus"] == [TOKEN, NEWER, NEWER]


def test_a_login_while_a_program_runs_is_enough(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, credentials: CredentialsFile
) -> None:
    coordinator.accepted = {TOKEN}
    pool = connect(coordinator.address)
    with pytest.raises(NotLoggedIn):
        pool.status()
    credentials.put(Credential((coordinator.address,), TOKEN))
    assert pool.status().granting


def test_leases_are_kept_alive_and_changes_followed_across_an_exchange(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, rotating: Path
) -> None:
    pool = connect(coordinator.address, token_file=rotating)
    lease = pool.lease("1", ttl_s=1)
    coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] >= 1)
    events = pool.watch(after_seq=1)
    assert next(events)
    # The coordinator ends the streams of a token that has expired.
    coordinator.accepted = {NEWER}
    keep(rotating, NEWER)
    coordinator.stop()
    coordinator.start()
    before = coordinator.kept[lease.lease_id]
    coordinator.wait_for(lambda: coordinator.kept[lease.lease_id] > before)
    assert coordinator.shown["KeepAlive"][-1] == NEWER
    pool.allocate("1")
    assert next(events)
    eventually(lambda: coordinator.shown["Watch"][-1] == NEWER)
    events.close()
    pool.release(lease.lease_id)


# ------------------------------------------------------------------------------------------------------- nowhere else


def test_it_is_in_nothing_that_is_said(
    connect: Callable[..., Any], coordinator: ScriptedCoordinator, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.DEBUG)
    file = keep(tmp_path / "token", TOKEN)
    pool = connect(coordinator.address, token_file=file)
    coordinator.accepted = set()
    with pytest.raises(NotLoggedIn) as refused:
        pool.status()
    said = [caplog.text, repr(pool), repr(vars(refused.value)), refused.value.explain()]
    assert [text for text in said if TOKEN in text or TOKEN[17:] in text] == []
