"""Talking to an agent's socket: what comes back when it is not there, is somebody else, or misbehaves."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.client import AgentError, AgentUnreachable, AttachRefused
from aliquot.client.local import SOCKET_VARIABLE, LocalAgent, find_agents
from aliquot.v1 import local_pb2

Answer = Callable[[local_pb2.LocalRequest], bytes]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[Answer], LocalAgent]]:
    """An agent that answers one connection after another with what it is told to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path = tmp_path / "agent.sock"
    threads: list[threading.Thread] = []

    def start(answer: Answer) -> LocalAgent:
        listener.bind(str(path))
        listener.listen()

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    header = connection.recv(4)
                    if len(header) == 4:
                        body = connection.recv(struct.unpack(">I", header)[0])
                        connection.sendall(answer(local_pb2.LocalRequest.FromString(body)))

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return LocalAgent(path, timeout_s=5)

    yield start
    listener.shutdown(socket.SHUT_RDWR) if threads else None
    listener.close()
    for thread in threads:
        thread.join(5)


def framed(response: local_pb2.LocalResponse) -> bytes:
    body = response.SerializeToString()
    return struct.pack(">I", len(body)) + body


def test_only_what_concerns_devices_is_told(serve: Callable[[Answer], LocalAgent]) -> None:
    asked: list[local_pb2.LocalRequest] = []

    def answer(request: local_pb2.LocalRequest) -> bytes:
        asked.append(request)
        return framed(local_pb2.LocalResponse(attach=local_pb2.AttachResponse(environment={"A": "1"})))

    agent = serve(answer)
    own = {"CUDA_X": "1", "LD_LIBRARY_PATH": "/lib", "AWS_SECRET": "hush", "HOME": "/root"}
    assert agent.attach("l-1", "s", pid=7, member=2, environment=own).environment == {"A": "1"}
    (request,) = asked
    assert dict(request.attach.environment) == {"CUDA_X": "1", "LD_LIBRARY_PATH": "/lib"}
    assert (request.attach.pid, request.attach.member, request.attach.secret) == (7, 2, "s")


def test_a_refusal_keeps_its_reason_and_hint(serve: Callable[[Answer], LocalAgent]) -> None:
    said = local_pb2.LocalError(reason="UID_MISMATCH", message="not yours", hint="ask them")
    agent = serve(lambda _: framed(local_pb2.LocalResponse(error=said)))
    with pytest.raises(AttachRefused, match="not yours") as caught:
        agent.detach("l-1", "s")
    assert (caught.value.stated_reason, caught.value.hint) == ("UID_MISMATCH", "ask them")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", AgentUnreachable),
        (b"\x00\x00", AgentUnreachable),
        (struct.pack(">I", 100) + b"short", AgentUnreachable),
        (struct.pack(">I", 1 << 30), AgentUnreachable),
        (struct.pack(">I", 4) + b"\xff\xff\xff\xff", AgentError),
    ],
)
def test_a_peer_that_speaks_something_else(
    serve: Callable[[Answer], LocalAgent], answer: bytes, error: type[AgentError]
) -> None:
    with pytest.raises(error):
        serve(lambda _: answer).info()


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(AgentUnreachable, match="no agent answers") as caught:
        LocalAgent(tmp_path / "none.sock").info()
    assert "aliquot up" in caught.value.hint


def test_where_sockets_are_looked_for(tmp_path: Path) -> None:
    named = find_agents({SOCKET_VARIABLE: f"/a.sock{os.pathsep}/b.sock"})
    assert [str(agent.path) for agent in named] == ["/a.sock", "/b.sock"]
    folders = [tmp_path / "run" / "aliquot", tmp_path / "state" / "aliquot" / "pool" / "run"]
    listeners = []
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "noise.sock").write_text("no socket")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / "agent.sock"))
        listeners.append(listener)
    env = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "XDG_STATE_HOME": str(tmp_path / "state")}
    found = [agent.path for agent in find_agents(env)]
    assert [path for path in found if tmp_path in path.parents] == [folder / "agent.sock" for folder in folders]
    for listener in listeners:
        listener.close()
