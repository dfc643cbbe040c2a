"""Handshakes of TLS: by a real server, since who does not finish one is met before any of our code is."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from tests.certificates import OPENSSL, Authority

PROGRAM = """
import sys
from pathlib import Path
from aliquot.common.tls import ServerTls
from aliquot.console import serving

async def app(scope, receive, send):
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

assert serving.HANDSHAKE_S == 10, "as at the coordinator's port"
serving.HANDSHAKE_S = 0.5
serving.serve_app(app, ("127.0.0.1", 0), tls=ServerTls(Path(sys.argv[1]), Path(sys.argv[2])))
"""


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl")
@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01"])
def test_who_does_not_finish_a_handshake_is_not_waited_for(tmp_path: Path, said: bytes) -> None:
    authority = Authority.create(tmp_path / "ca")
    files = map(str, authority.certify("localhost"))
    with subprocess.Popen([sys.executable, "-c", PROGRAM, *files], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline().removeprefix("ready "))
            host, _, port = ready["address"].removeprefix("https://").rpartition(":")
            with socket.create_connection((host, int(port)), timeout=45) as stranger:  # less than asyncio's own minute
                stranger.sendall(said)
                assert stranger.recv(1) == b""
            context = ssl.create_default_context(cafile=authority.ca)
            with (
                socket.create_connection((host, int(port)), timeout=45) as plain,
                context.wrap_socket(plain, server_hostname="localhost") as served,
            ):
                served.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
                answer = served.recv(1000)
                assert answer.startswith(b"HTTP/1.1 204 ")
                assert b"\r\nserver:" not in answer.lower(), "nobody is told what serves"
            server.send_signal(signal.SIGINT)
            assert server.wait(45) == 0, "Ctrl-C ends it as it should, without a traceback"
        finally:
            server.kill()
