"""A pool as it is at work, with everything on it that dashboards show: busy, idle and greedy leases, a request that
waits, one that is refused, a foreign process, XIDs, and a card that was taken out of service.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aliquot.cli.localpool import LocalPool
from aliquot.client import HeldLease, NeverFits, Pool, WaitUntil
from aliquot.client.admin import Amount, Budget, Declarations, Quota, TenantSpec
from aliquot.simgpu import Scenario
from tests.client.real_pool import real_pool
from tests.monitoring.programs import Prometheus, prometheus

QUICK = {
    "ALIQUOT_AGENT_POLL_LOAD": "500ms",
    "ALIQUOT_AGENT_POLL_IDLE": "1s",
    "ALIQUOT_AGENT_POLL_HEALTH": "1s",
    "ALIQUOT_AGENT_KERNEL_LOG": "",
}
BURN = [sys.executable, "-m", "aliquot.simgpu.burn", "--seconds", "600"]


@dataclass(frozen=True, slots=True)
class Site:
    """All of it."""

    local: LocalPool
    pool: Pool
    prometheus: Prometheus

    def scenario(self, node: str) -> Scenario:
        """The simulated GPUs of a node. To be closed."""
        return Scenario(self.local.layout.scenario(node))

    def churn(self) -> None:
        """A lease that comes up and goes."""
        lease = self.pool.allocate("0.05,1Gi", tenant="web", until=WaitUntil.ACTIVE, detached=True)
        self.pool.release(lease.lease_id, wait_gone=True, exit_code=0)


def targets(local: LocalPool) -> dict[str, list[str]]:
    """Where Prometheus finds a pool's programs, by job."""
    agents = [node.metrics.removeprefix("http://").removesuffix("/metrics") for node in local.nodes]
    return {"aliquot-coordinator": [local.metrics], "aliquot-agent": agents}


@contextlib.contextmanager
def site(folder: Path, rules: Path, interval: str = "1s") -> Iterator[Site]:
    """Up, watched by Prometheus, and with something of everything on it."""
    with contextlib.ExitStack() as stack:
        local = stack.enter_context(real_pool(nodes=2, gpus=2, settings=QUICK))
        server = stack.enter_context(prometheus(folder, targets(local), rules, interval))
        pool = stack.enter_context(local.connect())
        made = Site(local, pool, server)
        stack.enter_context(_at_work(made, folder))
        yield made


@contextlib.contextmanager
def _at_work(made: Site, folder: Path) -> Iterator[None]:
    pool = made.pool
    with contextlib.ExitStack() as stack:
        there = sorted(pool.nodes(), key=lambda node: node.name)
        uuids = {node.name: [device.uuid for device in node.devices] for node in there}
        first, second = uuids
        for number, name in enumerate((first, second)):
            gpus = stack.enter_context(made.scenario(name))
            for index in range(2):
                gpus.set(index, temperature_c=60 + 5 * index + number)
                gpus.set(index, power_mw=200_000 + 50_000 * index)
            gpus.raise_xid(0, 31)
        quota = Quota(guaranteed=Amount(500, 20 << 30), limit=Amount(3000))
        web = TenantSpec("web", quota=quota, budget=Budget("month", share_milli_ms=1000 * 3_600_000_000))
        pool.admin.apply(Declarations(tenants=(web, TenantSpec("lab"))))
        pool.admin.post_credit("web", 5_000_000, reference="paid-1")
        pool.admin.quarantine_device(uuids[second][1], reason="it smells")
        stack.callback(pool.admin.return_device, uuids[second][1])
        busy = stack.enter_context(
            pool.lease("0.5,10Gi", tenant="lab", name="training", node_ids=[there[0].node_id], grace_s=1)
        )
        stack.enter_context(_program(busy, folder, "6Gi", "--percent", "60"))
        stack.enter_context(pool.lease("0.25,4Gi", tenant="web", name="held by nobody", grace_s=1))
        greedy = stack.enter_context(pool.lease("0.1,2Gi", tenant="web", name="greedy", grace_s=1))
        stack.enter_context(_program(greedy, folder, "1Gi", "--grow", "1Gi", "--step-seconds", "1"))
        waiting = pool.allocate("2", tenant="lab", queue="batch", until=WaitUntil.QUEUED, detached=True)
        stack.callback(pool.release, waiting.lease_id)
        with contextlib.suppress(NeverFits):
            pool.allocate("64", tenant="lab")
        yield


@contextlib.contextmanager
def _program(lease: HeldLease, folder: Path, memory: str, *more: str) -> Iterator[None]:
    with (folder / "burn.log").open("ab") as log:
        process = lease.popen([*BURN, "--bytes", memory, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.kill()
        process.wait()
