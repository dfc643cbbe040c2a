"""Listening in the clear is refused where others can connect; certificates are checked, and renewed in service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest

from aliquot.common.errors import SecurityError
from aliquot.common.tls import (
    ClientTls,
    ServerTls,
    channel_credentials,
    is_local_address,
    require_secure,
    server_credentials,
)
from tests.certificates import Authority, openssl


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:7700",
        "127.8.9.10:1",
        "localhost:7700",
        "LOCALHOST",
        "[::1]:7700",
        "::1",
        "[::ffff:127.0.0.1]:1",
        "unix:/run/aliquot.sock",
        "unix:///run/aliquot.sock",
        "unix-abstract:aliquot",
        "ipv4:127.0.0.1:80",
        "ipv6:[::1]:80",
        "dns:///localhost:80",
        "dns:localhost:80",
    ],
)
def test_this_machine_only(address: str) -> None:
    assert is_local_address(address)
    require_secure(address, None)


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0:7700",
        "[::]:7700",
        "*:7700",
        ":7700",
        "",
        "10.0.0.1:7700",
        "[fe80::1%eth0]:1",
        "[::ffff:10.0.0.1]:1",
        "gpu-1:7700",
        "localhost.example.com:1",
        "127.0.0.1.example.com:1",
        "vsock:2:1",
        "dns:///example.com:80",
    ],
)
def test_listening_where_others_can_connect_needs_tls(address: str) -> None:
    with pytest.raises(SecurityError) as caught:
        require_secure(address, None)
    assert caught.value.reason == "INSECURE"
    require_secure(address, ServerTls(Path("c"), Path("k")))


@pytest.fixture
def servers() -> Iterator[list[grpc.Server]]:
    started: list[grpc.Server] = []
    yield started
    for server in started:
        server.stop(None).wait()


def serve(servers: list[grpc.Server], tls: ServerTls) -> int:
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=2), handlers=[_Echo()])
    port = server.add_secure_port("127.0.0.1:0", server_credentials(tls))
    server.start()
    servers.append(server)
    return port


class _Echo(grpc.GenericRpcHandler):
    """Answers with what it was sent and the common name of the client's certificate."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
            # A list of bytes, whatever the stub says.
            names: object = context.auth_context().get("x509_common_name")
            return request + b"".join(names if isinstance(names, list) else [])

        return grpc.unary_unary_rpc_method_handler(echo)


def call(port: int, tls: ClientTls) -> bytes:
    with grpc.secure_channel(f"localhost:{port}", channel_credentials(tls)) as channel:
        echo: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/test/Echo")
        return echo(b"hello ", timeout=20)


def refused_call(port: int, tls: ClientTls) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(port, tls)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_with_a_certificate_is_trusted_by_who_trusts_its_authority(
    authority: Authority, servers: list[grpc.Server]
) -> None:
    port = serve(servers, ServerTls(*authority.certify("server")))
    assert call(port, ClientTls(authority.ca)) == b"hello "
    refused_call(port, ClientTls())


def test_mutual_tls_names_the_client_and_refuses_others(authority: Authority, servers: list[grpc.Server]) -> None:
    port = serve(servers, ServerTls(*authority.certify("server"), client_ca_file=authority.ca))
    assert call(port, ClientTls(authority.ca, *authority.certify("launcher"))) == b"hello launcher"
    refused_call(port, ClientTls(authority.ca))


def test_a_renewed_certificate_needs_no_restart(
    authority: Authority, tmp_path: Path, servers: list[grpc.Server], caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = authority.certify("server")
    port = serve(servers, ServerTls(certificate, key))
    assert call(port, ClientTls(authority.ca)) == b"hello "

    # A broken renewal keeps the old one in service, and says so.
    key.write_text("gone")
    assert call(port, ClientTls(authority.ca)) == b"hello "
    assert "can't be used" in caplog.text

    other = Authority.create(tmp_path / "other")
    renewed_certificate, renewed_key = other.certify("server")
    renewed_certificate.replace(certificate)
    renewed_key.replace(key)
    assert call(port, ClientTls(other.ca)) == b"hello "
    refused_call(port, ClientTls(authority.ca))

    # Files that vanish for a while are no renewal either.
    certificate.unlink()
    assert call(port, ClientTls(other.ca)) == b"hello "


def test_files_that_can_not_be_used_are_refused_at_once(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.certify("server")
    _, other_key = authority.certify("other")
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    encrypted = tmp_path / "encrypted.key"
    openssl("pkey", "-in", key, "-aes128", "-passout", "pass:secret", "-out", encrypted)
    for tls, problem in [
        (ServerTls(tmp_path / "absent.pem", key), "No such file"),
        (ServerTls(certificate, tmp_path / "absent.key"), "No such file"),
        (ServerTls(key, key), "no CERTIFICATE in it"),
        (ServerTls(certificate, certificate), "no PRIVATE KEY in it"),
        (ServerTls(certificate, other_key), "not a usable pair"),
        (ServerTls(certificate, encrypted), "not a usable pair"),
        (ServerTls(certificate, key, empty), "no CERTIFICATE in it"),
    ]:
        with pytest.raises(SecurityError, match=problem):
            server_credentials(tls)
    for client, problem in [
        (ClientTls(empty), "no CERTIFICATE in it"),
        (ClientTls(certificate_file=certificate), "needs its key"),
        (ClientTls(key_file=key), "needs its key"),
        (ClientTls(None, certificate, other_key), "not a usable pair"),
    ]:
        with pytest.raises(SecurityError, match=problem):
            channel_credentials(client)
