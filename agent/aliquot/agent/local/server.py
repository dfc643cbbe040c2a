"""The Unix socket of the node-local protocol.

gRPC for Python hides who is at the other end, so this is a plain socket. Anybody on the machine may connect;
what they may do depends on who the kernel says they are and on the lease's secret. Connections, message sizes
and the time a peer may take are all bounded: one that is slow or silent is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import stat
import struct
from pathlib import Path

from google.protobuf.message import DecodeError

from aliquot.agent.disk.private import require_private_folder_of
from aliquot.agent.local.errors import Busy
from aliquot.agent.local.peer import Peer, peer_of
from aliquot.agent.local.service import LocalService
from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_LOCAL_MESSAGE_BYTES
from aliquot.v1 import local_pb2

log = logging.getLogger(__name__)

HEADER = struct.Struct(">I")
"""Before each message: its length, which is at most 1 MiB."""

MAX_CONNECTIONS = 256
MAX_CONNECTIONS_PER_UID = 64
KEPT_PER_UID = 4
"""Any user has so many, also where few others have taken all the rest."""
MAX_WITH_KEPT = 768
"""Of all users but root, with what is kept for each; root's are counted apart, so that nobody can keep it out."""
IDLE_S = 60.0
REQUEST_S = 5.0
WRITE_S = 5.0
_BUFFER_BYTES = 64 << 10
_BACKLOG = 128


class SocketUnusable(AliquotError):
    """The socket can't be made: another agent answers on it, the path is something else, too long, or not writable."""

    reason = "SOCKET"


def has_room(uid: int, mine: int, of_all: int) -> bool:
    """Whether a user who has so many connections may have one more."""
    if mine >= MAX_CONNECTIONS_PER_UID:
        return False
    return uid == 0 or of_all < MAX_CONNECTIONS or (mine < KEPT_PER_UID and of_all < MAX_WITH_KEPT)


class LocalProtocolError(AliquotError):
    """What came is not a message of this protocol. The connection ends: nobody knows where the next one begins."""

    reason = "MALFORMED"


def encode(response: local_pb2.LocalResponse) -> bytes:
    """A framed response."""
    body = response.SerializeToString()
    return HEADER.pack(len(body)) + body


async def read_request(reader: asyncio.StreamReader, idle_s: float, body_s: float) -> local_pb2.LocalRequest | None:
    """The next request; None when the peer is done. `idle_s`: how long a connection may be silent between
    requests; `body_s`: how long one request may take to arrive.

    Raises `LocalProtocolError` and `TimeoutError`.
    """
    try:
        async with asyncio.timeout(idle_s):
            first = await reader.readexactly(1)
    except asyncio.IncompleteReadError:
        return None
    async with asyncio.timeout(body_s):
        try:
            (length,) = HEADER.unpack(first + await reader.readexactly(HEADER.size - 1))
            if length > MAX_LOCAL_MESSAGE_BYTES:
                raise LocalProtocolError(f"a message of {length} bytes; at most {MAX_LOCAL_MESSAGE_BYTES} are read")
            body = await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise LocalProtocolError("the message was cut off") from error
    try:
        return local_pb2.LocalRequest.FromString(body)
    except DecodeError as error:
        raise LocalProtocolError(f"no request: {error}") from error


class LocalServer:
    """Listens until closed."""

    def __init__(self, service: LocalService, path: Path) -> None:
        self._service = service
        self._path = path
        self._server: asyncio.Server | None = None
        self._connections: dict[int, int] = {}

    async def start(self) -> None:
        """Bind the socket, in place of one that nobody answers on any more. Raises `SocketUnusable`,
        `SecurityError` and `OSError`.
        """
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        require_private_folder_of(self._path)
        _remove_stale(self._path)
        self._server = await asyncio.start_unix_server(self._connected, sock=_bind(self._path), limit=_BUFFER_BYTES)

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = -1
        try:
            peer = peer_of(writer.get_extra_info("socket"))
            uid = peer.uid
            mine = self._connections.get(uid, 0)
            if not has_room(uid, mine, sum(self._connections.values())):
                uid = -1
                raise Busy("too many connections to the agent", hint="close some, or try again")
            self._connections[uid] = mine + 1
            await self._serve(peer, reader, writer)
        except TimeoutError:
            log.debug("a silent connection was closed")
        except (AliquotError, OSError) as error:
            await self._refuse(writer, error)
        finally:
            if uid >= 0:
                self._connections[uid] -= 1
                if not self._connections[uid]:
                    del self._connections[uid]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (request := await read_request(reader, IDLE_S, REQUEST_S)) is not None:
            try:
                response = await self._answer(peer, request)
            except AliquotError as error:
                log.info("refused", extra={"uid": peer.uid, "pid": peer.process.pid, "problem": error.message})
                response = _error(error)
            await _send(writer, response)

    async def _answer(self, peer: Peer, request: local_pb2.LocalRequest) -> local_pb2.LocalResponse:
        kind = request.WhichOneof("request")
        if kind == "info":
            return local_pb2.LocalResponse(info=self._service.info())
        if kind == "status":
            return local_pb2.LocalResponse(status=self._service.status(peer))
        if kind == "attach":
            return local_pb2.LocalResponse(attach=await self._service.attach(peer, request.attach))
        if kind == "attach_cgroup":
            return local_pb2.LocalResponse(attach_cgroup=await self._service.attach_cgroup(peer, request.attach_cgroup))
        if kind == "detach":
            return local_pb2.LocalResponse(detach=await self._service.detach(peer, request.detach))
        raise LocalProtocolError("an empty request, or one that this agent does not know", hint="update the agent")

    @staticmethod
    async def _refuse(writer: asyncio.StreamWriter, error: AliquotError | OSError) -> None:
        if isinstance(error, AliquotError):
            with contextlib.suppress(OSError, TimeoutError):
                await _send(writer, _error(error))
        else:
            log.debug("a connection broke: %s", error)


async def _send(writer: asyncio.StreamWriter, response: local_pb2.LocalResponse) -> None:
    writer.write(encode(response))
    async with asyncio.timeout(WRITE_S):
        await writer.drain()


def _error(error: AliquotError) -> local_pb2.LocalResponse:
    return local_pb2.LocalResponse(
        error=local_pb2.LocalError(reason=error.reason, message=error.message, hint=error.hint)
    )


def _bind(path: Path) -> socket.socket:
    """A socket that appears at its path only when everybody may connect to it: who they are is asked of the
    kernel, what they may do depends on the lease's secret.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    hidden = path.with_name(f"{path.name}~")
    try:
        hidden.unlink(missing_ok=True)
        listener.bind(os.fspath(hidden))
        hidden.chmod(0o666)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        hidden.replace(path)
    except OSError:
        listener.close()
        hidden.unlink(missing_ok=True)
        raise
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketUnusable(f"{path} is not a socket", hint="give the agent another path with --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            if error.errno in (errno.ECONNREFUSED, errno.ENOENT):
                path.unlink(missing_ok=True)
                return
            raise SocketUnusable(
                f"{path}: {error.strerror}", hint="give the agent another path with --socket"
            ) from error
        name = _name_of(probe)
    raise SocketUnusable(
        f"another agent{f' ({name})' if name else ''} answers on {path}",
        hint="stop it, or give this one another path with --socket",
    )


def _name_of(connection: socket.socket) -> str:
    """The node whose agent answers; empty where it does not say."""
    body = local_pb2.LocalRequest(info=local_pb2.LocalInfoRequest()).SerializeToString()
    try:
        connection.sendall(HEADER.pack(len(body)) + body)
        with connection.makefile("rb") as file:
            (length,) = HEADER.unpack(file.read(HEADER.size))
            answer = local_pb2.LocalResponse.FromString(file.read(min(length, MAX_LOCAL_MESSAGE_BYTES)))
    except (OSError, struct.error, DecodeError):
        return ""
    return answer.info.node_name
