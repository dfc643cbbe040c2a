#!/usr/bin/env python3
"""Run many small jobs on parts of GPUs, as many at once as the pool has room for.

The pool's queue is the scheduler: each job asks for its part and waits its turn. A job whose part is taken back gets
notice.

    aliquot up
    python examples/fan_out.py 20
"""

from __future__ import annotations

import asyncio
import functools
import sys
import time

from aliquot.client import AsyncPool

PART = "0.5,4Gi"
JOB = "import time; time.sleep(1)"


async def work(pool: AsyncPool, number: int, started: float) -> None:
    """One job, from its request to its release."""
    warn = functools.partial(say, started, f"job {number} must give its part back; stopped at (ms since 1970)")
    async with pool.lease(PART, name=f"job-{number}", preemptible=True, on_notice=warn) as lease:
        say(started, f"job {number} runs on", lease.slices[0].node_name, lease.slices[0].device_uuid)
        await lease.run([sys.executable, "-c", JOB], check=True)
    say(started, f"job {number} is done")


def say(started: float, *what: object) -> None:
    """Print with the time."""
    sys.stdout.write(f"{time.monotonic() - started:5.1f}s  {' '.join(map(str, what))}\n")


async def main() -> None:
    """Start all at once; the pool grants as many as fit."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    started = time.monotonic()
    async with AsyncPool(tenant="examples") as pool, asyncio.TaskGroup() as group:
        for number in range(jobs):
            group.create_task(work(pool, number, started))


if __name__ == "__main__":
    asyncio.run(main())
