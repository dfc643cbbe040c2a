"""The pool's own authority, and servers that make their certificates themselves."""

from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509

from aliquot.agent import node_certificate, node_key
from aliquot.common.tls import MadePair, OwnTls, server_credentials
from aliquot.coordinator.agents.authority import AGENT_LIFE, Authority, NodeRequest
from aliquot.coordinator.own_tls import addresses_of, names_of
from aliquot.coordinator.settings.config import AccessSettings, Settings
from aliquot.v1 import enrolment_pb2, pool_pb2, pool_pb2_grpc
from tests.coordinator.process import serving
from tests.identity import with_token

SECRET, OTHER = bytes(range(32)), bytes(32)
NOW_MS = 1_800_000_000_000
KEY = node_key.make_key()


def moment(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)


def test_every_coordinator_of_a_pool_is_the_same_authority() -> None:
    one, two = Authority(SECRET), Authority(SECRET)
    assert one.pem == two.pem, "to the last byte, so that files and bundles don't differ"
    assert one.pool_id == two.pool_id
    assert Authority(OTHER).certificate.public_key() != one.certificate.public_key()
    node = x509.load_pem_x509_certificate(
        one.certify_node(NodeRequest(node_certificate.request(KEY, "n1")), "n1", NOW_MS)
    )
    node.verify_directly_issued_by(two.certificate)


def test_its_certificates_have_what_python_and_grpc_ask_for() -> None:
    authority = Authority(SECRET)
    request = NodeRequest(node_certificate.request(KEY, "n1"))
    node = x509.load_pem_x509_certificate(authority.certify_node(request, "n1", NOW_MS))
    server = x509.load_pem_x509_certificate(authority.serve_as(["a.example", "10.0.0.1"], NOW_MS).chain_pem)
    for certificate in (authority.certificate, node, server):
        for kind in (x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier, x509.KeyUsage, x509.BasicConstraints):
            assert certificate.extensions.get_extension_for_class(kind).oid == kind.oid
    names = node.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"spiffe://{authority.pool_id}/agent/n1"]
    assert not names.get_values_for_type(x509.DNSName), "a node never has a coordinator's name"
    used = node.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(used) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]


@pytest.mark.parametrize("off_min", [-10, 10])
def test_clocks_ten_minutes_apart_do_no_harm(off_min: int) -> None:
    made = Authority(SECRET).certify_node(
        NodeRequest(node_certificate.request(KEY, "n1")), "n1", NOW_MS + off_min * 60_000
    )
    certificate = x509.load_pem_x509_certificate(made)
    assert certificate.not_valid_before_utc < moment(NOW_MS) < certificate.not_valid_after_utc - AGENT_LIFE / 2


def test_python_itself_believes_the_pools_chain(tmp_path: Path) -> None:
    """With its strictest checks, which 3.13 has switched on."""
    authority = Authority(SECRET)
    now_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    made = authority.serve_as(["localhost", "127.0.0.1"], now_ms)
    (tmp_path / "cert.pem").write_bytes(made.chain_pem)
    (tmp_path / "key.pem").write_bytes(made.key_pem)
    serves = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serves.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    for trusted, believed in ((authority, True), (Authority(OTHER), False)):
        calls = ssl.create_default_context(cadata=trusted.pem.decode())
        calls.verify_flags |= ssl.VERIFY_X509_STRICT
        assert shaken(serves, calls) is believed


def shaken(serves: ssl.SSLContext, calls: ssl.SSLContext) -> bool:
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            with serves.wrap_socket(there, server_side=True) as secured:
                secured.recv(1)
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with calls.wrap_socket(here, server_hostname="localhost") as secured:
            secured.send(b"x")
        return True
    except ssl.SSLError:
        here.close()
        return False
    finally:
        thread.join()


async def test_a_servers_own_certificate_is_renewed_by_itself_and_two_authorities_are_trusted_at_once() -> None:
    """As in a rotation: whoever trusts a bundle goes on while what is served changes."""
    now_ms = int(dt.datetime.now(dt.UTC).timestamp() * 1000)
    clock = [now_ms]
    made: list[MadePair] = []
    authorities = [Authority(SECRET), Authority(OTHER)]

    def make() -> MadePair:
        made.append(authorities[len(made) % 2].serve_as(["localhost"], now_ms))
        return made[-1]

    server = grpc.aio.server()
    port = server.add_secure_port("localhost:0", server_credentials(OwnTls(make, lambda: clock[0])))
    await server.start()
    bundle = authorities[0].pem + authorities[1].pem

    async def reached(pem: bytes) -> bool:
        credentials = grpc.ssl_channel_credentials(root_certificates=pem)
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.secure_channel(f"localhost:{port}", credentials, options=options) as channel:
            call: Any = channel.unary_unary("/no.such/Method")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=5)
            return caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    assert await reached(bundle)
    assert await reached(authorities[0].pem)
    assert not await reached(authorities[1].pem), "a wrong authority"
    clock[0] = made[0].renew_ms
    assert await reached(bundle)
    clock[0] = now_ms  # the new one is not due yet
    assert await reached(authorities[1].pem)
    assert not await reached(authorities[0].pem)
    assert len(made) == 2
    await server.stop(None)


async def test_off_loopback_a_coordinator_without_certificates_makes_its_own(tmp_path: Path) -> None:
    flags = ("--listen", "0.0.0.0:0", "--journal", "memory:")
    env = {"ALIQUOT_COORDINATOR_ACCESS_DIR": str(tmp_path / "access")}
    async with serving(*flags, env=env) as process:
        ca = (tmp_path / "access" / "ca.pem").read_bytes()
        port = process.address.rpartition(":")[2]
        credentials = grpc.ssl_channel_credentials(root_certificates=ca)
        for address in (f"127.0.0.1:{port}", f"localhost:{port}"):
            async with with_token(grpc.aio.secure_channel(address, credentials)) as channel:
                stub: Any = pool_pb2_grpc.PoolServiceStub(channel)
                assert (await stub.GetStatus(pool_pb2.GetStatusRequest())).seq
                invite: Any = channel.unary_unary(
                    "/aliquot.v1.EnrolmentService/InviteNode",
                    request_serializer=enrolment_pb2.InviteNodeRequest.SerializeToString,
                    response_deserializer=enrolment_pb2.InviteNodeResponse.FromString,
                )
                answer = await invite(enrolment_pb2.InviteNodeRequest(node="n1"))
                assert answer.authorities_pem == ca
                assert answer.addresses
                assert not any(each.startswith(("0.0.0.0", "127.")) for each in answer.addresses)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            in_clear: Any = pool_pb2_grpc.PoolServiceStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await in_clear.GetStatus(pool_pb2.GetStatusRequest(), timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_coordinator_is_known_by_all_that_it_is_reached_by() -> None:
    settings = Settings(listen="0.0.0.0:7070", advertise="gpu.example:7070", access=AccessSettings(names=("10.1.2.3",)))
    assert {"gpu.example", "10.1.2.3", "localhost", "127.0.0.1"} <= set(names_of(settings))
    assert "0.0.0.0" not in names_of(settings)
    assert addresses_of(settings, "0.0.0.0:7070") == ("gpu.example:7070",)
    assert addresses_of(Settings(listen="127.0.0.1:0"), "127.0.0.1:1234") == ("127.0.0.1:1234",)


def test_secrets_do_not_show() -> None:
    made = Authority(SECRET).serve_as(["localhost"], NOW_MS)
    assert "PRIVATE" not in repr(made)
