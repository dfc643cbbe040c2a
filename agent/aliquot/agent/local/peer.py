"""Who is at the other end of a Unix socket, as the kernel says: nothing that the peer says of itself is believed."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator

import msgspec

from aliquot.agent.core.model import ProcessKey
from aliquot.agent.local.errors import PeerUnknown, PidNotYours, ProcessGone
from aliquot.agent.processes.proc import Processes, key_of

_CREDENTIALS = struct.Struct("3i")
_SO_PEERPIDFD = 77  # Linux 6.5


class Peer(msgspec.Struct, frozen=True):
    """A process that connected."""

    process: ProcessKey
    uid: int
    gid: int


def peer_of(connection: socket.socket) -> Peer:
    """The process at the other end. Raises `PeerUnknown`."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    if pid <= 0:
        raise PeerUnknown(
            "the agent can't see the process that connected",
            hint="it runs in another PID namespace: run the agent with hostPID, or the program on the host",
        )
    with _pinned(connection, pid):
        key = key_of(pid)
    if key is None:
        raise PeerUnknown("the process that connected has ended")
    return Peer(key, uid, gid)


@contextlib.contextmanager
def _pinned(connection: socket.socket, pid: int) -> Iterator[None]:
    """Keep the peer's pid from coming to mean another process. Kernels before 6.5 can't give the pidfd of who
    connected; there it is opened by pid, which is the peer's as long as the peer holds its end open.
    """
    descriptor = -1
    try:
        try:
            descriptor = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            descriptor = os.pidfd_open(pid)
        yield
    except ProcessLookupError as error:
        raise PeerUnknown("the process that connected has ended") from error
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def target_of(peer: Peer, pid: int, processes: Processes) -> ProcessKey:
    """The process that a peer asks to attach: itself (0), or another one that is wholly of its own user.

    Raises `PidNotYours` and `ProcessGone`.
    """
    if pid in (0, peer.process.pid):
        return peer.process
    key = processes.key_of(pid) if pid > 0 else None
    uids = processes.uids_of(pid) if pid > 0 else None
    if key is None or uids is None:
        raise ProcessGone(f"there is no process {pid}")
    if peer.uid != 0 and uids != {peer.uid}:
        raise PidNotYours(f"process {pid} is not yours", hint="attach processes of your own user only")
    if processes.key_of(pid) != key:
        raise ProcessGone(f"process {pid} has ended")
    return key
