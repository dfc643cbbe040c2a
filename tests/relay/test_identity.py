"""Who may speak for a node: the coordinator checks it, whether the agent comes by itself or through a relay."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from aliquot.common.errors import ConfigError
from aliquot.common.tls import ClientTls, channel_credentials
from aliquot.coordinator.agents.identity import Authorities, certificate_names
from aliquot.coordinator.errors import NotAllowed
from aliquot.coordinator.leading import Leading
from aliquot.coordinator.settings.config import AgentSettings, RelaySettings, TlsSettings
from aliquot.v1 import agent_pb2, agent_pb2_grpc, relay_pb2
from tests.certificates import Authority, openssl
from tests.coordinator import pool as pools
from tests.coordinator.pool import error_info, eventually, reason_of, settings_for, status_of
from tests.relay.relays import Relay, relaying

DENIED, UNAVAILABLE = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAVAILABLE


def settings_with(authority: Authority, *, relays: RelaySettings | None = None) -> Any:
    certificate, key = authority.certify("coordinator")
    return settings_for(
        tls=TlsSettings(certificate, key, authority.ca),
        relays=relays or RelaySettings(enabled=True, names=("relay-1",)),
        agents=AgentSettings(node_in_certificate=True, unenrolled=True),
    )


def here(address: str) -> str:
    """By the name that certificates have."""
    return address.replace("127.0.0.1", "localhost")


@dataclass(frozen=True)
class Secured:
    """A coordinator that believes only certificates."""

    address: str
    leading: Leading
    authority: Authority

    def relay(self, name: str, agents_by: Path | None) -> contextlib.AbstractAsyncContextManager[Relay]:
        """A relay of that name; `agents_by` must have signed its agents' certificates, or they need none."""
        certificate, key = self.authority.certify(name)
        flags = ["--tls-cert", str(certificate), "--tls-key", str(key), "--tls-coordinator-ca", str(self.authority.ca)]
        if agents_by is not None:
            flags += ["--tls-client-ca", str(agents_by)]
        return relaying("--coordinator", self.address, *flags)


@contextlib.asynccontextmanager
async def secured(authority: Authority) -> AsyncIterator[Secured]:
    async with pools.running(settings_with(authority)) as pool:
        yield Secured(here(pool.address), pool.leading, authority)


async def greet(address: str, tls: ClientTls, node_id: str) -> agent_pb2.Welcome:
    """What an agent with this certificate is answered when it says that it is this node."""
    async with grpc.aio.secure_channel(here(address), channel_credentials(tls)) as channel:
        call: Any = agent_pb2_grpc.AgentServiceStub(channel).Session()
        hello = agent_pb2.Hello(protocol_min=1, protocol_max=1, node_id=node_id, boot_id="boot")
        await call.write(agent_pb2.AgentMessage(hello=hello))
        answer = await call.read()
        assert answer is not grpc.aio.EOF
        call.cancel()
        welcome: agent_pb2.Welcome = answer.welcome
        return welcome


async def refused(address: str, tls: ClientTls, node_id: str) -> grpc.aio.AioRpcError:
    try:
        await greet(address, tls, node_id)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("it was not refused")


async def test_an_agent_speaks_for_the_node_that_its_certificate_names_and_for_no_other(authority: Authority) -> None:
    agent = ClientTls(authority.ca, *authority.certify("node-1"))
    async with secured(authority) as pool, pool.relay("relay-1", authority.ca) as relay:
        await eventually(relay.connected, "the relay has connected")
        for address in (pool.address, relay.address):
            assert (await greet(address, agent, "node-1")).session_epoch
            error = await refused(address, agent, "node-2")
            assert (error.code(), reason_of(error)) == (DENIED, "NOT_ALLOWED")
            assert "node-1" in (error.details() or "")
            nobody = await refused(address, ClientTls(authority.ca), "node-1")
            assert nobody.code() == UNAVAILABLE  # there is not even a connection


async def test_a_careless_relay_opens_no_door(authority: Authority, tmp_path: Path) -> None:
    """It lets in agents without certificates, or with somebody else's: the coordinator does not."""
    other = Authority.create(tmp_path / "other")
    foreign = ClientTls(authority.ca, *other.certify("node-1"))
    async with secured(authority) as pool:
        for agents_by, tls in ((None, ClientTls(authority.ca)), (other.ca, foreign)):
            async with pool.relay("relay-1", agents_by) as relay:
                await eventually(relay.connected, "the relay has connected")
                error = await refused(relay.address, tls, "node-1")
                assert (error.code(), reason_of(error)) == (DENIED, "NOT_ALLOWED")
                assert len(pool.leading.roster) == 0


async def test_nobody_is_a_relay_but_who_is_named_as_one(authority: Authority) -> None:
    agent = ClientTls(authority.ca, *authority.certify("node-1"))
    async with secured(authority) as pool:
        async with grpc.aio.secure_channel(pool.address, channel_credentials(agent)) as channel:
            call: Any = channel.stream_stream("/aliquot.v1.RelayService/Carry")()
            batch = relay_pb2.RelayBatch(greeting=relay_pb2.RelayGreeting(protocol_min=1, protocol_max=1))
            await call.write(batch.SerializeToString())
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
            assert (refusal.value.code(), reason_of(refusal.value)) == (DENIED, "NOT_ALLOWED")
            assert "relays.names" in error_info(status_of(refusal.value)).metadata["hint"]
        async with pool.relay("relay-2", authority.ca) as relay:
            assert reason_of(await refused(relay.address, agent, "node-1")) == "NOT_LEADER"


def test_a_certificate_counts_as_it_would_at_a_handshake(authority: Authority, tmp_path: Path) -> None:
    """By our authorities, for clients, not by one who may not sign; and authorities are read again when they change."""
    ca_file = tmp_path / "trusted.pem"
    shutil.copy(authority.ca, ca_file)
    authorities = Authorities(ca_file)
    node, key = authority.certify("node-1")
    assert certificate_names(authorities.auth_context(node.read_bytes())) == {"node-1", "localhost", "127.0.0.1"}
    others = Authority.create(tmp_path / "others")
    foreign, _ = others.certify("node-1")
    server = sign(tmp_path, authority.ca, authority.folder / "ca.key", "extendedKeyUsage=serverAuth")
    below = sign(tmp_path, node, key, "subjectAltName=DNS:node-1")  # by a node, which is no authority
    for bad in (foreign.read_bytes(), server.read_bytes(), below.read_bytes() + node.read_bytes(), b"", b"-----"):
        with pytest.raises(NotAllowed):
            authorities.auth_context(bad)
    ca_file.write_text("no certificate")
    assert authorities.auth_context(node.read_bytes())
    shutil.copy(others.ca, ca_file)
    assert authorities.auth_context(foreign.read_bytes())
    with pytest.raises(NotAllowed):
        authorities.auth_context(node.read_bytes())


def sign(folder: Path, ca: Path, key: Path, extensions: str) -> Path:
    """A certificate with these extensions."""
    (folder / "extensions").write_text(extensions + "\n")
    request, certificate = folder / "request.csr", folder / f"{len(list(folder.iterdir()))}.pem"
    openssl("req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=x", "-keyout", folder / "x.key", "-out", request)
    openssl("x509", "-req", "-in", request, "-CA", ca, "-CAkey", key, "-CAcreateserial", "-days", "2",
            "-extfile", folder / "extensions", "-out", certificate)  # fmt: skip
    return certificate


def test_settings_that_would_open_a_door_are_refused(authority: Authority) -> None:
    with pytest.raises(ConfigError, match="no certificate is a relay's"):
        settings_with(authority, relays=RelaySettings(enabled=True)).relay_rules()
    with pytest.raises(ConfigError, match="show no certificates"):
        settings_for(agents=AgentSettings(node_in_certificate=True)).relay_rules()
