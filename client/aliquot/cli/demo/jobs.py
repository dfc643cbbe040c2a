"""The demonstration's jobs: each has a lease, and real processes in it that allocate device memory through CUDA."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aliquot.client import HeldLease, Pool
from aliquot.common.quantity import human_bytes, parse_bytes

LIFETIME_S = 300
UNHARMED = "ran on"
OUT_OF_MEMORY = 3
"""What the load ends with when CUDA denies it an allocation."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job to be started."""

    name: str
    tenant: str
    gpu: str
    uses: Sequence[str]
    """Memory that each process holds, one process per device: `("12Gi", "12Gi")`."""
    busy_percent: int = 0
    grows_by: str = ""
    """Memory added every half second, by a job that exceeds its request."""
    node: str = ""
    """The node it must run on; empty: any."""


@dataclass(slots=True)
class Job:
    """A started job."""

    plan: JobSpec
    lease: HeldLease
    processes: list[subprocess.Popen[Any]] = field(default_factory=list)

    @property
    def alive(self) -> bool:
        """Whether all of its processes are alive."""
        return all(process.poll() is None for process in self.processes)

    @property
    def offends(self) -> bool:
        """Whether it takes more memory than its limit."""
        return bool(self.plan.grows_by)

    @property
    def ended(self) -> bool:
        """Whether one of its processes has ended."""
        return any(process.poll() is not None for process in self.processes)

    @property
    def pids(self) -> tuple[int, ...]:
        """Its processes."""
        return tuple(process.pid for process in self.processes)

    @property
    def outcome(self) -> str:
        """How it ended."""
        codes = [process.poll() for process in self.processes]
        ended = [code for code in codes if code is not None]
        if not ended:
            return UNHARMED
        if OUT_OF_MEMORY in ended:
            return "denied: out of memory"
        if any(code < 0 for code in ended):
            return f"stopped by {signal.Signals(-min(ended)).name}"
        return "done" if not any(ended) else f"ended with code {max(ended)}"

    def end(self) -> None:
        """Give the lease back; its agent ends what still runs."""
        self.lease.release(wait_gone=True, timeout_s=30.0)
        for process in self.processes:
            process.wait(timeout=30.0)


def start(pool: Pool, plan: JobSpec, logs: Path) -> Job:
    """Get the lease and start the processes inside it. Raises what `Pool.lease` raises."""
    node_ids = (pool.node(plan.node).node_id,) if plan.node else ()
    lease = pool.lease(plan.gpu, tenant=plan.tenant, name=plan.name, node_ids=node_ids, grace_s=5, wait_s=30.0)
    job = Job(plan, lease)
    for ordinal, memory in enumerate(plan.uses):
        command = [sys.executable, "-m", "aliquot.simgpu.burn", "--bytes", memory, "--device", str(ordinal)]
        command += ["--seconds", str(LIFETIME_S), "--percent", str(plan.busy_percent)]
        if plan.grows_by:
            command += ["--grow", plan.grows_by, "--step-seconds", "0.5"]
        with (logs / f"{plan.name}.log").open("ab") as log:
            job.processes.append(lease.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    return job


def wants(plan: JobSpec) -> str:
    """What a job will use, for people."""
    total = human_bytes(sum(map(parse_bytes, plan.uses)))
    return f"{total} and {plan.grows_by} more every half second" if plan.grows_by else total
