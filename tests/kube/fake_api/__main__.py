"""A fake API server in a process of its own: prints its address, serves until it is ended.

With `--pods N --events-per-s M` it is full of pods as large as real ones, and changes them by itself: something
to follow.
"""

from __future__ import annotations

import argparse
import asyncio
import sys

from aliquot.common.runtime import event_loop_factory
from tests.kube.fake_api.server import FakeApi
from tests.kube.fake_api.store import Object
from tests.kube.making import make_namespace, make_pod

NODES = 1000


def fill(api: FakeApi, pods: int) -> None:
    """Pods of about 4 KB, bound, with assignments as long as ours."""
    fields: Object = {"f:" + "managed" * 3: {f"f:{number}": {".": {}, "f:key": {}} for number in range(100)}}
    for number in range(pods):
        make_pod(
            api,
            f"workload-{number:06d}",
            {"aliquot.dev/gpu-percent": 25, "aliquot.dev/gpu-memory-mib": 8192},
            labels={"app": f"app-{number % 50}", "controller-uid": f"{number % 1000:036d}"},
            annotations={
                "aliquot.dev/lease-id": f"l-{number:013d}",
                "aliquot.dev/assignment": f'{{"lease":"l-{number:013d}","member":0,"node":"node","slices":[]}}',
            },
            managedFields=[{"manager": "kubelet", "fieldsV1": fields}],
            spec={"nodeName": f"node-{number % NODES}"},
        )


async def churn(api: FakeApi, events_per_s: int) -> None:
    """One pod after another changes, in portions of a twentieth of a second."""
    keys, position, portion = list(api.pods.items), 0, max(1, events_per_s // 20)
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        for _ in range(portion):
            key = keys[position % len(keys)]
            position += 1
            old = api.pods.items[key]
            phase = "Running" if old["status"]["phase"] == "Pending" else "Pending"
            api.store.write(
                api.pods, key, {**old, "metadata": {**old["metadata"]}, "status": {"phase": phase}}, "MODIFIED"
            )
        due += portion / events_per_s
        await asyncio.sleep(max(0.0, due - loop.time()))


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=0)
    parser.add_argument("--events-per-s", type=int, default=0)
    arguments = parser.parse_args()
    api = FakeApi(bookmark_s=5.0)
    make_namespace(api, "kube-system")
    make_namespace(api, "default")
    fill(api, arguments.pods)
    await api.start()
    sys.stdout.write(api.url + "\n")
    sys.stdout.flush()
    if arguments.events_per_s:
        await churn(api, arguments.events_per_s)
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_main())
