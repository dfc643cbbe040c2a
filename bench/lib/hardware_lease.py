"""The means of hardware.py: a device, leases on it as the agent makes them, and programs in a lease."""

# ruff: noqa: ANN401, PLC0415

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# In a checkout they are found here, beside a bundle they are installed.
ROOTS = [str(ROOT), *(str(each) for name in ("agent", "common", "proto") if (each := ROOT / name).is_dir())]
sys.path[:0] = ROOTS

GIB = 1 << 30
_CARDS = {
    "torch": "__import__('torch').cuda.device_count()",
    "cupy": "__import__('cupy').cuda.runtime.getDeviceCount()",
}


class Bench:
    """A device, a lease on it, and programs that run in the lease."""

    def __init__(self, scratch: Path, lease_bytes: int) -> None:
        import pynvml

        self.scratch = scratch
        self.lease_bytes = lease_bytes
        self.nvml = pynvml
        pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        uuid = pynvml.nvmlDeviceGetUUID(self.handle)
        self.uuid = uuid if isinstance(uuid, str) else uuid.decode()
        self._leases = 0

    def used_bytes(self, pid: int) -> int | None:
        """The memory that a process holds, by the driver's count."""
        for call in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses"):
            if hasattr(self.nvml, call):
                for process in getattr(self.nvml, call)(self.handle):
                    if process.pid == pid:
                        used: int | None = process.usedGpuMemory
                        return used
                return 0
        return None

    @contextlib.contextmanager
    def lease(self, memory_bytes: int | None = None) -> Iterator[Lease]:
        """Files of a lease, as the agent makes them."""
        from aliquot.agent.enforce.preload import built_library
        from aliquot.agent.enforce.preload_files import DeviceLimit, LeaseFiles

        library = built_library()
        if not library.is_file():
            folder = library.parents[1] / "preload"
            subprocess.run(["make", "-C", str(folder), "LIB=../lib"], check=True, capture_output=True)
        self._leases += 1
        files = LeaseFiles(self.scratch / f"lease{self._leases}", f"hardware-{self._leases}")
        files.create(library)
        files.set_limit(self.uuid, DeviceLimit(memory_bytes or self.lease_bytes, paced=True))
        yield Lease(self, files)
        files.remove()


class Lease:
    """Runs programs under the preload library."""

    def __init__(self, bench: Bench, files: Any) -> None:
        self.bench = bench
        self.files = files

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables of a program in this lease."""
        return plain_environment({"LD_PRELOAD": str(self.files.library)} | dict(extra or {}))

    def held_bytes(self) -> int | None:
        """What the lease holds of its device; None: unknown."""
        found: int | None = self.files.held_bytes(self.bench.uuid)
        return found


def plain_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a program that finds this checkout's modules."""
    path = ":".join([*ROOTS, *os.environ.get("PYTHONPATH", "").split(":")]).rstrip(":")
    return os.environ | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0"} | dict(extra or {})


@lru_cache
def missing(module: str) -> str:
    """Why a program that computes by this module (torch, cupy) can't run here; empty if it can."""
    if importlib.util.find_spec(module) is None:
        return f"{module} is not installed"
    found = run_json(f'import json\nprint(json.dumps({{"cards": {_CARDS[module]}}}))', plain_environment())
    return "" if found.get("cards") else f"{module} finds no card: {found.get('stderr', 'it counts none')[-300:]}"


def run_json(
    program: str, environment: Mapping[str, str], timeout_s: float = 180, cgroup: Path | None = None
) -> dict[str, Any]:
    """Run a Python program whose last output is a JSON object, from its start in the cgroup if one is given."""
    words = [sys.executable, "-c", textwrap.dedent(program)]
    if cgroup is not None:
        words = ["/bin/sh", "-c", f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"', "sh", *words]
    done = subprocess.run(
        words,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if lines:
        found: dict[str, Any] = json.loads(lines[-1])
        return found | {"exit": done.returncode}
    return {"failed": f"exit {done.returncode}", "stderr": done.stderr[-1500:]}


def ended_after(process: subprocess.Popen[str], timeout_s: float) -> Any:
    """Kills a process after a time; whoever has seen it end stops this timer."""
    timer = threading.Timer(timeout_s, process.kill)
    timer.start()
    return timer
