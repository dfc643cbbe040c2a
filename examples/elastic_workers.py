#!/usr/bin/env python3
"""Run as many workers as the pool has room for, and give back in time what others need.

An elastic lease starts with one part, grows into idle capacity, and shrinks before other leases are preempted. The
program is told of each change, starts or stops a worker, and says that it has adapted.

    aliquot up
    python examples/elastic_workers.py 60
"""

from __future__ import annotations

import queue
import subprocess
import sys
import time

from aliquot.client import HeldLease, Lease, Pool, Slice

PART = "0.5,4Gi"
WORK = "import time; time.sleep(3600)"


class Workers:
    """One process for each part of the lease, on this machine's nodes."""

    def __init__(self, pool: Pool, lease: HeldLease) -> None:
        self._lease = lease
        self._agents = {agent.info().node_id: agent for agent in pool.agents}
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def adapt(self, lease: Lease) -> None:
        """Stop the workers on parts that leave, and start one on each new part."""
        staying = {part.slice_id: part for part in lease.staying}
        for slice_id in self._running.keys() - staying.keys():
            process = self._running.pop(slice_id)
            process.terminate()
            process.wait()
        for slice_id in staying.keys() - self._running.keys():
            self._running[slice_id] = self._start(staying[slice_id])
        say(f"workers: {len(self._running)} on {', '.join(sorted({part.node_name for part in lease.staying}))}")

    def _start(self, part: Slice) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, "-c", WORK])  # noqa: S603 - our own program
        info = self._lease.info
        self._agents[part.node_id].attach(info.lease_id, info.secret, pid=process.pid, member=part.member)
        return process

    def stop(self) -> None:
        """Stop all workers."""
        for process in self._running.values():
            process.terminate()
            process.wait()


def say(text: str) -> None:
    """Print at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Adapt for the given number of seconds, then give everything back."""
    deadline = time.monotonic() + float(sys.argv[1] if len(sys.argv) > 1 else 60)
    changes: queue.Queue[Lease] = queue.Queue()
    with (
        Pool(tenant="examples") as pool,
        pool.lease(PART, max_count=3, ttl_s=4, name="elastic", on_resize=changes.put) as lease,
    ):
        workers = Workers(pool, lease)
        try:
            workers.adapt(lease.info)
            while (left_s := deadline - time.monotonic()) > 0:
                try:
                    changed = changes.get(timeout=left_s)
                except queue.Empty:
                    break
                ready = lease.refresh() if not changed.leaving else changed
                while any(part.tier == "UNSPECIFIED" for part in ready.staying):  # its agent is setting it up
                    time.sleep(0.1)
                    ready = lease.refresh()
                workers.adapt(ready)
                lease.acknowledge(ready.shape)
        finally:
            workers.stop()


if __name__ == "__main__":
    main()
