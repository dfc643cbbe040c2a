"""A tenant that takes lease after lease, exceeds each for a moment and gives it back, on several nodes at once."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

from aliquot import simgpu
from aliquot.cli.localpool import LocalPool
from aliquot.client import HeldLease, Pool, PoolError, TenantHeldBack, admin
from tests.agent.harness import GIB

ROOT = Path(__file__).resolve().parents[2]
LIMIT_BYTES, MUCH_BYTES = 4 * GIB, 20 * GIB
CHURN_S = 0.6
LOOK_S = 0.01


def greedy(lease: HeldLease, local: LocalPool, node: str, way: str = "malloc") -> subprocess.Popen[bytes]:
    """A program in the lease that ignores SIGTERM and holds too much."""
    return lease.popen(
        [sys.executable, "-m", "tests.enforce.programs.greedy", way, str(MUCH_BYTES)],
        env={**local.node(node).env, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    )


class Churner:
    """A lane on each node. It goes on until its tenant is granted nothing any more."""

    def __init__(self, local: LocalPool, tenant: str, way: str) -> None:
        self._local, self._tenant, self._way = local, tenant, way
        self.samples: list[tuple[float, int]] = []
        """When, and the bytes that a lane held, the greediest of them."""
        self.ended = False
        """Whether one of its leases ended for it."""
        self.leases = 0

    def attack(self, span_s: float, restart: str = "", restart_after_s: float = 1.0) -> None:
        """For so long at most. The agent of the node `restart` is killed and started again so long after it began."""
        until_s = time.monotonic() + span_s
        lanes = [threading.Thread(target=self._lane, args=(node.name, until_s)) for node in self._local.nodes]
        for lane in lanes:
            lane.start()
        with contextlib.ExitStack() as stack:
            scenarios = [
                stack.enter_context(simgpu.Scenario(self._local.layout.scenario(node.name)))
                for node in self._local.nodes
            ]
            restart_s = time.monotonic() + restart_after_s if restart else float("inf")
            while any(lane.is_alive() for lane in lanes):
                self.samples.append((time.monotonic(), max(_held(scenario) for scenario in scenarios)))
                if time.monotonic() > restart_s:
                    restart_s = float("inf")
                    agent = self._local.node(restart).agent
                    agent.kill()
                    agent.start()
                time.sleep(LOOK_S)
            self.samples.append((time.monotonic(), max(_held(scenario) for scenario in scenarios)))

    def _lane(self, node: str, until_s: float) -> None:
        with self._local.connect() as pool:
            node_id = next(each.node_id for each in pool.nodes() if each.name == node)
            while time.monotonic() < until_s:
                held = ""
                try:
                    with pool.lease("0.25,4Gi", tenant=self._tenant, places=[node_id], wait_s=5.0) as lease:
                        self.leases, held = self.leases + 1, lease.lease_id
                        self._exceed(lease, node, until_s)
                except TenantHeldBack:
                    self.ended = True
                    return
                except PoolError:
                    pass  # it was lost, which is part of it
                self.ended = self.ended or (held != "" and over_limit(pool, held))

    def _exceed(self, lease: HeldLease, node: str, until_s: float) -> None:
        program = greedy(lease, self._local, node, self._way)
        try:
            over_since = float("inf")
            with simgpu.Scenario(self._local.layout.scenario(node)) as scenario:
                while (now := time.monotonic()) < min(until_s, over_since + CHURN_S) and program.poll() is None:
                    if _held(scenario) > LIMIT_BYTES:
                        over_since = min(over_since, now)
                    time.sleep(LOOK_S)
        finally:
            program.kill()
            program.wait()


def _held(scenario: simgpu.Scenario) -> int:
    return sum(
        process.memory_bytes + process.managed_bytes for device in scenario.devices() for process in device.processes
    )


def over_limit(pool: Pool, lease_id: str) -> bool:
    """Whether a lease has ended for what it held."""
    return pool.get(lease_id).end_reason == "OVER_LIMIT"


def refuse(local: LocalPool, tenant: str) -> None:
    """A tenant whose leases end as OVER_LIMIT is granted nothing for a while."""
    with local.connect() as pool:
        spec = admin.TenantSpec(tenant, on_over_limit=admin.OnOverLimit(action="refuse"))
        pool.admin.apply(admin.Declarations(tenants=(spec,)))
