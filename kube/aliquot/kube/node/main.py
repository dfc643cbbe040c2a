"""The command `aliquot-kube-node`: the node's part, beside the agent, in the DaemonSet.

When it works it prints one line, `ready {"node": …}`. SIGTERM ends it; what runs goes on, and the next one takes over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from functools import partial

from aliquot.client import AsyncPool
from aliquot.common import config
from aliquot.common import logging as logs
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.runtime import say_ready, until_signalled
from aliquot.kube.alive import alive
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import find_cluster
from aliquot.kube.node.api_server import ApiServer
from aliquot.kube.node.releasing import Release, release
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.settings import ENV_PREFIX, TABLE, Settings

EXIT_REFUSED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it. Exit codes: 0 ended by a signal, 1 refused with the reason, 2 usage."""
    try:
        settings = config.parse(Settings, _parser(), arguments, env_prefix=ENV_PREFIX, table=TABLE)
        logs.configure(settings.log_level, json=settings.log_json)
        asyncio.run(until_signalled(_run(settings)))
    except AliquotError as error:
        sys.stderr.write(f"aliquot-kube-node: {error.explain()}\n")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_REFUSED
    except OSError as error:
        sys.stderr.write(f"aliquot-kube-node: {error}\n")
        return EXIT_REFUSED
    return 0


async def _run(settings: Settings) -> None:
    node = settings.node_name or socket.gethostname()
    async with (
        alive(settings.alive_file),
        KubeClient(find_cluster(settings.kubeconfig)) as client,
        _releasing(settings) as given_back,
    ):
        service = await NodeService.open(settings, node, ApiServer(client), given_back)
        await service.run(lambda: say_ready(node=node, node_id=service.node_id))


@contextlib.asynccontextmanager
async def _releasing(settings: Settings) -> AsyncIterator[Release | None]:
    if not settings.release:
        yield None
        return
    async with AsyncPool() as pool:
        yield partial(release, pool)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aliquot-kube-node",
        description="Ties pods of this node to their leases, and advertises what the node has.",
    )
    parser.add_argument("--node-name", help="the Node's name (default: the host's)")
    parser.add_argument("--kubeconfig", metavar="FILE", help="instead of the pod's own service account")
    parser.add_argument("--injection", metavar="cdi|mounts", help="how containers get what their tier needs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
