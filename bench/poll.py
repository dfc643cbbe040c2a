"""The cost of polling devices: a real agent on simulated devices whose calls are as slow as measured on real ones.

    bench/poll.py --devices 8 --json

Every device has leases with processes, so all are polled at the short interval; `--leases 0`: none has any. The agent
is a process of its own with default settings, in a session with a coordinator that only listens (its part is not
counted); `--alone`: there is none, and what the agent does to reach one is counted. Reported, over measured seconds:

- `cpu_cores`: processor time of the agent per second;
- `poll_ms`: how long one device took to answer one poll, on average (`poll_p99_ms`: the bucket of the 99th percentile);
- `calls_per_poll`: calls into the driver per poll of a device, of any kind;
- `calls_per_s` and `polls_per_s` of all devices together.

`--vendors nvidia,amd,intel` gives the node so many cards of each, behind one agent. Those of AMD and Intel are files,
and what obeys them runs in the agent (a lock and a look at processes for many reads), so their cost is an upper bound;
a call is a file there. `scan_ms` is what a look at the files takes that all processes of this machine (`scanned`) have
open. Such cards need it every 4.5 s, all of them together, and when memory is missing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from hashlib import sha256
from pathlib import Path

from aliquot import simgpu
from aliquot.agent.core.model import Reservation, SliceSpec
from aliquot.agent.devices.drm.backend import DrmBackend
from aliquot.agent.devices.drm.clients import Clients
from aliquot.agent.disk import identity
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.processes.tree import RealTree
from aliquot.client.local import LocalAgent
from aliquot.common.limits import GIB
from aliquot.simgpu import drm
from aliquot.simgpu.drm.tree import SimulatedTree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.lib.agent_figures import AgentFigures  # noqa: E402
from tests.agent.coordinator import Coordinator  # noqa: E402

SECRET = "bench"
NOBODY = "127.0.0.1:1"
HEARTBEAT_MS, DELTA_MIN_MS = 5_000, 1_000
"""What a coordinator of few nodes asks for."""
START_TIMEOUT_S = 30.0
LEASES_PER_DEVICE_MAX = 64
DRM_MODELS = {"amd": "MI210", "intel": "B580"}
SCANS = 20


class Bench:
    """An agent with leases and their processes."""

    def __init__(self, directory: Path, arguments: argparse.Namespace) -> None:
        self.directory = directory
        self.devices: int = arguments.devices
        self.leases: int = arguments.leases
        self.tiers: str = arguments.tiers
        self.vendors: list[str] = arguments.vendors.split(",")
        self.scenario = simgpu.create(directory / "gpus", [arguments.model] * self.devices, host=str(directory))
        models = [model for vendor in self.vendors for model in [DRM_MODELS.get(vendor, "")] * self.devices if model]
        self.machine = drm.create(directory / "machine", models) if models else None
        self.processes: list[subprocess.Popen[bytes]] = []
        self.metrics = ""
        self.coordinator = NOBODY if arguments.alone else _listen()

    def start(self) -> None:
        """Write leases to disk, start the agent, then their processes, then make the driver slow."""
        checkpoint = Checkpoint.open(self.directory / "state", identity.boot_id())
        checkpoint.save(self._records())
        checkpoint.close()
        kinds = ["nvml"] if "nvidia" in self.vendors else []
        kinds += [f"drm:{self.machine.root}"] if self.machine is not None else []
        agent = subprocess.Popen(
            [
                *(sys.executable, "-m", "aliquot.agent", "--node-name", "bench", "--metrics-port", "0", "--log-json"),
                *("--coordinator", self.coordinator),
                *("--state-dir", str(self.directory / "state")),
                *("--socket", str(self.directory / "agent.sock")),
                *("--devices", ",".join(kinds)),
            ],
            env={
                **os.environ,
                **simgpu.environment(self.directory / "gpus"),
                "ALIQUOT_AGENT_ENFORCEMENT_TIERS": self.tiers,
            },
            stdout=subprocess.DEVNULL,
            stderr=(self.directory / "log").open("wb"),
        )
        self.processes.append(agent)
        self._wait_for_agent()
        self._attach_processes()
        self.scenario.set_measured_latencies()

    def _records(self) -> list[Reservation]:
        found = []
        for place, uuid in enumerate(self._uuids()):
            for number in range(self.leases):
                lease_id = f"l-{place}-{number}"
                spec = SliceSpec(
                    slice_id=f"{lease_id}.1.0",
                    lease_id=lease_id,
                    lease_epoch=1,
                    device_uuid=uuid,
                    share_milli=1000 // (self.leases + 1),
                    memory_bytes=4 * GIB,
                    secret_sha256=sha256(SECRET.encode()).digest(),
                )
                found.append(Reservation(spec))
        return found

    def _uuids(self) -> list[str]:
        """Of every device: NVIDIA's first, then as the machine lists them."""
        found = [device.uuid for device in self.scenario.devices()] if "nvidia" in self.vendors else []
        if self.machine is not None:
            found += [info.uuid for info in DrmBackend(SimulatedTree(self.machine.root)).discover().devices]
        return found

    def _wait_for_agent(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            for line in (self.directory / "log").read_text().splitlines():
                record = json.loads(line)
                if record["message"] == "agent started":
                    self.metrics = f"http://127.0.0.1:{record['metrics_port']}/metrics"
                    return
            time.sleep(0.05)
        raise TimeoutError((self.directory / "log").read_text())

    def _attach_processes(self) -> None:
        """Each lease gets a process that holds memory."""
        agent = LocalAgent(self.directory / "agent.sock")
        for record in self._records():
            process = subprocess.Popen(["sleep", "3600"])
            self.processes.append(process)
            agent.attach(record.spec.lease_id, SECRET, pid=process.pid)
            nvidia = len(self.scenario.devices()) if "nvidia" in self.vendors else 0
            place = self._uuids().index(record.spec.device_uuid) - nvidia
            if place < 0:
                self.scenario.add_foreign(record.spec.device_uuid, 2 * GIB, pid=process.pid, name="sleep")
            elif self.machine is not None:
                self.machine.take(process.pid, place, 2 * GIB)

    def measure(self, seconds: float) -> dict[str, float | int]:
        """What the agent uses and does in this many seconds."""
        of_what = {"devices": self.devices * len(self.vendors)}
        of_what["leases"] = of_what["devices"] * self.leases
        return of_what | AgentFigures(self.processes[0].pid, self.metrics).measure(seconds)

    def close(self) -> None:
        """End everything that was started."""
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        self.scenario.close()


def _listen() -> str:
    """The address of a coordinator that lets the agent talk, as often as a real one, and says nothing."""
    started: list[str] = []
    there = threading.Event()

    async def serve() -> None:
        listening = Coordinator(heartbeat_ms=HEARTBEAT_MS, delta_min_ms=DELTA_MIN_MS)
        started.append((await listening.start()).address)
        there.set()
        await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(serve()), name="coordinator", daemon=True).start()
    there.wait()
    return started[0]


def scan() -> dict[str, float | int]:
    """What a look at the files that all processes of this machine have open takes."""
    before = time.perf_counter()
    for _ in range(SCANS):
        Clients(RealTree()).look("")
    took_s = (time.perf_counter() - before) / SCANS
    scanned = sum(path.name.isdecimal() for path in Path("/proc").iterdir())
    return {"scan_ms": round(took_s * 1e3, 2), "scanned": scanned}


def main() -> None:
    """Parse, run, report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--leases", type=int, default=4, help="per device")
    parser.add_argument("--model", default="A100-80")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--alone", action="store_true", help="without a coordinator")
    parser.add_argument("--tiers", default="watchdog", help="as in the agent's settings")
    parser.add_argument("--vendors", default="nvidia", help="of nvidia, amd and intel: so many devices of each")
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    arguments = parser.parse_args()
    if not 0 <= arguments.leases <= LEASES_PER_DEVICE_MAX:
        parser.error(f"--leases: 0 to {LEASES_PER_DEVICE_MAX}")
    with tempfile.TemporaryDirectory(prefix="aliquot-poll-") as directory:
        bench = Bench(Path(directory), arguments)
        try:
            bench.start()
            bench.measure(3.0)  # the first polls query everything
            result = bench.measure(arguments.seconds)
            if bench.machine is not None:
                result |= scan()
        finally:
            bench.close()
    if arguments.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:>16}  {value}")


if __name__ == "__main__":
    main()
