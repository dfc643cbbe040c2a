"""What our options of gRPC do: a server is frozen, and a proxy stands in the way."""

from __future__ import annotations

import os
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from aliquot.common.channels import noticing, proxies

ROOT = Path(__file__).parents[2]
SERVER = """
import sys, time
from concurrent import futures
import grpc
class Talks(grpc.GenericRpcHandler):
    def service(self, details):
        def stream(requests, context):
            yield b"hello"
            for _ in requests:
                pass
        return grpc.stream_stream_rpc_method_handler(stream)
server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Talks()],
                     options=[("grpc.http2.min_ping_interval_without_data_ms", 100)])
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        try:
            yield process, f"127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def silent(until: threading.Event) -> Iterator[Any]:
    """Requests of a caller who says nothing."""
    until.wait()
    yield b""


def test_a_frozen_server_is_noticed_long_before_grpc_s_own_minute(server: tuple[subprocess.Popen[str], str]) -> None:
    process, address = server
    never = threading.Event()
    options = (*noticing(every_ms=500, within_ms=500), *proxies({}))
    with grpc.insecure_channel(address, options=options) as channel:
        call: Any = channel.stream_stream("/any/thing")(silent(never))
        assert next(call) == b"hello"
        os.kill(process.pid, signal.SIGSTOP)
        began = time.monotonic()
        with pytest.raises(grpc.RpcError) as lost:
            next(call)
        waited_s = time.monotonic() - began
        never.set()
    assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
    # Not a speed: without `ping_timeout_ms` this is a minute on any machine.
    assert waited_s < 40


class Refusing(socketserver.StreamRequestHandler):
    """A company's proxy: it opens no connection to an address of the inner network."""

    def handle(self) -> None:
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture
def proxy() -> Iterator[str]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as refusing:
        thread = threading.Thread(target=refusing.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{refusing.server_address[1]}"
        refusing.shutdown()
        thread.join()


def test_the_web_s_proxy_is_not_asked_for_a_pool(
    server: tuple[subprocess.Popen[str], str], proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = server
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    with grpc.insecure_channel(address, options=proxies()) as channel:
        assert next(channel.stream_stream("/any/thing")(iter([]))) == b"hello"


def test_a_proxy_that_is_named_for_grpc_is_asked(
    server: tuple[subprocess.Popen[str], str], proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, address = server
    monkeypatch.setenv("grpc_proxy", proxy)
    with (
        grpc.insecure_channel(address, options=(*proxies(), ("grpc.enable_retries", 0))) as channel,
        pytest.raises(grpc.RpcError),
    ):
        next(channel.stream_stream("/any/thing")(iter([]), timeout=20))


def test_every_option_that_we_set_is_one_that_grpc_knows() -> None:
    """It takes any name, and says nothing of those that it does not know."""
    library = Path(cygrpc.__file__).read_bytes()
    roots = (ROOT / name for name in ("agent", "client", "common", "console", "coordinator", "kube", "remote"))
    text = "".join(path.read_text("utf-8") for root in roots for path in root.rglob("*.py"))
    options = set(re.findall(r'\("(grpc\.[a-z0-9_.]+)", ', text))
    assert {"grpc.keepalive_time_ms", "grpc.http2.max_ping_strikes", "grpc.server_handshake_timeout_ms"} <= options
    assert not {option for option in options if option.encode() not in library}
