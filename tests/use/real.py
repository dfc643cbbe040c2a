"""A lender and a borrower that are real programs, under a real coordinator and a real agent, on a simulated device."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from aliquot import simgpu
from aliquot.cli.localpool import LocalPool
from aliquot.client import Lease, Pool, admin
from aliquot.client.use import UseState
from tests.client.real_pool import real_pool

GIB = 1 << 30
PATIENCE_S = 60.0
QUICK = {"ALIQUOT_AGENT_POLL_LOAD": "300ms", "ALIQUOT_AGENT_POLL_MEMORY": "300ms"}
COORDINATOR = '[coordinator]\nagents = {use_looked_at_every = "300ms", idle_window = "1500ms"}\n'


@contextmanager
def idle_pool(agent: Mapping[str, str]) -> Iterator[LocalPool]:
    """One node with one device; leases are idle after a second and a half, and lent after two."""
    with real_pool(nodes=1, gpus=1, settings=agent, coordinator=COORDINATOR) as local, local.connect() as pool:
        policy = admin.IdlePolicy(action="lend", after_s=2, never_warn=True)
        pool.admin.apply(admin.Declarations(queues=(admin.QueueSpec("default", idle=policy),)))
        yield local


def until(found: Callable[[], object]) -> None:
    """Wait for something. Raises TimeoutError."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not found():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.02)


def lend_and_return(agent: Mapping[str, str] | None = None) -> int:
    """Milliseconds from the first activity of a lender until the program that used its share was gone."""
    with idle_pool(agent or {}) as local, contextlib.ExitStack() as stack, local.connect() as pool:
        scenario = stack.enter_context(simgpu.Scenario(local.layout.scenario(local.nodes[0].name)))
        uuid = scenario.devices()[0].uuid
        lender = stack.enter_context(pool.lease("0.8,4Gi"))
        asleep = lender.popen(["sleep", "600"])
        stack.callback(_end, asleep)
        scenario.add_foreign(uuid, GIB, pid=asleep.pid)
        until(lambda: _state(pool, lender.lease_id) is UseState.IDLE)
        until(lambda: _lent(pool, lender.lease_id))
        borrower = stack.enter_context(pool.lease("0.5,4Gi", opportunistic=True))
        (part,) = borrower.slices
        assert part.lender == lender.slices[0].slice_id
        guest = borrower.popen(["sleep", "600"])
        stack.callback(_end, guest)
        scenario.add_foreign(uuid, GIB, pid=guest.pid, sm_percent=60)
        scenario.remove_foreign(uuid, asleep.pid)
        began_s = time.monotonic()
        scenario.add_foreign(uuid, GIB, pid=asleep.pid, sm_percent=40)
        until(lambda: guest.poll() is not None)
        took_ms = round((time.monotonic() - began_s) * 1000)
        until(lambda: _state(pool, lender.lease_id) is UseState.ACTIVE)
        assert asleep.poll() is None, "the lender's program is not touched"
        return took_ms


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _lent(pool: Pool, lease_id: str) -> bool:
    use = pool.get(lease_id).use
    return use is not None and use.lent


def _state(pool: Pool, lease_id: str) -> UseState:
    found: Lease = pool.get(lease_id)
    return found.use.state if found.use is not None else UseState.UNSPECIFIED
