"""Joining a pool: `aliquot-relay join STRING`, with what an administrator's `aliquot relay invite NAME` printed.

The string's token is exchanged for another that is kept here, and ended: so a string that somebody finds later opens
nothing, and one that somebody used before us is refused. Where an answer is lost, the same command goes on: the token
of the string is ended last.
"""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import msgspec

from aliquot.common.addresses import Addresses
from aliquot.common.backoff import Backoff
from aliquot.common.connection_string import ConnectionString
from aliquot.common.errors import AliquotError, ConfigError, SecurityError
from aliquot.common.reaching import Refusal, reach, refusal_of
from aliquot.common.tls import ClientTls, channel_credentials, is_local_address
from aliquot.common.tokens import bearer, token_id_of
from aliquot.v1 import access_pb2, access_pb2_grpc

RECORD: Final = "relay.json"
CA_FILE: Final = "ca.pem"
TRIES_S: Final = 60.0
_CALL_S: Final = 10.0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


class JoinRefused(AliquotError):
    """The pool does not let this relay in, or no coordinator could be reached."""

    reason = "JOIN_REFUSED"


class Joined(msgspec.Struct, frozen=True):
    """What a relay has of its pool."""

    addresses: tuple[str, ...]
    token: str
    ca_pem: str = ""
    """Whom to trust at the coordinators; empty: the system's authorities, or this machine."""

    def __repr__(self) -> str:
        """Without the token."""
        return f"Joined({', '.join(self.addresses)})"

    def tls(self) -> ClientTls | None:
        """None: in the clear, within this machine."""
        if not self.ca_pem and all(map(is_local_address, self.addresses)):
            return None
        return ClientTls(ca_pem=self.ca_pem)


def read_joined(state_dir: Path) -> Joined | None:
    """What was kept; None: it has joined no pool. Raises SecurityError where others could read it, and ConfigError."""
    file = state_dir / RECORD
    try:
        if file.stat().st_mode & _OTHERS:
            raise SecurityError(f"{file} can be read or changed by others", hint=f"chmod 600 {file}")
        return msgspec.json.decode(file.read_bytes(), type=Joined)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="run this as the user of the relay") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file} is damaged", hint="join again: `aliquot relay invite`") from error


async def join(state_dir: Path, string: ConnectionString) -> Joined:
    """Join the pool that the string is of, and keep what that brings. Raises AliquotError."""
    if string.node or token_id_of(string.token) is None:
        raise ConfigError("this string is not for a relay", hint="an administrator's `aliquot relay invite` prints one")
    begun = Joined(string.addresses, string.token, string.ca_pem)
    issued = await _call(begun, "IssueToken", access_pb2.IssueTokenRequest(note="of a relay that has joined"))
    joined = Joined(string.addresses, issued.token, string.ca_pem)
    keep(state_dir, joined)
    ending = access_pb2.RevokeTokensRequest(token_ids=[token_id_of(string.token) or ""])
    await _call(joined, "RevokeTokens", ending, gone_is_done=True)
    return joined


def keep(state_dir: Path, joined: Joined) -> None:
    """Keep it, durably. Raises ConfigError."""
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{state_dir}: {error.strerror}", hint="name a folder of the relay's own: --state-dir"
        ) from error
    # Whom to trust first, as the other is what counts.
    _put(state_dir / CA_FILE, joined.ca_pem.encode())
    _put(state_dir / RECORD, msgspec.json.encode(joined))


def _put(file: Path, content: bytes) -> None:
    new = file.with_name(f".{file.name}.new")
    try:
        new.unlink(missing_ok=True)
        new.touch(mode=0o600, exist_ok=False)
        with new.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        new.replace(file)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="name a folder of the relay's own: --state-dir") from error


async def _call(member: Joined, method: str, request: Any, *, gone_is_done: bool = False) -> Any:  # noqa: ANN401
    """Find the leader, and call it as who has this token. What is away for a moment is tried again."""
    addresses, backoff = Addresses(member.addresses), Backoff()
    said = Refusal(grpc.StatusCode.UNAVAILABLE, "no coordinator answered")
    try:
        async with asyncio.timeout(TRIES_S):
            while True:
                address = addresses.take()
                try:
                    return await _call_at(address, member, method, request)
                except grpc.aio.AioRpcError as error:
                    said = refusal_of(error.code(), error.details(), error.trailing_metadata())
                except TimeoutError:
                    said = Refusal(grpc.StatusCode.UNAVAILABLE, "nothing is heard")
                if gone_is_done and said.code is grpc.StatusCode.NOT_FOUND:
                    return None
                if said.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    raise JoinRefused(str(said), hint="ask for another string: `aliquot relay invite`")
                addresses.leader_is(said.leader)
                if not addresses.referred:
                    await asyncio.sleep(backoff.next_s(said.wait_s))
                    addresses.waited()
    except TimeoutError:
        raise JoinRefused(
            f"could not join within {TRIES_S:.0f} s; at last {said}", hint="run the same command again"
        ) from None


async def call_at(address: str, member: Joined, method: str, request: Any) -> Any:  # noqa: ANN401 - of the contract
    """Call AccessService there once; None: it does not answer, or refuses. Raises SecurityError."""
    try:
        return await _call_at(address, member, method, request)
    except (grpc.aio.AioRpcError, TimeoutError):
        return None


async def _call_at(address: str, member: Joined, method: str, request: Any) -> Any:  # noqa: ANN401
    tls = member.tls()
    async with (
        grpc.aio.insecure_channel(address)
        if tls is None
        else grpc.aio.secure_channel(address, channel_credentials(tls))
    ) as channel:
        await reach(channel)
        stub: Any = access_pb2_grpc.AccessServiceStub(channel)
        return await getattr(stub, method)(request, metadata=(bearer(member.token),), timeout=_CALL_S)
