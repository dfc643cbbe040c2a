"""A fake API server in a process of its own: prints its address, serves until it is ended."""

from __future__ import annotations

import asyncio
import sys

from aliquot.coordinator.runtime import event_loop_factory
from tests.kube.fake_api.server import FakeApi


async def _main() -> None:
    api = FakeApi(bookmark_s=5.0)
    await api.start()
    sys.stdout.write(api.url + "\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
        runner.run(_main())
