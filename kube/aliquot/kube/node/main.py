"""The command `aliquot-kube-node`: the node's part, beside the agent, in the DaemonSet.

When it works it prints one line, `ready {"node": …}`. SIGTERM ends it; what runs goes on, and the next one takes over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from aliquot.client import AsyncPool
from aliquot.common import config
from aliquot.common import logging as logs
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.runtime import say_ready
from aliquot.kube.alive import alive
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import find_cluster
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.releasing import NoReleaser, PoolReleaser, Releaser
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.settings import ENV_PREFIX, TABLE, Settings

EXIT_REFUSED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Exit codes: 0 ended by a signal, 1 refused with the reason, 2 usage."""
    parsed = vars(_parser().parse_args(arguments))
    file: Path | None = parsed.pop("config")
    table = None if file is None else TABLE
    try:
        settings = config.load(
            Settings, env_prefix=ENV_PREFIX, file=file, table=table, env=os.environ, flags=parsed
        ).settings
        logs.configure(settings.log_level, json=settings.log_json)
        asyncio.run(_run(settings))
    except AliquotError as error:
        sys.stderr.write(f"aliquot-kube-node: {error.explain()}\n")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_REFUSED
    except OSError as error:
        sys.stderr.write(f"aliquot-kube-node: {error}\n")
        return EXIT_REFUSED
    return 0


async def _run(settings: Settings) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    node = settings.node_name or socket.gethostname()
    async with (
        alive(settings.alive_file),
        KubeClient(find_cluster(settings.kubeconfig)) as client,
        _releaser(settings) as releaser,
    ):
        running = asyncio.create_task(_serve(settings, node, client, releaser), name="node")
        waiting = asyncio.create_task(ended.wait(), name="wait for a signal")
        try:
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, waiting):
                task.cancel()
            await asyncio.gather(running, waiting, return_exceptions=True)


async def _serve(settings: Settings, node: str, client: KubeClient, releaser: Releaser) -> None:
    service = await NodeService.open(settings, node, ApiServer(client), releaser)

    await service.run(lambda: say_ready(node=node, node_id=service.node_id))


@contextlib.asynccontextmanager
async def _releaser(settings: Settings) -> AsyncIterator[Releaser]:
    if not settings.release:
        yield NoReleaser()
        return
    async with AsyncPool() as pool:
        yield PoolReleaser(pool)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aliquot-kube-node",
        description="Ties pods of this node to their leases, and advertises what the node has.",
        epilog=f"Every setting can also be given as {ENV_PREFIX}<NAME>, or in the [{TABLE}] table of --config.",
    )
    parser.add_argument("--config", type=Path, help=f"a TOML file with a table [{TABLE}]")
    parser.add_argument("--node-name", help="the Node's name (default: the host's)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="instead of the pod's own service account")
    parser.add_argument("--injection", metavar="cdi|mounts", help="how containers get what their tier needs")
    parser.add_argument("--log-level")
    parser.add_argument("--log-json", action="store_const", const=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
