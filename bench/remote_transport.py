"""How frames of remote GPUs travel, beside a plain TLS stream in the same run.

    python bench/remote_transport.py --json
    python bench/remote_transport.py --delays-ms 0.1 1 10 50

A server process on this machine does nothing with frames; the client is this process. Rounds of both are interleaved
and medians shown. `--delays-ms` adds a delay each way: in a network namespace of its own by netem (`--netem`, as root),
else by a proxy. Fields: up_mb_s tls_up_mb_s upload_ratio_to_tls down_mb_s tls_down_mb_s download_ratio_to_tls
round_trip_us tls_round_trip_us issue_us delays.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.common.ids import secret_sha256, serving_credential
from aliquot.remote.core.endpoint import Endpoint, parse
from aliquot.remote.server import certificate
from aliquot.remote.server.doorkeeper import Lease, Part
from aliquot.remote.server.listening import RemoteServer
from aliquot.remote.wire.client import Opening, RemoteChannel, open_channel
from bench.lib.delaying import DelayingProxy

MIB = 1 << 20
CREDENTIAL = serving_credential("bench", "l-bench", 1, "bench")
QUIET, ECHO = b"q", b"e"


class Sink:
    """Swallows what begins with `q`, sends back what begins with `e`, and as many MiB as `d` says."""

    def __init__(self, answer: Callable[[bytes], None]) -> None:
        self._answer = answer

    def handle(self, frame: bytes) -> None:
        """See `Engine`."""
        if frame[:1] == ECHO:
            self._answer(frame)
        elif frame[:1] == b"d":
            block = bytes(MIB)
            for _ in range(int(frame[1:])):
                self._answer(block)

    def close(self) -> None:
        """See `Engine`."""


def serve() -> None:
    """The server process: says where it serves, and where plain TLS is."""
    own = certificate.make()
    digest = secret_sha256(CREDENTIAL)
    lease = Lease("l-bench", 1, "bench", digest, {"s": Part("s", 0, "GPU", 0, 1000, "l-bench", "bench")})
    server = RemoteServer(lease, lambda name, part, answer: Sink(answer), "bench")
    port = server.start("127.0.0.1", 0, own)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(own.certificate_pem + own.key_pem)
        file.flush()
        context.load_cert_chain(file.name)
    listening = socket.create_server(("127.0.0.1", 0))
    print(Endpoint("127.0.0.1", port, own.sha256), listening.getsockname()[1], flush=True)
    while True:
        plain, _ = listening.accept()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_plain, args=(context.wrap_socket(plain, server_side=True),), daemon=True).start()


def _plain(stream: ssl.SSLSocket) -> None:
    block, view = bytes(MIB), memoryview(bytearray(MIB))
    while word := _exactly(stream, 9):
        size = int.from_bytes(word[1:], "big")
        if word[:1] == b"u":
            while size > 0:
                size -= stream.recv_into(view, min(size, MIB))
            stream.sendall(b"!")
        else:
            for _ in range(size):
                stream.sendall(block)


def _exactly(stream: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = stream.recv(size - len(found))
        if not more:
            return b""
        found += more
    return found


class PlainTls:
    """A plain TLS stream to the same process."""

    def __init__(self, port: int) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        plain = socket.create_connection(("127.0.0.1", port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = context.wrap_socket(plain)

    def up(self, mib: int) -> float:
        """Seconds."""
        block = bytes(MIB)
        began_s = time.perf_counter()
        self._stream.sendall(b"u" + (mib * MIB).to_bytes(8, "big"))
        for _ in range(mib):
            self._stream.sendall(block)
        _exactly(self._stream, 1)
        return time.perf_counter() - began_s

    def down(self, mib: int) -> float:
        """Seconds."""
        view, left = memoryview(bytearray(MIB)), mib * MIB
        began_s = time.perf_counter()
        self._stream.sendall(b"d" + mib.to_bytes(8, "big"))
        while left:
            left -= self._stream.recv_into(view, min(left, MIB))
        return time.perf_counter() - began_s

    def round_trips(self, count: int) -> float:
        """Seconds each."""
        began_s = time.perf_counter()
        for _ in range(count):
            self._stream.sendall(b"u" + bytes(8))
            _exactly(self._stream, 1)
        return (time.perf_counter() - began_s) / count


def up(channel: RemoteChannel, mib: int) -> float:
    """Seconds until the server has all of it."""
    block = QUIET + bytes(MIB - 1)
    began_s = time.perf_counter()
    for _ in range(mib):
        channel.send(block)
    channel.send(ECHO)
    channel.receive()
    return time.perf_counter() - began_s


def down(channel: RemoteChannel, mib: int) -> float:
    """Seconds."""
    began_s = time.perf_counter()
    channel.send(b"d%d" % mib)
    for _ in range(mib):
        channel.receive()
    return time.perf_counter() - began_s


def round_trips(channel: RemoteChannel, count: int) -> float:
    """Seconds each."""
    began_s = time.perf_counter()
    for _ in range(count):
        channel.send(ECHO)
        channel.receive()
    return (time.perf_counter() - began_s) / count


def issue(channel: RemoteChannel, count: int) -> float:
    """Seconds for which handing over a small frame keeps its caller."""
    frame = QUIET + bytes(47)
    began_s = time.perf_counter()
    for _ in range(count):
        channel.send(frame)
    taken_s = (time.perf_counter() - began_s) / count
    channel.send(ECHO)
    channel.receive()
    return taken_s


def _open(endpoint: Endpoint) -> RemoteChannel:
    return open_channel(endpoint, Opening("l-bench", 1, "bench", "s", CREDENTIAL, "sink"))


def _delayed(endpoint: Endpoint, delay_ms: float) -> dict[str, float]:
    """Running ahead hides a delay: what a frame costs, waiting for each and not."""
    proxy = DelayingProxy(endpoint.port, delay_ms / 1000)
    channel = _open(Endpoint("127.0.0.1", proxy.port, endpoint.certificate_sha256))
    try:
        return {
            "delay_ms": delay_ms,
            "round_trip_ms": round(round_trips(channel, 20) * 1000, 2),
            "frame_us": round(_ahead(channel, 20_000) * 1e6, 2),
            "up_mb_s": round(64 * MIB / up(channel, 64) / 1e6, 1),
        }
    finally:
        channel.close()
        proxy.close()


def _ahead(channel: RemoteChannel, count: int) -> float:
    """Seconds for each of many small frames, until all are done."""
    frame = QUIET + bytes(47)
    began_s = time.perf_counter()
    for _ in range(count):
        channel.send(frame)
    channel.send(ECHO)
    channel.receive()
    return (time.perf_counter() - began_s) / count


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="only the JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=128, help="of one transfer")
    parser.add_argument("--delays-ms", type=float, nargs="*", default=[0.1, 1, 10, 50])
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    server = subprocess.Popen([sys.executable, __file__, "--serve"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        said, port = server.stdout.readline().split()
        endpoint = parse(said)
        channel, plain = _open(endpoint), PlainTls(int(port))
        found: dict[str, list[float]] = {}
        for _ in range(options.rounds + 1):
            for name, value in (
                ("up_mb_s", options.mib * MIB / up(channel, options.mib) / 1e6),
                ("tls_up_mb_s", options.mib * MIB / plain.up(options.mib) / 1e6),
                ("down_mb_s", options.mib * MIB / down(channel, options.mib) / 1e6),
                ("tls_down_mb_s", options.mib * MIB / plain.down(options.mib) / 1e6),
                ("round_trip_us", round_trips(channel, 300) * 1e6),
                ("tls_round_trip_us", plain.round_trips(300) * 1e6),
                ("issue_us", issue(channel, 10_000) * 1e6),
            ):
                found.setdefault(name, []).append(value)
        result: dict[str, object] = {name: round(median(values[1:]), 2) for name, values in found.items()}
        for name, ours, theirs in (
            ("upload_ratio_to_tls", "up_mb_s", "tls_up_mb_s"),
            ("download_ratio_to_tls", "down_mb_s", "tls_down_mb_s"),
        ):
            pairs = zip(found[ours][1:], found[theirs][1:], strict=True)
            result[name] = round(median(one / other for one, other in pairs), 3)
        channel.close()
        result["delays"] = [_delayed(endpoint, delay_ms) for delay_ms in options.delays_ms]
        result["cpus"] = os.cpu_count()
        print(json.dumps(result))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
