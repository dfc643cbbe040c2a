"""Starts a real coordinator process for a benchmark, and measures what it uses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio

from aliquot.v1 import pool_pb2, pool_pb2_grpc, types_pb2
from tests.identity import insecure_channel, with_token

_READY_WITHIN_S = 120
COORDINATOR = ("-m", "aliquot.coordinator")
WITHOUT_A_DOOR = (str(Path(__file__).with_name("open.py")),)


def cpu_s_of(pid: int) -> float:
    """CPU time that a process has used so far, all threads.

    By its own clock, in nanoseconds: `/proc` counts in ticks of 10 ms, of which a quiet coordinator has five in as many
    seconds, so that one more looks like a loss of a fifth.
    """
    return time.clock_gettime(~pid << 3 | 2)  # as clock_getcpuclockid(3) makes it


def rss_mb_of(pid: int) -> float:
    """Resident memory of a process now, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmRSS")


@dataclass(slots=True)
class Process:
    """A coordinator under measurement."""

    popen: subprocess.Popen[str]
    address: str
    metrics: str

    def cpu_s(self) -> float:
        """CPU time used so far, all threads."""
        return cpu_s_of(self.popen.pid)

    def main_cpu_s(self) -> float:
        """CPU time used so far by the main thread, which runs the event loop."""
        ran_ns, *_ = Path(f"/proc/{self.popen.pid}/schedstat").read_text().split()
        return int(ran_ns) / 1e9

    def measured(self) -> dict[str, float]:
        """Its metrics that have no labels, by name."""
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        plain = (line.split() for line in lines if line[:1] not in ("#", "") and "{" not in line)
        return {name: float(value) for name, value, *_ in plain}

    def rss_mb(self) -> float:
        """Resident memory now, in MiB."""
        return rss_mb_of(self.popen.pid)

    def kill(self) -> None:
        """SIGKILL: like a power cut, except for the page cache."""
        self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()


def start_coordinator(*arguments: str, program: Sequence[str] = COORDINATOR) -> Process:
    """Start one and wait until it serves."""
    return _start(*program, "--listen", "127.0.0.1:0", "--metrics-port", "0", *arguments)


def _start(*program: str) -> Process:
    popen = subprocess.Popen([sys.executable, *program], stdout=subprocess.PIPE, text=True)
    assert popen.stdout is not None
    deadline = time.monotonic() + _READY_WITHIN_S
    while time.monotonic() < deadline:
        line = popen.stdout.readline()
        if line.startswith("ready "):
            ready = json.loads(line.removeprefix("ready "))
            return Process(popen, ready["address"], ready["metrics"])
        if not line:
            break
    popen.kill()
    raise RuntimeError(f"the server did not start (exit code {popen.wait()})")


@contextlib.contextmanager
def coordinator(*arguments: str, program: Sequence[str] = COORDINATOR) -> Iterator[Process]:
    """A coordinator that is stopped at the end."""
    with _stopped(start_coordinator(*arguments, program=program)) as process:
        yield process


@contextlib.contextmanager
def restarted(address: str, arguments: Sequence[str]) -> Iterator[Process]:
    """A coordinator at the address of one that was killed; it is stopped at the end."""
    with _stopped(start_coordinator(*arguments, "--listen", address)) as process:
        yield process


@contextlib.contextmanager
def bare_server() -> Iterator[Process]:
    """A server that answers the same calls and does nothing; see `lib/bare.py`."""
    with _stopped(_start(str(Path(__file__).with_name("bare.py")))) as process:
        yield process


@contextlib.contextmanager
def _stopped(process: Process) -> Iterator[Process]:
    try:
        yield process
    finally:
        process.popen.terminate()
        try:
            process.popen.wait(20)
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()


def declared_nodes(count: int, devices: int, *, model: str = "A100-80") -> list[types_pb2.Node]:
    """Nodes without agents."""
    return [
        types_pb2.Node(
            node_id=f"bench-{number:05d}",
            agentless=True,
            devices=[types_pb2.Device(model=model) for _ in range(devices)],
        )
        for number in range(count)
    ]


def channel_to(address: str, ca: Path | None = None) -> Any:  # noqa: ANN401 - as good as a channel
    """A channel as administrator; with TLS where an authority is named."""
    if ca is None:
        return insecure_channel(address)
    return with_token(grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(ca.read_bytes())))


async def declare(address: str, nodes: list[types_pb2.Node], ca: Path | None = None) -> None:
    """Declare them, a few hundred at a time."""
    async with channel_to(address, ca) as channel:
        stub = pool_pb2_grpc.PoolServiceStub(channel)
        for start in range(0, len(nodes), 200):
            await stub.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=nodes[start : start + 200]))


async def in_process(script: str, *arguments: str, told: str = "") -> dict[str, Any]:
    """Run a script of this folder in its own process, told this on stdin; returns the JSON object of its last line."""
    path = Path(__file__).with_name(script)
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(path), *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(told.encode())
    if process.returncode:
        raise RuntimeError(f"{script} ended with {process.returncode}")
    result: dict[str, Any] = json.loads(output.decode().strip().splitlines()[-1])
    return result


def percentile(sorted_values: list[float], part: float) -> float:
    """A percentile of a sorted list; 0 when it is empty."""
    if not sorted_values:
        return 0.0
    return sorted_values[min(len(sorted_values) - 1, int(len(sorted_values) * part))]


class Agents:
    """Processes of `lib/agents.py`."""

    def __init__(self, processes: list[asyncio.subprocess.Process]) -> None:
        self._processes = processes

    @classmethod
    async def start(cls, address: str, count: int, *arguments: str, processes: int = 1) -> Agents:
        """Start them and wait until every node is READY."""
        per_process = [count // processes + (number < count % processes) for number in range(processes)]
        started = [
            await asyncio.create_subprocess_exec(
                sys.executable,
                str(Path(__file__).with_name("agents.py")),
                address,
                "--agents",
                str(many),
                "--first",
                str(sum(per_process[:number])),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            for number, many in enumerate(per_process)
        ]
        for process in started:
            assert process.stdout is not None
            if await process.stdout.readline() != b"ready\n":
                raise RuntimeError("agents did not come up")
        return cls(started)

    async def counts(self) -> dict[str, float]:
        """Messages sent and received, and CPU seconds used, so far."""
        total: dict[str, float] = {}
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            counts = json.loads(await process.stdout.readline())
            total = {key: total.get(key, 0) + value for key, value in counts.items()}
        return total

    async def stop(self) -> None:
        """End them."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.gather(*(process.wait() for process in self._processes))
