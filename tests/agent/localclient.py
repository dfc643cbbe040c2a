"""A client of the node-local socket as small as it can be, so that the tests see the wire and nothing else."""

from __future__ import annotations

import os
import socket
import struct
import sys
from pathlib import Path

from aliquot.v1 import local_pb2

HEADER = struct.Struct(">I")


def ask(path: Path | str, request: local_pb2.LocalRequest) -> local_pb2.LocalResponse:
    """One request, one response."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(os.fspath(path))
        return ask_on(connection, request)


def ask_on(connection: socket.socket, request: local_pb2.LocalRequest) -> local_pb2.LocalResponse:
    """One request on a connection that stays open."""
    body = request.SerializeToString()
    connection.sendall(HEADER.pack(len(body)) + body)
    (length,) = HEADER.unpack(_exactly(connection, HEADER.size))
    return local_pb2.LocalResponse.FromString(_exactly(connection, length))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise ConnectionError("the agent closed the connection")
        data += more
    return data


def become(uid: str) -> None:
    """Act as another user from here on; only root can."""
    if uid:
        os.setgroups([])
        os.setresgid(int(uid), int(uid), int(uid))
        os.setresuid(int(uid), int(uid), int(uid))


def main() -> None:
    """`localclient.py SOCKET LEASE SECRET MEMBER -- COMMAND...`: attach this process, then become the
    command.
    """
    path, lease_id, secret, member, separator, *command = sys.argv[1:]
    assert separator == "--"
    if os.environ.get("TEST_OWN_SESSION"):
        os.setsid()
    become(os.environ.get("TEST_UID", ""))
    attach = local_pb2.AttachRequest(lease_id=lease_id, secret=secret, member=int(member))
    response = ask(path, local_pb2.LocalRequest(attach=attach))
    if response.HasField("error"):
        sys.stderr.write(f"{response.error.reason}: {response.error.message}\n")
        sys.exit(9)
    os.environ.update(response.attach.environment)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
