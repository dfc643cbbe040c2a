"""Something answers where a coordinator is looked for, and is none: the error says what was met, and what to do."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from aliquot.client import Pool, RetryPolicy, Unavailable
from aliquot.common.tls import ClientTls
from tests.certificates import Authority
from tests.client.scripted_coordinator import ScriptedCoordinator

ONCE = RetryPolicy(enabled=False)


@pytest.fixture
def web_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def met(address: str, tls: ClientTls | None = None) -> Unavailable:
    with closing(Pool(address, timeout_s=10, retry=ONCE, tls=tls)) as pool, pytest.raises(Unavailable) as caught:
        pool.get("l-1")
    assert "aliquot up" not in caught.value.hint
    return caught.value


def test_a_web_server(web_server: str) -> None:
    error = met(web_server)
    assert "web server" in error.message
    assert "7070" in error.hint


def test_no_tls_where_tls_was_asked_for(coordinator: ScriptedCoordinator, authority: Authority) -> None:
    error = met(coordinator.address, ClientTls(ca_file=authority.ca))
    assert "speaks no TLS" in error.message


def test_a_name_that_nobody_knows() -> None:
    assert "does not know that name" in met("localhost.invalid:7070", ClientTls(ca_pem="")).message


def test_who_signed_is_not_trusted(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.certify("server")
    credentials = grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])
    server = ScriptedCoordinator(credentials=credentials)
    server.start()
    try:
        other = Authority.create(tmp_path / "other")
        assert "signed by nobody" in met(server.address, ClientTls(ca_file=other.ca)).message
        assert "may want TLS" in met(server.address).message
        # Linux connects to itself there, and the certificate names 127.0.0.1 alone.
        elsewhere = server.address.replace("127.0.0.1", "0.0.0.0")
        assert "for another name" in met(elsewhere, ClientTls(ca_file=authority.ca)).message
    finally:
        server.stop()


def test_the_web_s_proxy_is_not_asked(
    coordinator: ScriptedCoordinator, web_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.setenv(name, f"http://{web_server}" if name != "no_proxy" else "")
    with Pool(coordinator.address, timeout_s=10, retry=ONCE) as pool:
        assert pool.status().granting
