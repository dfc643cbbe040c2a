"""Joining a pool: `aliquot-agent join STRING`, run on the node.

The key is made here and stays here; an invite and a request that is signed by the key go to the coordinator. With the
same invite the same key comes again, also after this program was killed, so an answer that was lost costs nothing.
Joining anew, with another invite, puts another key in the place of the old one. The agent need not be stopped for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import grpc
import msgspec

from aliquot.agent.connection import Coordinators, SessionEnded, channel_to, connect, ending_of_error
from aliquot.agent.devices.base import DeviceBackend, DeviceError
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity, boot_id
from aliquot.agent.disk.membership import (
    Joining,
    Membership,
    read_joining,
    read_membership,
    write_joining,
    write_membership,
)
from aliquot.agent.disk.private import require_private
from aliquot.agent.machine import host_name
from aliquot.agent.processes.apart import Apart, apart, here
from aliquot.agent.settings import Settings
from aliquot.common.addresses import Addresses
from aliquot.common.backoff import Backoff
from aliquot.common.connection_string import PREFIX, ConnectionString, decode
from aliquot.common.errors import AliquotError, ConfigError, SecurityError
from aliquot.common.names import validate_node
from aliquot.common.own_files import make_private
from aliquot.common.tls import ClientTls, fingerprints, is_local_address
from aliquot.common.tokens import bearer, invite_id_of, token_sha256
from aliquot.v1 import access_pb2, access_pb2_grpc, enrolment_pb2, enrolment_pb2_grpc

log = logging.getLogger(__name__)

TRIES_S = 60.0
_CALL_S = 10.0
_DOTS_IN_A_TOKEN = 2
"""Of a service account: header, claims and signature."""
_AWAY = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED})


class JoinRefused(AliquotError):
    """The coordinator does not let this node join, or none could be reached."""


class Joined(msgspec.Struct, frozen=True):
    """A node that is in."""

    membership: Membership
    name: str


async def join(
    settings: Settings, string: ConnectionString, make_backend: Callable[[], DeviceBackend], apart: Apart = here
) -> Joined:
    """Join the pool that the string is of, and keep what that brings. `make_backend` is asked only where the node has
    no id yet. Raises AliquotError and OSError.
    """
    if not string.node:
        raise ConfigError(
            "this string is for a person, not for a node", hint="an operator's `aliquot node invite` prints one"
        )
    name = validate_node(settings.node_name or host_name(), "node_name")
    directory = settings.state_dir
    node_id = _node_id(settings, make_backend)
    require_private(directory, secret=False)
    invite = token_sha256(string.token)
    begun: Joining | Membership | None = read_joining(directory) or _joined_before(directory)
    if begun is None or begun.invite_sha256 != invite:
        begun = Joining(invite, await apart("aliquot.agent.node_key:make_key"))
        write_joining(directory, begun)
    request = await apart("aliquot.agent.node_certificate:request", begun.key_pem, node_id)
    asked = enrolment_pb2.JoinRequest(node_id=node_id, node_name=name, request=request)
    answer = await _ask(string, asked)
    authorities = answer.authorities_pem.decode()
    membership = Membership(
        pool_id=answer.pool_id,
        node_id=node_id,
        addresses=string.addresses,
        key_pem=begun.key_pem,
        chain_pem=answer.chain_pem.decode(),
        life_ms=tuple(await apart("aliquot.common.certificates:lifetime_ms", answer.chain_pem.decode())),
        authorities_pem=authorities,
        # The pool's own, where it is one of them: the string may be of before there was another.
        server_pem=None if set(fingerprints(string.ca_pem)) & set(fingerprints(authorities)) else string.ca_pem,
        invite_sha256=invite,
    )
    write_membership(directory, membership)
    return Joined(membership, name)


async def join_when_it_can(settings: Settings, file: Path, make_backend: Callable[[], DeviceBackend]) -> None:
    """Join as soon as the file is there and the pool lets this node in; whoever has joined before is left as it is."""
    said, backoff = "", Backoff()
    while _joined_before(settings.state_dir) is None:
        try:
            string = await asyncio.to_thread(_string_in, settings, file)
            joined = await join(settings, string, make_backend, apart)
            log.info("joined pool %s", joined.membership.pool_id)
        except (AliquotError, OSError) as error:
            why = error.explain() if isinstance(error, AliquotError) else str(error)
            if why != said:
                log.warning("this node has not joined the pool, and tries again: %s", why)
            said = why
            await asyncio.sleep(backoff.next_s())


def _string_in(settings: Settings, file: Path) -> ConnectionString:
    """What is in the file: a string that an operator was given, else a token of Kubernetes. Raises as `decode`."""
    text = file.read_text(encoding="utf-8").strip()
    if text.startswith(PREFIX) or text.count(".") != _DOTS_IN_A_TOKEN:
        return decode(text)
    ca_file = settings.tls.ca_file
    ca_pem = ca_file.read_text(encoding="utf-8") if ca_file is not None else ""
    return ConnectionString(settings.coordinator, text, ca_pem, node=settings.node_name or host_name())


def _joined_before(directory: Path) -> Membership | None:
    try:
        return read_membership(directory)
    except SecurityError as error:  # it is about to be replaced
        log.warning("%s", error.message)
        return None


def _node_id(settings: Settings, make_backend: Callable[[], DeviceBackend]) -> str:
    """As the agent has it or will have it; made here where it never ran."""
    record = settings.state_dir / "node.record"
    if settings.node_id or record.exists():
        make_private(settings.state_dir)
        return settings.node_id or Identity.open(record, "", ()).node_id
    checkpoint = Checkpoint.open(settings.state_dir, boot_id())
    try:
        backend = make_backend()
        backend.open()
        try:
            uuids = sorted({info.physical_uuid for info in backend.discover().devices})
        finally:
            backend.close()
        return Identity.open(checkpoint.record("node"), "", uuids).node_id
    except DeviceError as error:
        raise ConfigError(
            f"this node's id follows from its devices, which can't be read: {error}",
            hint="start the driver first, or give --node-id here and to the agent",
        ) from error
    finally:
        checkpoint.close()


async def _ask(string: ConnectionString, asked: enrolment_pb2.JoinRequest) -> enrolment_pb2.JoinResponse:
    """Find the leader and join there; what is away for a moment is tried again. Raises AliquotError."""
    addresses, backoff = Addresses(string.addresses), Backoff()
    why = "no coordinator answered"
    try:
        async with asyncio.timeout(TRIES_S):
            while True:
                address = addresses.take()
                try:
                    return await _ask_at(address, string, asked)
                except SessionEnded as ended:
                    why, wait_s = f"{address}: {ended.message}", ended.wait_s
                    addresses.leader_is(ended.leader)
                log.warning("not yet: %s", why)
                if not addresses.referred:
                    await asyncio.sleep(backoff.next_s(wait_s))
                    addresses.waited()
    except TimeoutError:
        raise JoinRefused(
            f"could not join within {TRIES_S:.0f} s; at last {why}",
            hint="run the same command again: the invite is good until it ends",
        ) from None


async def _ask_at(
    address: str, string: ConnectionString, asked: enrolment_pb2.JoinRequest
) -> enrolment_pb2.JoinResponse:
    in_clear = not string.ca_pem and is_local_address(address)
    tls = None if in_clear else ClientTls(ca_pem=string.ca_pem)
    async with channel_to(address, Coordinators((address,), tls)) as channel:
        await connect(channel)
        stub = enrolment_pb2_grpc.EnrolmentServiceStub(channel)
        try:
            invite = string.token
            if invite_id_of(invite) is None:
                # Kubernetes says which node it is of, and the pool makes an invite for that one.
                vouched = access_pb2.LoginRequest(service_account_token=invite, joins=True)
                door = access_pb2_grpc.AccessServiceStub(channel)
                invite = (await door.Login(vouched, timeout=_CALL_S)).token
            answer: enrolment_pb2.JoinResponse = await stub.Join(asked, metadata=(bearer(invite),), timeout=_CALL_S)
        except grpc.aio.AioRpcError as error:
            ended = ending_of_error(error)
            if error.code() in _AWAY:
                raise ended from error
            hint = "ask an operator for another invite: `aliquot node invite`" if ended.word else ""
            raise JoinRefused(ended.message, hint=hint) from error
        return answer
