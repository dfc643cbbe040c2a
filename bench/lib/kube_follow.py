"""Follows all pods of an API server as our processes do, and says what that costs: one JSON line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.holding.pods import PodIndex
from bench.lib.pool import cpu_s_of, rss_mb_of
from tests.kube.fake_api.server import ADMIN


async def main(url: str, seconds: float) -> None:
    """List, then follow for so long."""
    begun = time.monotonic()
    events = 0

    def count(*_: object) -> None:
        nonlocal events
        events += 1

    async with KubeClient(Cluster(url, lambda: ADMIN)) as client:
        pods = PodIndex(client, "aliquot")
        running = asyncio.create_task(pods.run())
        await pods.informer.synced.wait()
        listed_s = time.monotonic() - begun
        pods.on_change.append(count)
        await asyncio.sleep(2)
        events, cpu_s, since = 0, cpu_s_of(os.getpid()), time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - since
        result = {
            "follow_pods": len(pods),
            "follow_list_s": round(listed_s, 2),
            "follow_events_per_s": round(events / took_s, 1),
            "follow_cores": round((cpu_s_of(os.getpid()) - cpu_s) / took_s, 3),
            "follow_rss_mb": round(rss_mb_of(os.getpid()), 1),
        }
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
