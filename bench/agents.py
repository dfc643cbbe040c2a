"""What connected agents cost the coordinator and launchers.

    python bench/agents.py --agents 10000 --json
    python bench/agents.py --agents 10000 --tls --storm --json

Real sessions over real gRPC, with a connection each, from other processes: a heartbeat every 5 s, and a delta when
something changed. Once all nodes are READY, the coordinator's CPU and memory are measured while one launcher allocates
and releases at a modest rate. With --storm the coordinator is then killed and started again on its journal, and all
agents come back at once. Every node has joined first, and proves its key in each session. The last line is one JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.v1 import leases_pb2, leases_pb2_grpc, types_pb2
from bench.lib.pool import Agents, Process, channel_to, coordinator, percentile, restarted

_STORM_WITHIN_S = 180.0
_STORM_WITHIN_S_EACH = 0.1
"""More of each agent beyond that: with keys, two cores that others use too may need so long."""


async def launch(address: str, arguments: argparse.Namespace, ca: Path | None) -> list[float]:
    """Allocate and release at a steady rate; returns how long each Allocate took, in milliseconds."""
    channel = channel_to(address, ca)
    body = types_pb2.LeaseRequest(gpu="0.25(A100),10Gi", tenant="bench", detached=True)
    took_ms: list[float] = []
    async with channel:
        stub = leases_pb2_grpc.LeaseServiceStub(channel)

        async def one() -> None:
            started = time.perf_counter()
            answer = await stub.Allocate(leases_pb2.AllocateRequest(request=body))
            took_ms.append((time.perf_counter() - started) * 1e3)
            await stub.Release(leases_pb2.ReleaseRequest(lease_id=answer.lease.lease_id))

        tasks = []
        start = time.perf_counter()
        for number in range(int(arguments.seconds * arguments.rate)):
            due = start + number / arguments.rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(one()))
        await asyncio.gather(*tasks)
    return sorted(took_ms)


async def idle(process: Process, agents: Agents, seconds: float) -> dict[str, float]:
    """The coordinator's CPU with nothing but agents."""
    cpu_s, counts, started = process.cpu_s(), await agents.counts(), time.monotonic()
    await asyncio.sleep(seconds)
    took_s = time.monotonic() - started
    after = await agents.counts()
    return {
        "cpu_cores": round((process.cpu_s() - cpu_s) / took_s, 3),
        "messages_per_s": round((after["sent"] - counts["sent"]) / took_s, 1),
        "agents_cpu_cores": round((after["cpu_s"] - counts["cpu_s"]) / took_s, 3),
    }


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, object]:
    """Start, connect, measure."""
    ca = certificate(folder) if arguments.tls else None
    flags = ["--journal", f"sqlite:{folder / 'agents.db'}", "--log-level", "error"]
    tls = ["--tls-cert", str(ca), "--tls-key", str(folder / "key.pem")] if ca else []
    with coordinator(*flags, *tls) as process:
        address = here(process.address) if ca else process.address
        started = time.monotonic()
        agents = await Agents.start(
            address,
            arguments.agents,
            "--heartbeat",
            str(arguments.heartbeat),
            "--devices",
            str(arguments.devices),
            "--change-every",
            str(arguments.change_every),
            *(("--ca", str(ca)) if ca else ()),
            processes=arguments.processes,
        )
        try:
            connected_s = time.monotonic() - started
            await asyncio.sleep(arguments.heartbeat)
            quiet = await idle(process, agents, arguments.seconds)
            cpu_s, began = process.cpu_s(), time.monotonic()
            took_ms = await launch(address, arguments, ca)
            busy = (process.cpu_s() - cpu_s) / (time.monotonic() - began)
            rss_mb = process.rss_mb()
            stormy: dict[str, float] = {}
            if arguments.storm:
                stormy = await storm(process, agents, arguments, [*flags, *tls])
        finally:
            await agents.stop()
        return {
            "agents": arguments.agents,
            "devices": arguments.agents * arguments.devices,
            "tls": bool(arguments.tls),
            **quiet,
            "cpu_cores_with_launcher": round(busy, 3),
            "launcher_leases_per_s": arguments.rate,
            "allocate_p50_ms": round(percentile(took_ms, 0.5), 2),
            "allocate_p99_ms": round(percentile(took_ms, 0.99), 2),
            "rss_mb": round(rss_mb, 1),
            "all_ready_s": round(connected_s, 1),
            **stormy,
            "cores": os.cpu_count(),
        }


async def storm(process: Process, agents: Agents, arguments: argparse.Namespace, flags: list[str]) -> dict[str, float]:
    """Kill the coordinator and start it again. Returns the cost until all agents are back and READY."""
    process.kill()
    before = (await agents.counts())["cpu_s"]
    began = time.monotonic()
    with restarted(process.address, flags) as again:
        up_s, up_cpu_s = time.monotonic() - began, again.cpu_s()
        while (counts := await agents.counts())["ready"] < arguments.agents:
            if time.monotonic() - began > _STORM_WITHIN_S + _STORM_WITHIN_S_EACH * arguments.agents:
                raise RuntimeError(f"{counts['ready']} of {arguments.agents} agents are back")
            await asyncio.sleep(0.1)
        return {
            "storm_until_up_s": round(up_s, 1),
            "storm_until_all_ready_s": round(time.monotonic() - began, 1),
            "storm_coordinator_cpu_s": round(again.cpu_s() - up_cpu_s, 1),
            "storm_agents_cpu_s": round(counts["cpu_s"] - before, 1),
        }


def here(address: str) -> str:
    """The address with the name that is in the certificate."""
    return address.replace("127.0.0.1", "localhost")


def certificate(folder: Path) -> Path:
    """A self-signed certificate for localhost."""
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2")
    path = folder / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            folder / "key.pem",
            "-out",
            path,
            *subject,
        ],
        check=True,
        capture_output=True,
    )
    return path


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--devices", type=int, default=8, help="per agent")
    parser.add_argument("--heartbeat", type=float, default=5.0, help="seconds")
    parser.add_argument("--change-every", type=float, default=30.0, help="seconds between two deltas of one agent")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rate", type=float, default=20, help="leases a second that the launcher takes and gives back")
    parser.add_argument("--processes", type=int, default=2, help="that the agents are spread over")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--storm", action="store_true", help="kill the coordinator at the end, and have all come back")
    parser.add_argument("--json", action="store_true", help="only the JSON line")
    arguments = parser.parse_args()
    with contextlib.suppress(ValueError, OSError):
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(arguments, Path(folder)))
    if not arguments.json:
        for key, value in result.items():
            print(f"{key:24} {value}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
