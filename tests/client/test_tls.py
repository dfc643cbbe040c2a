"""TLS from an argument and from the settings; and what is said when it doesn't match."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from aliquot.client import ClientTls, Unavailable
from aliquot.common.errors import SecurityError
from tests.client.scripted_coordinator import ScriptedCoordinator

OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make certificates")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for this machine, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "server.pem", folder / "server.key"
    command = (
        f"{OPENSSL} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout {key} -out {certificate}"
    )
    subprocess.run([*command.split(), "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return certificate, key


@pytest.fixture
def secure(certificate: tuple[Path, Path]) -> Iterator[ScriptedCoordinator]:
    pair = [(certificate[1].read_bytes(), certificate[0].read_bytes())]
    server = ScriptedCoordinator(credentials=grpc.ssl_server_credentials(pair))
    server.start()
    yield server
    server.stop()


def test_an_authority_given_as_an_argument(
    connect: Callable[..., Any], secure: ScriptedCoordinator, certificate: tuple[Path, Path]
) -> None:
    with connect(secure.address, tls=ClientTls(ca_file=certificate[0])) as pool, pool.lease("1", ttl_s=1) as lease:
        secure.wait_for(lambda: secure.kept[lease.lease_id] >= 1)


def test_an_authority_from_the_environment(
    connect: Callable[..., Any],
    secure: ScriptedCoordinator,
    certificate: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALIQUOT_CLIENT_TLS_CA_FILE", str(certificate[0]))
    assert connect(secure.address).status().granting


def test_who_does_not_trust_it_is_told(connect: Callable[..., Any], secure: ScriptedCoordinator) -> None:
    with pytest.raises(Unavailable, match=secure.address):
        connect(secure.address, timeout_s=0.5).status()


def test_half_a_pair_is_refused(connect: Callable[..., Any], secure: ScriptedCoordinator, tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match="needs its key"):
        connect(secure.address, tls=ClientTls(certificate_file=tmp_path / "client.pem"))
