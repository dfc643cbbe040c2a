"""TLS from an argument and from the settings; and what is said when it doesn't match."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aliquot.client import ClientTls, Unavailable
from aliquot.common.errors import SecurityError
from tests.certificates import Authority
from tests.client.scripted_coordinator import ScriptedCoordinator


@pytest.fixture
def secure(authority: Authority) -> Iterator[ScriptedCoordinator]:
    certificate, key = authority.certify("server")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    server = ScriptedCoordinator(credentials=credentials)
    server.start()
    yield server
    server.stop()


def test_an_authority_given_as_an_argument(
    connect: Callable[..., Any], secure: ScriptedCoordinator, authority: Authority
) -> None:
    with connect(secure.address, tls=ClientTls(ca_file=authority.ca)) as pool, pool.lease("1", ttl_s=1) as lease:
        secure.wait_for(lambda: secure.kept[lease.lease_id] >= 1)


def test_an_authority_from_the_environment(
    connect: Callable[..., Any],
    secure: ScriptedCoordinator,
    authority: Authority,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALIQUOT_CLIENT_TLS_CA_FILE", str(authority.ca))
    assert connect(secure.address).status().granting


def test_who_does_not_trust_it_is_told(connect: Callable[..., Any], secure: ScriptedCoordinator) -> None:
    with pytest.raises(Unavailable, match=secure.address):
        connect(secure.address, timeout_s=0.5).status()


def test_half_a_pair_is_refused(connect: Callable[..., Any], secure: ScriptedCoordinator, tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="needs its key"):
        connect(secure.address, tls=ClientTls(certificate_file=tmp_path / "client.pem"))
